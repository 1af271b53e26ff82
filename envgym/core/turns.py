"""What one turn was, what it paid and cost, and how an episode ended.

A reward is a value or it is invalid; there is no silent zero.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from numbers import Real

from envgym.core.frozen import quick_init
from envgym.core.messages import Action, Observation
from envgym.errors import InvalidInput


class Ending(StrEnum):
    """Why an episode stopped: the env ended it, a budget ended it, or something failed."""

    TERMINATED = "TERMINATED"
    TRUNCATED_TURNS = "TRUNCATED_TURNS"
    TRUNCATED_TOKENS = "TRUNCATED_TOKENS"
    TRUNCATED_TIME = "TRUNCATED_TIME"
    TRUNCATED_BUDGET = "TRUNCATED_BUDGET"
    """A search that answers ran out of its counted budget."""
    ERROR_ENV = "ERROR_ENV"
    ERROR_TOOL_INFRA = "ERROR_TOOL_INFRA"
    ERROR_POLICY = "ERROR_POLICY"
    ERROR_PARTY = "ERROR_PARTY"
    ERROR_ABORTED = "ERROR_ABORTED"
    """The collector gave the episode up (straggler, shutdown), or a search whose budget for the group was spent."""

    @property
    def is_error(self) -> bool:
        """True where infrastructure failed: the reward is invalid, not 0."""
        return self.name.startswith("ERROR_")


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A reward that counts."""

    value: float
    """Any finite number; a truncated episode's value too: its ending is `TRUNCATED_*`."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Named parts as the rubric gave them, before weighting."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise InvalidInput.of(
                "reward", "be a finite number", self.value, where="Scored", do="record Invalid instead"
            )
        for name, part in self.components.items():
            if not math.isfinite(part):
                do = "leave the component out, or record Invalid instead"
                raise InvalidInput.of(f"component {name}", "be a finite number", part, where="Scored", do=do)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """A reward that does not exist because infrastructure failed."""

    cause: Ending
    """One of the `ERROR_*` endings."""
    reason: str
    """What failed, in one sentence."""

    def __post_init__(self) -> None:
        if not self.cause.is_error:
            raise InvalidInput.of(
                "cause", "be an ERROR_ ending", self.cause, where="Invalid", do="record Scored instead"
            )


Reward = Scored | Invalid
"""What one turn, or a whole episode, paid."""

REWARD_ROUNDING = 1e-9
"""Rewards that differ by no more are equal: n payments of 1/n add up to 1 only within the rounding of floats."""


def reaches(value: float, threshold: float) -> bool:
    """Return whether a reward is at least `threshold`, up to `REWARD_ROUNDING`."""
    return value >= threshold - REWARD_ROUNDING


def is_success(reward: Reward, success_at: float) -> bool:
    """Return whether a reward is valid and at least `success_at`, up to `REWARD_ROUNDING`."""
    return isinstance(reward, Scored) and reaches(reward.value, success_at)


ZERO = Scored(value=0.0)


def as_number(value: object) -> float | None:
    """Return a number of any type as a float, also a bool, a Decimal, or a 0-d array or tensor; else None."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, Real | Decimal):
        return None
    try:
        return float(value)
    except (OverflowError, ValueError):  # an integer beyond the floats; a signalling NaN
        return math.nan


def total(rewards: Iterable[Reward]) -> Reward:
    """Add the turn rewards of an episode: values and components add, one invalid makes the sum invalid."""
    value = 0.0
    components: dict[str, float] = {}
    for reward in rewards:
        if isinstance(reward, Invalid):
            return reward
        value += reward.value
        for name, part in reward.components.items():
            components[name] = components.get(name, 0.0) + part
    return Scored(value=value, components=components)


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Counted spending; costs add."""

    tokens_generated: int = 0
    tokens_prefilled: int = 0
    """Prompt tokens that the engine had to compute (not served from its cache)."""
    tool_calls: int = 0
    env_steps: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """The env's side of a finished turn; lives on the node that ends the turn."""

    action: Action
    observation: Observation
    reward: Reward = ZERO
    tool_errors: int = 0
    """Calls that were malformed or that a tool refused."""
