"""`envgym eval SUITE --overlap`: whether the tasks of a suite are known from training, by content and by words."""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envgym.cli.common import check_options, echo, import_from_here, print_json, styled
from envgym.cli.tasks import split_report
from envgym.core.tasks import Split, Task, TaskSource
from envgym.errors import SettingsError

if TYPE_CHECKING:
    from envgym.agents.evaluation.suite import SuiteSettings

_OPTIONS: Final = ("overlap", "against", "limit", "json")
"""Options that may be given with --overlap."""
_NGRAM: Final = 8
_SHARE: Final = 0.5
"""Words of an n-gram, and the share of an evaluated task's words above which a train task overlaps with it: as
`decontamination` has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvOverlap:
    """What is known of the evaluated tasks of one env."""

    tasks: int
    """Distinct tasks that are evaluated."""
    duplicates: int
    """Tasks of the test split that repeat an earlier one, among those that were read."""
    in_train_split: int
    """Evaluated tasks whose content is in the train split, among as many train tasks."""
    similar_in_train_split: int
    """Train tasks of which n-grams cover more than half of the words of an evaluated task."""
    in_other_envs: int
    """Evaluated tasks whose content another env of the suite evaluates, too."""
    seen_in_training: dict[str, int]
    """Training run -> evaluated tasks whose content was in its recorded training episodes."""


def overlap_of_suite(suite: "SuiteSettings", runs: Sequence[Path], *, limit: int | None) -> dict[str, EnvOverlap]:
    """Return the overlap of every env of a suite by its label.

    Args:
        suite: whose test tasks are looked at.
        runs: training runs, whose saved episodes of train steps are looked at.
        limit: look at the first so many tasks of each env; None: at those of the suite.

    Raises: RunError: a run that cannot be read; SettingsError, UnknownName: an env that cannot be made.
    """
    from envgym.agents.evaluation.play import held_out_tasks
    from envgym.runs.directory import RunDirectory

    count = suite.tasks if limit is None else min(limit, suite.tasks)
    trained = {str(path): {key for _, key in RunDirectory.open(path).task_keys("train")} for path in runs}
    sources: dict[str, TaskSource] = {}
    for env in suite.envs:
        instance = env.make()
        sources[env.label] = instance.unwrapped.tasks
        instance.close()
    evaluated = {label: held_out_tasks(source, count) for label, source in sources.items()}
    keys = {label: {task.key for task in tasks} for label, tasks in evaluated.items()}
    overlaps: dict[str, EnvOverlap] = {}
    for label, source in sources.items():
        report = split_report(source, count)
        test = report["splits"][Split.TEST.value]
        others = set().union(*(own for name, own in keys.items() if name != label))
        overlaps[label] = EnvOverlap(
            tasks=len(keys[label]),
            duplicates=test["read"] - test["distinct"],
            in_train_split=len(keys[label].intersection(report["shared"])),
            similar_in_train_split=_num_similar(source, evaluated[label], count),
            in_other_envs=len(keys[label] & others),
            seen_in_training={run: len(keys[label] & seen) for run, seen in trained.items()},
        )
    return overlaps


def _num_similar(source: TaskSource, evaluated: Sequence[Task], count: int) -> int:
    from envgym.trainer.methods.decontamination import HeldOutTexts

    texts = HeldOutTexts((task.prompt for task in evaluated), ngram=_NGRAM)
    size = source.size(Split.TRAIN)
    train = (source.task(Split.TRAIN, index) for index in range(count if size is None else min(count, size)))
    return sum(texts.overlap(task.prompt) > _SHARE for task in train)


def overlap_command(args: argparse.Namespace, options: Iterable[str]) -> int:
    """Print the overlap of a suite; return 1 where evaluated tasks are known from training or evaluated twice.

    Raises: SettingsError: no suite is named, or one of the options means nothing here.
    """
    check_options(options, _OPTIONS, where="envgym eval --overlap", do="leave out the others")
    if args.suite is None:
        do = "name a suite, such as `envgym eval math --overlap`"
        raise SettingsError.of("--overlap", "be used with a suite", "none", where="envgym eval", do=do)
    from envgym.agents.evaluation.suite import read_suite
    from envgym.report.data import to_json

    suite = read_suite(args.suite, models=["tiny"])  # none is sampled
    import_from_here(suite.model_dump(mode="json"))
    overlaps = overlap_of_suite(suite, [Path(path) for path in args.against], limit=args.limit)
    if args.json:
        print_json(to_json(overlaps))
    else:
        for label, item in overlaps.items():
            echo(styled(f"{label}: {item.tasks} evaluated tasks", "bold"))
            echo(f"  in the train split {item.in_train_split}, in other envs {item.in_other_envs}")
            echo(f"  duplicates in the test split {item.duplicates}, similar train tasks {item.similar_in_train_split}")
            for run, number in item.seen_in_training.items():
                echo(f"  in training episodes of {run}: {number}")
    is_known = any(
        item.in_train_split or item.in_other_envs or any(item.seen_in_training.values()) for item in overlaps.values()
    )
    return int(is_known)
