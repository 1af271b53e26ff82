"""`envgym eval SUITE`: all cells of a suite, and their results in one table."""

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from envgym.cli.common import check_options, echo, import_from_here, print_json, styled
from envgym.errors import SettingsError
from envgym.runtime.processes.interrupts import describe_interrupt_by
from envgym.runtime.progress import ProgressDisplay

if TYPE_CHECKING:
    from envgym.agents.evaluation.run import EvalResult

_WHERE: Final = "envgym eval"
OPTIONS: Final = ("model", "out", "resume", "trust", "json", "limit", "device", "threads", "concurrency", "max_batch")
"""Options that may be given with a suite; everything else is in its file."""
RESCORE_OPTIONS: Final = ("out", "rescore", "metric", "success_at", "trust", "json")
"""Options that may be given with --rescore."""
_SHOWN: Final = 5
_ENGINE: Final = ("device", "threads", "concurrency", "max_batch")


def run_suite_command(args: argparse.Namespace, options: Mapping[str, Any]) -> int:
    """Evaluate a suite, given the arguments and, by name, the options that were set.

    Raises: SettingsError: one of them cannot be given with a suite.
    """
    from envgym.agents.evaluation.suite import read_suite, run_suite
    from envgym.api import eval_settings
    from envgym.cli.results import run_json

    check_options(options, OPTIONS, where=f"{_WHERE} {args.suite}", do="write the others into the file of the suite")
    suite = read_suite(args.suite, models=[args.model] if args.model else [])
    engine = {name: options[name] for name in _ENGINE if name in options}
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
        cells = {name: run_json(result.directory, result.report) for name, result in results.items()}
        print_json({"directory": str(directory), "cells": cells})
    else:
        for line in suite_table(results):
            echo(line)
        echo(f"cells: {directory / 'cells'}")
    return 0


def rescore_command(args: argparse.Namespace, options: Mapping[str, Any]) -> int:
    """Score the recorded episodes of a run, or of all cells of a suite, again; arguments as of `run_suite_command`.

    Raises: SettingsError: one of them is of no use here, or no run is named.
    """
    from envgym.agents.evaluation.rescore import rescore_run
    from envgym.agents.evaluation.suite import cells_of
    from envgym.report.data import to_json
    from envgym.runs.directory import RunDirectory

    check_options(options, RESCORE_OPTIONS, where=f"{_WHERE} --rescore", do="leave out the others")
    if args.out is None or args.suite is not None:
        do = "name the directory of a run or a suite with --out"
        raise SettingsError.of("--out", "alone say what is scored again", args.suite or "nothing", where=_WHERE, do=do)
    directories = cells_of(Path(args.out)) or [Path(args.out)]
    runs = [RunDirectory.open(directory, trusted=args.trust) for directory in directories]
    import_from_here([args.metric, *(run.trusted_config() for run in runs)])
    with ProgressDisplay() as progress:
        results = {
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
        print_json(to_json(results))
        return 0
    for directory, evaluations in results.items():
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


def _reward(value: float | None) -> str:
    return "invalid" if value is None else f"{value:g}"


def suite_table(results: "Mapping[str, EvalResult]") -> list[str]:
    """Return a line for every cell: success with its interval, the invalid rate, and metrics that are one number."""
    from envgym.agents.evaluation.metrics.base import read_metrics
    from envgym.stats.rates import invalid_share

    rows: list[tuple[str, ...]] = [("cell", "tasks", "success", "invalid", "metrics")]
    for name, result in results.items():
        for record in result.evaluations:
            numbers = read_metrics(record.metrics)
            metrics = ", ".join(f"{key} {metric.words}" for key, metric in numbers.items())
            success = "unknown" if record.success is None else record.success.percent
            invalid = f"{invalid_share(record.rewards):.1%}"
            rows.append((name, str(len(record.rewards)), success, invalid, metrics))
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(4)]
    lines = [
        "".join(f"{cell:<{width}}" for cell, width in zip(row, [*widths, 0], strict=True)).rstrip() for row in rows
    ]
    return [styled(lines[0], "bold"), *lines[1:]]
