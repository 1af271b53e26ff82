"""`envgym view`: runs in a local web app; the report of a run, or the page of one tree, as a file."""

import argparse
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from envgym.cli.common import add_json_argument, at_least_0, echo, print_json, server_token
from envgym.errors import InvalidInput, RunError

if TYPE_CHECKING:
    from envgym.viewer.viewed_run import ViewedRun

TOKEN_VARIABLE = "ENVGYM_VIEW_TOKEN"
DEFAULT_PORT = 8765


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="directories that `envgym train` or `envgym eval` wrote")
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
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
    if is_file and (args.host is not None or args.port is not None):
        do = "leave them out, or leave out --export, --tree, --out and --json"
        got = "a page or its data"
        raise InvalidInput.of("--host and --port", "be used where the app is served", got, where="envgym view", do=do)
    args.host = args.host or "127.0.0.1"
    return _write(args) if is_file else _serve(args)


def _write(args: argparse.Namespace) -> int:
    from envgym.report.data import to_json
    from envgym.report.from_run import report_of_run, tree_of_run, write_run_report, write_run_tree
    from envgym.runs.directory import RunDirectory

    if len(args.runs) > 1:
        do = "write the pages one by one, or leave the option out to see all runs in the app"
        raise InvalidInput.of("a page or its data", "be of one run", len(args.runs), where="envgym view", do=do)
    run = RunDirectory.open(Path(args.runs[0]))
    out = None if args.out is None else Path(args.out)
    if out is not None and not out.parent.is_dir():
        raise RunError.of("folder of the report", "exist", str(out.parent), where="--out", do="make it first")
    if args.json:
        print_json(to_json(report_of_run(run) if args.tree is None else tree_of_run(run, args.tree).trees[0]))
    else:
        page = write_run_report(run, out) if args.tree is None else write_run_tree(run, args.tree, out)
        echo(page)
        if args.open:
            webbrowser.open(page.resolve().as_uri())
    return 0


def _serve(args: argparse.Namespace) -> int:
    from envgym.runtime.event_loop import run_coroutine
    from envgym.runtime.processes.group import announce
    from envgym.runtime.processes.interrupts import describe_interrupt_by
    from envgym.viewer.server import ViewerServer

    runs, problems = _open(args.runs)
    token = server_token(args.host, TOKEN_VARIABLE, is_printed=False)
    server = ViewerServer(runs, token=token, problems=problems)
    with ExitStack() as stack:

        def on_ready(address: str) -> None:
            url = address + (f"/?token={token}" if token else "/")
            for problem in problems:
                echo(f"not shown: {problem}", flush=True)
            echo(url, flush=True)
            echo("Ctrl-C stops. The runs are only read.", flush=True)
            announce(url=address)
            describe_interrupt_by(lambda: "the viewer has stopped; the runs are as they were")
            if args.open:
                webbrowser.open(stack.enter_context(_redirect(url)) if token else url)

        try:
            run_coroutine(server.serve(args.host, DEFAULT_PORT if args.port is None else args.port, on_ready))
        except InvalidInput:
            if args.port is not None:
                raise
            run_coroutine(server.serve(args.host, 0, on_ready))
    return 0


@contextmanager
def _redirect(url: str) -> Iterator[str]:
    """Yield the address of a file that leads to `url` and that this user alone can read, until the block ends.

    The command line of a browser, which every user of the machine can read, then holds no token.
    """
    with TemporaryDirectory(prefix="envgym-view-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(url)}">\n', encoding="utf-8"
        )
        yield page.as_uri()


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
