"""`envgym compare`, `envgym leaderboard`: whether one model is better than another, on the same tasks."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from envgym.cli.common import add_json_argument, echo, print_json, styled
from envgym.errors import InvalidInput, RunError

if TYPE_CHECKING:
    from envgym.agents.evaluation.compare import ModelComparison, ModelEvaluation, PassAtKCurve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    help_run = (
        "run directory, for its newest evaluation of each split, or a file of its `evals`; the first is the baseline"
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help=help_run)
    help_detect = "tell the tasks that a difference of so many points needs (default: the difference observed)"
    parser.add_argument("--detect", metavar="POINTS", type=float, help=help_detect)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print every comparison."""
    from envgym.agents.evaluation.compare import compare_evaluations, read_evaluations
    from envgym.report.data import to_json

    do = "give a number of points, such as 3"
    if args.detect is not None and not 0 < args.detect <= 100:
        raise InvalidInput.of("--detect", "lie in (0, 100]", args.detect, where="envgym compare", do=do)
    effect = None if args.detect is None else args.detect / 100
    results = compare_evaluations([read_evaluations(Path(path)) for path in args.runs], effect=effect)
    if args.json:
        print_json(to_json(results))
        return 0
    for title, comparisons in results.items():
        for line in (styled(title, "bold"), *comparison_lines(comparisons)):
            echo(line)
    return 0


def comparison_lines(comparisons: "list[ModelComparison]") -> list[str]:
    """Return the models of one env against the baseline, a few lines each."""
    baseline = comparisons[0].baseline
    lines = [f"  baseline     {_model(baseline)}"]
    for item in comparisons:
        paired, level = item.paired, item.corrected.interval.level
        corrected = f", corrected for {item.num_comparisons} comparisons" if item.num_comparisons > 1 else ""
        lines += [
            f"  model        {_model(item.other)}",
            f"  difference   {item.corrected.points} ({level:.1%}), p = {item.corrected_p_value:.2g}{corrected}; "
            f"{paired.wins} tasks better, {paired.losses} worse, {paired.ties} unchanged",
            f"  verdict      {item.verdict.value}{_needed(item)}",
        ]
        lines += _curve(item.pass_at_k)
    return lines


def _model(evaluation: "ModelEvaluation") -> str:
    success = "unknown" if evaluation.success is None else evaluation.success.percent
    size = f"{len(evaluation.successes)} tasks, {evaluation.samples} sample(s)"
    steps = f", after {evaluation.step} train steps" if evaluation.step else ""
    return f"{evaluation.name}: {success}, invalid {evaluation.invalid_rate:.1%}, {size}{steps}"


def _needed(item: "ModelComparison") -> str:
    """Say what these tasks detect, and how many the difference takes, where they are too few for it."""
    detectable = f"{item.minimum_detectable_effect * 100:.1f} points are detectable (80 % power)"
    needed = item.required_tasks
    if needed is None or needed <= item.paired.num_tasks:
        return f"; {detectable}"
    return f"; {detectable}; {item.effect * 100:.1f} points need {needed} tasks, there are {item.paired.num_tasks}"


def _curve(curve: "PassAtKCurve | None") -> list[str]:
    if curve is None:
        return []
    lines = [
        f"  pass@{point.k:<7} {point.baseline:.1%} -> {point.other:.1%}, {point.difference.points}"
        for point in curve.points
    ]
    most = curve.points[-1].k
    words = {"gain": "more tasks solved", "loss": "fewer tasks solved", "no evidence": "no evidence of a change"}
    crossing = "" if curve.crossing is None else f"; the curves cross before k = {curve.crossing}"
    return [*lines, f"  coverage     {words[curve.verdict.value]} with {most} samples{crossing}"]


# ---- envgym leaderboard ----------------------------------------------------------------------------------------------


def add_leaderboard_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    help_runs = "run directories that `envgym eval` or `envgym train` wrote, or directories of suites"
    parser.add_argument("runs", metavar="RUN", nargs="+", help=help_runs)
    parser.add_argument("--out", metavar="FILE", default="leaderboard.html", help="page (default: leaderboard.html)")
    add_json_argument(parser)


def run_leaderboard(args: argparse.Namespace) -> int:
    """Write the page and print the table, or print what both show."""
    from envgym.agents.evaluation.leaderboard import build_leaderboard, read_entries, write_leaderboard
    from envgym.report.data import to_json

    board = build_leaderboard(read_entries(Path(path) for path in args.runs))
    if args.json:
        print_json(to_json(board))
        return 0
    out = Path(args.out)
    if not out.parent.is_dir():
        raise RunError.of("folder of the page", "exist", str(out.parent), where="--out", do="make it first")
    write_leaderboard(board, out)
    for column, size in board.columns.items():
        echo(styled(f"{column}: {size}", "bold"))
        for row in board.rows:
            if (cell := row.cells.get(column)) is not None:
                success = "unknown" if cell.success is None else cell.success.percent
                echo(f"  {cell.rank or '-'}  {row.model}: {success}, invalid {cell.invalid_rate:.1%}")
    echo(f"page: {out}")
    return 0
