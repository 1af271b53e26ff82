"""`envgym tasks`: what an environment asks, and whether its splits are apart."""

import argparse
from collections.abc import Iterator
from typing import Any

from envgym.authoring.checked_tasks import CheckedTasks
from envgym.cli.common import add_env_arguments, add_json_argument, echo, make_env, print_json, styled
from envgym.core.serialize import task_to_json
from envgym.core.tasks import Split, Task, TaskSource
from envgym.errors import InvalidInput

_SHOWN = 5
_REPORTED = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_env_arguments(parser)
    parser.add_argument("--split", default=Split.TRAIN.value, help="train or test (default: train)")
    help_n = f"number of tasks (default: {_SHOWN}; with --report {_REPORTED} of each split)"
    parser.add_argument("-n", type=int, metavar="N", dest="count", help=help_n)
    parser.add_argument("--answers", action="store_true", help="show the hidden payload too")
    parser.add_argument("--report", action="store_true", help="count sizes, duplicates and overlap of the splits")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print tasks, or the report on them; exit code 1 where splits overlap."""
    count = args.count if args.count is not None else (_REPORTED if args.report else _SHOWN)
    InvalidInput.unless(count >= 1, "-n", "be at least 1", count, where="envgym tasks", do="raise it")
    env = make_env(args)
    try:
        if args.report:
            return _print_report(split_report(env.tasks, count), args.json)
        tasks = list(_first(env.tasks, Split.parse(args.split, where=args.env), count))
    finally:
        env.close()
    if args.json:
        print_json([_as_json(task, args.answers) for task in tasks])
        return 0
    for task in tasks:
        echo(styled(task.id, "bold"), styled(task.key[:12], "dim"))
        echo("  " + task.prompt.replace("\n", "\n  "))
        if args.answers:
            echo(styled(f"  {dict(task.payload)}", "dim"))
    return 0


def split_report(source: TaskSource, count: int) -> dict[str, Any]:  # JSON
    """Read up to `count` tasks of each split and compare their content.

    Returns:
        for each split its declared size (None: the supply does not end), how many tasks were read and how many are
        distinct, and how many were left out because a verifier cannot read their keys; and the keys of the tasks that
        are in both splits.
    """
    keys = {split: [task.key for task in _first(source, split, count)] for split in Split}
    splits: dict[str, dict[str, int | None]] = {
        split.value: {"size": source.size(split), "read": len(read), "distinct": len(set(read))}
        for split, read in keys.items()
    }
    if isinstance(source, CheckedTasks):
        for split in Split:
            splits[split.value]["left_out"] = source.num_left_out(split)
    return {"splits": splits, "shared": sorted(set(keys[Split.TRAIN]) & set(keys[Split.TEST]))}


def _first(source: TaskSource, split: Split, count: int) -> Iterator[Task]:
    size = source.size(split)
    for index in range(count if size is None else min(count, size)):
        yield source.task(split, index)


def _print_report(report: dict[str, Any], as_json: bool) -> int:  # JSON
    if as_json:
        print_json(report)
    else:
        for split, part in report["splits"].items():
            read, distinct, left_out = part["read"], part["distinct"], part.get("left_out")
            size = "endless" if part["size"] is None else part["size"]
            unreadable = f", left out {left_out} with keys that cannot be read" if left_out else ""
            echo(f"{split:<6} size {size}, read {read}, distinct {distinct}, duplicates {read - distinct}{unreadable}")
        echo(f"overlap of what was read: {len(report['shared'])}")
    return int(bool(report["shared"]))


def _as_json(task: Task, with_answers: bool) -> dict[str, Any]:  # JSON
    data = {**task_to_json(task), "key": task.key}
    if not with_answers:
        del data["payload"]
    return data
