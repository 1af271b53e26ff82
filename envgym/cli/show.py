"""`envgym show`: the card of an environment and what can be read off it."""

import argparse
import textwrap

from envgym.authoring.env_card import card_of, defaults_of, describe, example_episode
from envgym.cli.common import add_env_arguments, add_json_argument, echo, make_env, print_json, styled
from envgym.errors import InvalidInput
from envgym.registry import creator_of

_SHOWN_APART = ("id", "class", "summary", "parameters", "tools", "system_prompt")
"""Facts that are not shown as one of the lines `name value`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_env_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print what there is to know about an environment; of one that needs settings, what is known without them."""
    creator = creator_of(args.env)
    try:
        env = make_env(args)
    except InvalidInput as error:
        card = card_of(creator)
        if args.settings or args.json or card is None:
            raise
        _print_card(args.env, card, defaults_of(creator), str(error))
        return 0
    try:
        facts, example, card = describe(env, creator), example_episode(env), card_of(creator)
    finally:
        env.close()
    if args.json:
        print_json({**facts, "example": example, "card": card})
        return 0
    echo(styled(f"{facts['id']}", "bold"), styled(f"  {facts['class']}", "dim"))
    echo(f"{facts['summary']}\n")
    for name, value in facts.items():
        if name not in _SHOWN_APART:
            echo(f"  {name:<14}{_shown(value)}")
    _print_table("keyword arguments (--set NAME=VALUE)", facts["parameters"])
    _print_table("tools", facts["tools"])
    if facts["system_prompt"]:
        echo(styled("\nsystem prompt", "bold"), _indented(facts["system_prompt"]), sep="\n")
    echo(styled("\nexample: the oracle on a train task", "bold"))
    for who, text in example:
        echo(styled(f"  {who}", "cyan"), f": {_indented(text).lstrip()}", sep="")
    if card:
        echo(styled("\ncard", "bold"), _indented(card.strip()), sep="\n")
    return 0


def _print_card(env_id: str, card: str, defaults: dict[str, str], reason: str) -> None:
    """Print what is known about an environment that cannot be made without settings."""
    echo(styled(env_id, "bold"), f"not made without settings: {reason}", sep="\n\n")
    _print_table("keyword arguments (--set NAME=VALUE)", defaults)
    echo(styled("\ncard", "bold"), _indented(card.strip()), sep="\n")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {'endless' if size is None else size}" for name, size in value.items())
    return "none" if value is None else str(value)


def _indented(text: str) -> str:
    return textwrap.indent(text, "  ")


def _print_table(title: str, rows: dict[str, str]) -> None:
    if rows:
        echo(styled(f"\n{title}", "bold"))
        width = max(map(len, rows))
        for name, text in rows.items():
            echo(f"  {name:<{width}}  {text}")
