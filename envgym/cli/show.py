"""`envgym show`: the card of an environment and what can be read off it."""

import argparse
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envgym.cli.common import add_env_arguments, add_json_argument, default_of, echo, make_env, print_json, styled
from envgym.core.tasks import Split
from envgym.env import NoOracle
from envgym.plugins import path_of
from envgym.registry import creator_of, parameters
from envgym.wrappers import AnyEnv

_MAX_EXAMPLE_TURNS = 20
_SHOWN_APART = ("id", "class", "summary", "parameters", "tools", "system_prompt")
"""Facts that are not shown as one of the lines `name value`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_env_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print what there is to know about an environment."""
    env, creator = make_env(args), creator_of(args.env)
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


def describe(env: AnyEnv, creator: Callable[..., object]) -> dict[str, Any]:  # JSON
    """Return the facts about an environment as JSON types; `creator` is the class or function that made it."""
    inner = env.unwrapped
    text = inspect.getdoc(creator) or inspect.getdoc(type(inner)) or ""
    return {
        "id": env.name,
        "class": path_of(type(inner)),
        "summary": " ".join(text.split("\n\n")[0].split()),
        "splits": {split.value: inner.tasks.size(split) for split in Split},
        "max_turns": inner.max_turns,
        "reward_range": list(inner.reward_range),
        "optimum": inner.optimum,
        "chance_score": inner.chance_score,
        "fork": inner.fork_capability.value,
        "blocking": inner.blocking,
        "observations": repr(env.observation_space),
        "actions": repr(env.action_space),
        "parameters": {name: default_of(item) for name, item in (parameters(creator) or {}).items()},
        "tools": {name: tool.spec.description for name, tool in inner.toolset().items()},
        "system_prompt": inner.system_prompt,
    }


def example_episode(env: AnyEnv) -> list[tuple[str, str]]:
    """Return what the env and its oracle say on a train task, as (speaker, text)."""
    said = [("env", str(env.reset(seed=0).observation))]
    for _ in range(_MAX_EXAMPLE_TURNS):
        try:
            action = env.oracle()
        except NoOracle:
            break
        result = env.step(action)
        said += [("oracle", action), ("env", str(result.observation))]
        if result.terminated or result.truncated:
            said[-1] = (
                "env",
                f"{result.observation} [{result.info['envgym'].ending}, reward {result.reward:g}]".strip(),
            )
            break
    return said


def card_of(creator: Callable[..., object]) -> str | None:
    """Return the card of an env by its class or factory: `<module>.md` beside its module, or the README.md there."""
    module = Path(inspect.getfile(creator))
    for path in (module.with_suffix(".md"), module.parent / module.stem / "README.md", module.parent / "README.md"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None


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
