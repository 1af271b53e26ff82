"""`envgym rollout-worker`: a process that plays the episodes of a run, which starts it."""

import argparse
import contextlib
import os

from envgym.cli.common import import_from_here
from envgym.errors import InvalidInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port (default: any free one)")


def run(args: argparse.Namespace) -> int:
    """Serve the run that has started this process until interrupted."""
    from envgym.runtime.event_loop import run_coroutine

    with contextlib.suppress(KeyboardInterrupt):
        run_coroutine(_serve(args.host, args.port))
    return 0


async def _serve(host: str, port: int) -> None:
    from envgym.core.version import __version__
    from envgym.runtime.garbage import rare_collections
    from envgym.runtime.processes.group import announce
    from envgym.runtime.processes.log import ROLE_VARIABLE
    from envgym.trainer.launch.workers.addresses import TOKEN_VARIABLE
    from envgym.trainer.launch.workers.server import RolloutWorker

    token, do = os.environ.get(TOKEN_VARIABLE), "let envgym train --rollout-workers start it, which sets one"
    what, must = "environment variable", "hold the token of the run, whose settings may name code"
    InvalidInput.unless(token, what, must, TOKEN_VARIABLE, where="envgym rollout-worker", do=do)
    name = os.environ.get(ROLE_VARIABLE, "rollout-worker")
    worker = RolloutWorker(name, token=token, on_settings=import_from_here)
    try:
        with rare_collections():
            await worker.http.serve(host, port, lambda url: announce(url=url, version=__version__))
    finally:
        await worker.close()
