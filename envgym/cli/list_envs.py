"""`envgym list`."""

import argparse
from dataclasses import asdict

from envgym import list_ids
from envgym.cli.common import Subparsers, add_command, add_json_argument, print_json, styled
from envgym.registry import find

_EXAMPLES = """  envgym list
  envgym list --json"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = add_command(subparsers, "list", summary="list the environments", examples=_EXAMPLES)
    add_json_argument(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print every registered id; no environment is imported."""
    entries = [find(env_id) for env_id in list_ids()]
    if args.json:
        print_json([asdict(entry) for entry in entries])
        return 0
    width = max(len(entry.id) for entry in entries)
    for entry in entries:
        needs = f" [needs envgym[{entry.requires}]]" if entry.requires else ""
        origin = "" if entry.origin == "envgym" else f" (from {entry.origin})"
        print(f"{styled(f'{entry.id:<{width}}', 'bold')}  {entry.summary}{styled(needs + origin, 'dim')}".rstrip())
    return 0
