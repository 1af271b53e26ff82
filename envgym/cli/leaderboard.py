"""`envgym leaderboard`: models by environments, on one page."""

import argparse
from pathlib import Path

from envgym.cli.common import add_json_argument, echo, print_json, styled
from envgym.errors import RunError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    help_runs = "run directories that `envgym eval` or `envgym train` wrote, or directories of suites"
    parser.add_argument("runs", metavar="RUN", nargs="+", help=help_runs)
    parser.add_argument("--out", metavar="FILE", default="leaderboard.html", help="page (default: leaderboard.html)")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
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
