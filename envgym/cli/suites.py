"""`envgym eval SUITE`: all cells of a suite, and their results in one table."""

import argparse
import shlex
from collections.abc import Mapping
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
_ENGINE: Final = ("device", "threads", "concurrency", "max_batch")


def run_suite_command(args: argparse.Namespace, given: Mapping[str, Any]) -> int:
    """Evaluate a suite.

    Args:
        args: of `envgym eval`.
        given: name -> value of the options that were given.

    Raises: SettingsError: one of them does not go with a suite.
    """
    from envgym.agents.evaluation.suite import read_suite, run_suite
    from envgym.api import eval_settings

    if others := [_option(name) for name in given if name not in OPTIONS]:
        must = f"be among {', '.join(map(_option, OPTIONS))} with a suite"
        do = "write the others into its file"
        raise SettingsError.of("options", must, ", ".join(others), where=f"{_WHERE} {args.suite}", do=do)
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


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def cells_json(results: "Mapping[str, EvalResult]") -> dict[str, Any]:
    """Return the results of every cell by its name."""
    from envgym.cli.results import run_json

    return {name: run_json(result.directory, result.report) for name, result in results.items()}


def suite_table(results: "Mapping[str, EvalResult]") -> list[str]:
    """Return a line for every cell: success with its interval, the invalid rate, and metrics that are one number."""
    from envgym.agents.evaluation.metrics.base import read_metrics
    from envgym.cli.results import invalid_rate

    rows: list[tuple[str, ...]] = [("cell", "tasks", "success", "invalid", "metrics")]
    for name, result in results.items():
        for record in result.evaluations:
            numbers = read_metrics(record.metrics)
            shown = ", ".join(f"{key} {metric.words}" for key, metric in numbers.items())
            success = "unknown" if record.success is None else record.success.percent
            invalid = f"{invalid_rate(record.to_json()):.1%}"
            rows.append((name, str(len(record.rewards)), success, invalid, shown))
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(4)]
    lines = [
        "".join(f"{cell:<{width}}" for cell, width in zip(row, [*widths, 0], strict=True)).rstrip() for row in rows
    ]
    return [styled(lines[0], "bold"), *lines[1:]]
