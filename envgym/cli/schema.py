"""`envgym schema`: the JSON Schema of a settings file, for editors and other programs."""

import argparse

from envgym.cli.common import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "of", metavar="WHAT", nargs="?", choices=("train", "eval"), default="train", help="train or eval"
    )


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    from envgym.agents.settings import EvalSettings
    from envgym.trainer.settings import SettingsFile

    print_json((SettingsFile if args.of == "train" else EvalSettings).model_json_schema())
    return 0
