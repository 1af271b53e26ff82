"""`envgym learner-rank`: a process that learns together with a run, which starts it."""

import argparse
import os
import re
import signal

from envgym.cli.common import import_from_here
from envgym.errors import InvalidInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--rank", type=int, required=True, metavar="R", help="number of this process; the run has 0")
    parser.add_argument("--of", type=int, required=True, metavar="N", help="processes that learn together")
    parser.add_argument(
        "--meeting",
        required=True,
        metavar="PLACE",
        help="where they meet: a file that is not there yet, or HOST:PORT of rank 0",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto (default)")
    parser.add_argument("--threads", type=int, help="CPU threads of torch (default: torch's own choice)")
    help_timeout = "seconds that ranks wait for each other in the middle of a train step (default: 600)"
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help=help_timeout)


def run(args: argparse.Namespace) -> int:
    """Meet the others, and learn with them until the run ends."""
    from envgym.agents.models.loading import prepare_device
    from envgym.runtime.processes.group import announce
    from envgym.trainer.launch.ranks import follow
    from envgym.trainer.learner.ranks.meeting import Meeting

    must, do = f"be from 1 to {args.of - 1}", "leave rank 0 to the run"
    InvalidInput.unless(0 < args.rank < args.of, "--rank", must, args.rank, where="envgym learner-rank", do=do)
    device = prepare_device(args.device, args.threads)
    if re.fullmatch(r"[^/]+:\d+", args.meeting):
        meeting = Meeting.at_address(args.rank, args.of, args.meeting)
    else:
        meeting = Meeting.at_file(args.rank, args.of, os.path.abspath(args.meeting))
    announce()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # it waits in torch, where a handler of Python would not run
    follow(meeting, device=device, timeout_s=args.timeout, on_settings=import_from_here)
    return 0
