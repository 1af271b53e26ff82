"""`envgym view`: runs in a local web app; the report of a run, or the page of one tree, as a file."""

import argparse
import os
import secrets
import webbrowser
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from envgym.cli.common import add_json_argument, at_least_0, echo, print_json
from envgym.errors import InvalidInput, RunError, sentence

if TYPE_CHECKING:
    from envgym.viewer.viewed_run import ViewedRun

TOKEN_VARIABLE = "ENVGYM_VIEW_TOKEN"
DEFAULT_PORT = 8765
_NEEDED = ("fastapi", "uvicorn")
"""Packages of the extra `view`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="directories that `envgym train` or `envgym eval` wrote")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    help_port = f"port; 0: any free one (default: {DEFAULT_PORT}, or a free one where it is taken)"
    parser.add_argument("--port", type=at_least_0, help=help_port)
    parser.add_argument("--export", action="store_true", help="write the report of one run as one HTML file instead")
    parser.add_argument(
        "--tree", metavar="ID",
        help="write the page of this tree alone; SOURCE/STEP/ID where several have the id",
    )  # fmt: skip
    help_out = "write the page here (default: RUN/report.html, or RUN/trees/ID.html); implies --export"
    parser.add_argument("--out", metavar="FILE", help=help_out)
    parser.add_argument("--open", action="store_true", help="open the page in a browser, too")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the app; or write a page and print its path, or print what it shows."""
    is_file = args.export or args.tree is not None or args.out is not None or args.json
    return _write(args) if is_file else _serve(args)


def _write(args: argparse.Namespace) -> int:
    from envgym.report.data import to_json
    from envgym.report.from_run import report_of_run, tree_of_run, write_run_report, write_run_tree
    from envgym.runs import RunDirectory

    if len(args.runs) > 1:
        do = "write the pages one by one, or leave the option out to see all runs in the app"
        raise InvalidInput.of("a page or its data", "be of one run", len(args.runs), where="envgym view", do=do)
    found = RunDirectory.open(Path(args.runs[0]))
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


def _serve(args: argparse.Namespace) -> int:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        do = "install it with pip install 'envgym[view]', or write one HTML file with --export"
        raise InvalidInput(
            sentence("app", f"have {' and '.join(_NEEDED)}", f"no {missing[0]}", where="envgym view", do=do)
        )
    from envgym.event_loop import run_coroutine
    from envgym.http_server import is_loopback
    from envgym.interrupts import describe_interrupt_by
    from envgym.processes import announce
    from envgym.viewer.server import ViewerServer

    runs, problems = _open(args.runs)
    chosen = os.environ.get(TOKEN_VARIABLE)
    token = chosen or (None if is_loopback(args.host) else secrets.token_urlsafe(24))
    listen = partial(ViewerServer, runs, host=args.host, token=token, problems=problems)
    try:
        server = listen(port=DEFAULT_PORT if args.port is None else args.port)
    except InvalidInput:
        if args.port is not None:
            raise
        server = listen(port=0)
    url = server.url + (f"/?token={token}" if token else "/")
    for problem in problems:
        echo(f"not shown: {problem}", flush=True)
    echo(url, flush=True)
    echo("Ctrl-C stops. The runs are only read.", flush=True)
    announce(url=server.url)
    if args.open:
        webbrowser.open(url)
    describe_interrupt_by(lambda: "the viewer has stopped; the runs are as they were")
    run_coroutine(server.serve())
    return 0


def _open(paths: list[str]) -> tuple[list["ViewedRun"], list[str]]:
    """Open the runs. Raises: RunError: none can be shown; where others can, the sentence is a problem."""
    from envgym.viewer.viewed_run import ViewedRun

    runs: list[ViewedRun] = []
    problems: list[str] = []
    for path in dict.fromkeys(paths):
        try:
            runs.append(ViewedRun(path))
        except RunError as error:
            if len(paths) == 1:
                raise
            problems.append(str(error))
    if not runs:
        raise RunError(problems[0])
    return runs, problems
