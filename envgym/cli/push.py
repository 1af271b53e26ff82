"""`envgym push`: put an exported folder on the Hugging Face Hub."""

import argparse
from pathlib import Path

from envgym.cli.common import add_json_argument, echo, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder that `envgym export` wrote")
    parser.add_argument("repo", metavar="REPO", help="owner/name on the Hub; it is created if it does not exist")
    text = "create a private repository; nothing is uploaded to a public one"
    parser.add_argument("--private", action="store_true", help=text)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Upload the folder, and print its address."""
    from envgym.export.hub import push_folder

    address = push_folder(args.folder, args.repo, private=args.private)
    if args.json:
        print_json({"folder": str(args.folder), "address": address})
    else:
        echo(f"{args.folder} is at {address}")
    return 0
