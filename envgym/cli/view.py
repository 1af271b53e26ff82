"""`envgym view`: the report of a run, made again from what is on disk."""

import argparse
import webbrowser
from pathlib import Path

from envgym.cli.common import add_json_argument, echo, print_json
from envgym.errors import RunError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("run", metavar="RUN", help="directory that `envgym train` or `envgym eval` wrote")
    parser.add_argument(
        "--tree", metavar="ID",
        help="write the page of this tree alone; SOURCE/STEP/ID where several have the id",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="FILE", help="write the page here (default: RUN/report.html, or RUN/trees/ID.html)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser, too")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Write the page and print its path, or print what it shows."""
    from envgym.report.data import to_json
    from envgym.report.from_run import report_of_run, tree_of_run, write_run_report, write_run_tree
    from envgym.runs import RunDirectory

    found = RunDirectory.open(Path(args.run))
    out = None if args.out is None else Path(args.out)
    if out is not None and not out.parent.is_dir():
        raise RunError.of("folder of the report", "exist", str(out.parent), where="--out", do="make it first")
    if args.json:
        print_json(to_json(report_of_run(found) if args.tree is None else tree_of_run(found, args.tree).trees[0]))
    else:
        page = write_run_report(found, out) if args.tree is None else write_run_tree(found, args.tree, out)
        echo(page)
        if args.open:
            webbrowser.open(page.resolve().as_uri())
    return 0
