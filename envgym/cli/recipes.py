"""`envgym recipes`: which methods a recipe joins."""

import argparse
from textwrap import fill

from envgym.cli.common import Subparsers, add_command, add_json_argument, print_json, styled

_EXAMPLES = """  envgym recipes
  envgym recipes dr_grpo
  envgym train examples/demo.yaml --set recipe=dr_grpo --set objective.aggregation.max_tokens=256"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = add_command(subparsers, "recipes", summary="list the recipes and what they choose", examples=_EXAMPLES)
    parser.add_argument("name", metavar="NAME", nargs="?", help="show this recipe alone")
    add_json_argument(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the choice at every plug-in point."""
    from envgym.trainer.catalog import RECIPE
    from envgym.trainer.settings import recipe_settings

    names = RECIPE.names() if args.name is None else [args.name]
    chosen = {name: recipe_settings(name, where="envgym recipes") for name in names}
    if args.json:
        print_json({name: recipe.model_dump(mode="json") for name, recipe in chosen.items()})
        return 0
    for name, recipe in chosen.items():
        print(styled(name, "bold"))
        print(fill(RECIPE.load(name).summary, 100, initial_indent="  ", subsequent_indent="  "))
        for point, choice in recipe.model_dump(exclude_none=True).items():
            named = [choice.pop("name")] if "name" in choice else []
            print(f"  {point:<11}", *named, *(f"{key}={value}" for key, value in choice.items()))
    return 0
