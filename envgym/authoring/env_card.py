"""What there is to know about an environment without an agent: its facts, an episode of its oracle, its card."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from envgym.config.arguments import parameters
from envgym.config.plugins import path_of
from envgym.core.tasks import Split
from envgym.env import NoOracle
from envgym.wrappers import AnyEnv

_MAX_EXAMPLE_TURNS = 20


def describe(env: AnyEnv, creator: Callable[..., object]) -> dict[str, Any]:  # JSON
    """Return the facts about an environment as JSON types; `creator` is the class or function that made it."""
    inner = env.unwrapped
    text = inspect.getdoc(_written(creator)) or inspect.getdoc(type(inner)) or ""
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
        "parameters": defaults_of(creator),
        "tools": {name: tool.spec.description for name, tool in inner.toolset().items()},
        "system_prompt": inner.system_prompt,
    }


def defaults_of(creator: Callable[..., object]) -> dict[str, str]:
    """Return the default of every keyword argument of an env, as Python writes it."""
    return {name: _default_of(item) for name, item in (parameters(creator) or {}).items()}


def example_episode(env: AnyEnv, *, actions: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return an episode on a train task, as (speaker, text).

    Args:
        env: as `make` returns it.
        actions: the first actions; all others are those of the oracle.
    """
    messages = [("env", str(env.reset(seed=0).observation))]
    for turn in range(_MAX_EXAMPLE_TURNS):
        try:
            action = actions[turn] if turn < len(actions) else env.oracle()
        except NoOracle:
            break
        result = env.step(action)
        messages += [("oracle", action), ("env", str(result.observation))]
        if result.terminated or result.truncated:
            messages[-1] = (
                "env",
                f"{result.observation} [{result.info['envgym'].ending}, reward {result.reward:g}]".strip(),
            )
            break
    return messages


def card_of(creator: Callable[..., object]) -> str | None:
    """Return the card of an env by its class or factory: `<module>.md` beside its module, or the README.md there."""
    module = Path(inspect.getfile(_written(creator)))
    for path in (module.with_suffix(".md"), module.parent / module.stem / "README.md", module.parent / "README.md"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None


def _written(creator: Callable[..., object]) -> Callable[..., object]:
    """Return the class or function behind one that is given the id first."""
    return creator.func if isinstance(creator, partial) else creator


def _default_of(parameter: inspect.Parameter) -> str:
    return "required" if parameter.default is parameter.empty else repr(parameter.default)
