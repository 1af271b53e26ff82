"""`envgym view`: the report of a run, made again from what is on disk."""

import argparse
from pathlib import Path

from envgym.cli.common import Subparsers, add_command, add_json_argument, print_json
from envgym.errors import RunError, sentence

_EXAMPLES = """  envgym view runs/demo
  envgym view runs/demo --out /tmp/report.html
  envgym view runs/demo --json | jq '.evaluations[].success.valid.value'"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    summary = "write the report of a training run or an evaluation, also of one that is not over"
    parser = add_command(subparsers, "view", summary=summary, examples=_EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="directory that `envgym train` or `envgym eval` wrote")
    parser.add_argument("--out", metavar="FILE", help="write the page here (default: RUN/report.html)")
    add_json_argument(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Write the page and print its path, or print what it shows."""
    from envgym.report.from_run import report_of_run
    from envgym.report.schema import to_json
    from envgym.report.write import write_report
    from envgym.runs import RunDirectory

    found = RunDirectory.open(Path(args.run))
    page = found.path / "report.html" if args.out is None else Path(args.out)
    if not page.parent.is_dir():
        do = "make it first"
        raise RunError(sentence("folder of the report", "exist", str(page.parent), where="--out", do=do))
    data = report_of_run(found)
    if args.json:
        print_json(to_json(data))
        return 0
    write_report(data, page)
    print(page)
    return 0
