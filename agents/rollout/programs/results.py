"""What a program returns or posts: an answer, a reward, or both. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from envgym.core.turns import Scored
from envgym.errors import InvalidInput

_KEYS = ("answer", "reward", "components")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """The result of a program; both fields may be missing."""

    answer: str | None = None
    """The final answer, for the env."""
    reward: Scored | None = None


def read_result(value: object, *, where: str) -> ProgramResult:
    """Read what a program returned: a text, a number, a mapping of answer, reward and components, or None.

    Raises: InvalidInput: it is something else, or a reward is no finite number.
    """
    if value is None or isinstance(value, str):
        return ProgramResult(answer=value)
    if isinstance(value, bool) or not isinstance(value, Real | Mapping):
        must, do = "be a text, a number, or a mapping of answer, reward and components", "return one of these"
        raise InvalidInput.of("result of the program", must, value, where=where, do=do)
    if not isinstance(value, Mapping):
        return ProgramResult(reward=read_reward({"reward": value}, where=where))
    _check_keys(value, where)
    answer = value.get("answer")
    if answer is not None and not isinstance(answer, str):
        raise InvalidInput.of("answer", "be text", answer, where=where, do="convert it to text")
    reward = read_reward(value, where=where) if value.get("reward") is not None else None
    if reward is None and value.get("components"):
        raise InvalidInput.of("components", "be those of a reward", "no reward", where=where, do="return the reward")
    return ProgramResult(answer=answer, reward=reward)


def read_reward(data: Mapping[str, Any], *, where: str) -> Scored:
    """Read a mapping of reward and components.

    Raises: InvalidInput: the reward or a component is missing or no finite number, or there is another key.
    """
    _check_keys(data, where)
    components = data.get("components")
    if components is None:
        components = {}
    if not isinstance(components, Mapping):
        do = "write name: number"
        raise InvalidInput.of("components", "be a mapping of names to numbers", components, where=where, do=do)
    parts = {str(name): _number(part, f"component {name}", where) for name, part in components.items()}
    return Scored(value=_number(data.get("reward"), "reward", where), components=parts)


def _check_keys(data: Mapping[str, Any], where: str) -> None:
    unknown = [key for key in data if key not in _KEYS]
    if unknown:
        do = "put further values into components"
        raise InvalidInput.of("key of the result", f"be one of {', '.join(_KEYS)}", unknown[0], where=where, do=do)


def _number(value: object, what: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        do = "give a number, or no reward: the episode is then invalid"
        raise InvalidInput.of(what, "be a finite number", value, where=where, do=do)
    return float(value)
