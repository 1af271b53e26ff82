"""`envgym eval SUITE`: all cells of a suite, and their results in one table."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from envgym.cli.common import echo, import_from_here, print_json, styled
from envgym.errors import SettingsError
from envgym.interrupts import describe_interrupt_by
from envgym.progress import ProgressDisplay

if TYPE_CHECKING:
    from envgym.agents.evaluation.run import EvalResult

_WHERE: Final = "envgym eval"
OPTIONS: Final = ("model", "out", "resume", "trust", "json", "limit", "device", "threads", "concurrency", "max_batch")
"""Options that may be given with a suite; everything else is in its file."""
OVERLAP_OPTIONS: Final = ("overlap", "against", "limit", "json")
"""Options that may be given with --overlap."""
RESCORE_OPTIONS: Final = ("out", "rescore", "metric", "success_at", "trust", "json")
"""Options that may be given with --rescore."""
_SHOWN: Final = 5
_ENGINE: Final = ("device", "threads", "concurrency", "max_batch")


def run_suite_command(args: argparse.Namespace, given: Mapping[str, Any]) -> int:
    """Evaluate a suite.

    Args:
        args: of `envgym eval`.
        given: name -> value of the options that were given.

    Raises: SettingsError: one of them cannot be given with a suite.
    """
    from envgym.agents.evaluation.suite import read_suite, run_suite
    from envgym.api import eval_settings

    _check_options(given, OPTIONS, where=f"{_WHERE} {args.suite}", do="write the others into the file of the suite")
    suite = read_suite(args.suite, models=[args.model] if args.model else [])
    engine = {name: given[name] for name in _ENGINE if name in given}
    suite = suite.model_copy(update={"engine": {**suite.engine, **engine}})
    import_from_here(suite.model_dump(mode="json"))
    directory = Path(args.out or Path("runs") / f"suite-{suite.name}")
    command = f"envgym eval {shlex.quote(args.suite)} --out {shlex.quote(str(directory))} --resume"
    command += f" --model {shlex.quote(args.model)}" if args.model else ""
    describe_interrupt_by(lambda: f"finished episodes are saved; continue with: {command}")
    with ProgressDisplay() as progress:
        results = run_suite(
            suite,
            directory,
            make_settings=eval_settings,
            resume=args.resume,
            limit=args.limit,
            trusted=args.trust,
            on_progress=progress,
        )
    if args.json:
        print_json({"directory": str(directory), "cells": cells_json(results)})
    else:
        for line in suite_table(results):
            echo(line)
        echo(f"cells: {directory / 'cells'}")
    return 0


def rescore_command(args: argparse.Namespace, given: Mapping[str, Any]) -> int:
    """Score the recorded episodes of a run, or of all cells of a suite, again.

    Args:
        args: of `envgym eval`.
        given: name -> value of the options that were given.

    Raises: SettingsError: one of them is of no use here, or no run is named.
    """
    from envgym.agents.evaluation.rescore import rescore_run
    from envgym.agents.evaluation.suite import cells_of
    from envgym.report.data import to_json
    from envgym.runs import RunDirectory

    _check_options(given, RESCORE_OPTIONS, where=f"{_WHERE} --rescore", do="leave out the others")
    if args.out is None or args.suite is not None:
        do = "name the directory of a run or a suite with --out"
        raise SettingsError.of("--out", "alone say what is scored again", args.suite or "nothing", where=_WHERE, do=do)
    directories = cells_of(Path(args.out)) or [Path(args.out)]
    runs = [RunDirectory.open(directory, trusted=args.trust) for directory in directories]
    import_from_here([args.metric, *(run.trusted_config() for run in runs)])
    with ProgressDisplay() as progress:
        found = {
            str(directory): rescore_run(
                directory,
                metrics=args.metric or None,
                success_at=args.success_at,
                trusted=args.trust,
                on_progress=progress,
            )
            for directory in directories
        }
    if args.json:
        print_json(to_json(found))
        return 0
    for directory, evaluations in found.items():
        for item in evaluations:
            sizes = (
                f"{item.num_episodes} episodes, {len(item.changed)} of another reward, {len(item.not_repeated)} kept"
            )
            echo(styled(f"{directory}, {item.label}: {sizes} as their replay differs", "bold"))
            for episode in item.changed[:_SHOWN]:
                echo(f"  {episode.tree_id}: {_reward(episode.before)} -> {_reward(episode.after)}")
            for tree_id, reason in list(item.not_repeated.items())[:_SHOWN]:
                echo(f"  {tree_id}: {reason}")
            echo(f"  as it was: {item.saved}")
    return 0


def check_overlap_options(suite: str | None, given: Mapping[str, Any]) -> None:
    """See that a suite is named, and nothing that means nothing for its overlap. Raises: SettingsError."""
    _check_options(given, OVERLAP_OPTIONS, where=f"{_WHERE} --overlap", do="leave out the others")
    if suite is None:
        do = "name a suite, such as `envgym eval math --overlap`"
        raise SettingsError.of("--overlap", "be used with a suite", "none", where=_WHERE, do=do)


def _reward(value: float | None) -> str:
    return "invalid" if value is None else f"{value:g}"


def _check_options(given: Mapping[str, Any], known: Sequence[str], *, where: str, do: str) -> None:
    """Refuse options that mean nothing here. Raises: SettingsError."""
    if others := [_option(name) for name in given if name not in known]:
        must = f"be among {', '.join(map(_option, known))}"
        raise SettingsError.of("options", must, ", ".join(others), where=where, do=do)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def cells_json(results: "Mapping[str, EvalResult]") -> dict[str, Any]:
    """Return the results of every cell by its name."""
    from envgym.cli.results import run_json

    return {name: run_json(result.directory, result.report) for name, result in results.items()}


def suite_table(results: "Mapping[str, EvalResult]") -> list[str]:
    """Return a line for every cell: success with its interval, the invalid rate, and metrics that are one number."""
    from envgym.agents.evaluation.metrics.base import read_metrics
    from envgym.stats.rates import invalid_share

    rows: list[tuple[str, ...]] = [("cell", "tasks", "success", "invalid", "metrics")]
    for name, result in results.items():
        for record in result.evaluations:
            numbers = read_metrics(record.metrics)
            shown = ", ".join(f"{key} {metric.words}" for key, metric in numbers.items())
            success = "unknown" if record.success is None else record.success.percent
            invalid = f"{invalid_share(record.rewards):.1%}"
            rows.append((name, str(len(record.rewards)), success, invalid, shown))
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(4)]
    lines = [
        "".join(f"{cell:<{width}}" for cell, width in zip(row, [*widths, 0], strict=True)).rstrip() for row in rows
    ]
    return [styled(lines[0], "bold"), *lines[1:]]
