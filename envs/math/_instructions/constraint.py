"""What a constraint is, and what a kind of constraints has to know."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from envgym.core.json_types import JsonValue
from envgym.envs.math._instructions.outline import Outline
from envgym.envs.math._instructions.written import WrittenText

NO_LIMIT = 0
"""As the highest number of a range."""


@dataclass(frozen=True, slots=True, order=True)
class Constraint:
    """A kind with its numbers and texts, whose meaning the kind knows."""

    kind: str
    numbers: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()

    def to_json(self) -> list[JsonValue]:
        return [self.kind, list(self.numbers), list(self.texts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawContext:
    rng: np.random.Generator
    topic: str
    related: Sequence[str]
    """Words that belong to the topic and are in no constraint yet."""
    outline: Outline
    """What the constraints drawn so far ask for."""
    measure: Callable[[Outline], WrittenText]
    """Write a text for an outline: what can be asked for is read from it."""

    def pick(self, items: Sequence[str], count: int = 1) -> tuple[str, ...]:
        """Draw different items; alphabetical, so that one set is one constraint."""
        return tuple(sorted(items[int(at)] for at in self.rng.choice(len(items), size=count, replace=False)))

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintKind:
    draw: Callable[[DrawContext], tuple[tuple[int, ...], tuple[str, ...]]] = lambda context: ((), ())
    """Draw numbers and texts that agree with what was drawn before."""
    holds: Callable[[WrittenText, Constraint], bool]
    plan: Callable[[Outline, Constraint], Outline]
    """Add what a text needs that meets it."""
    excludes: frozenset[str] = field(default_factory=frozenset)
    """Kinds that it cannot stand beside, or would make meaningless; it need only be said by one of two."""


def in_range(count: int, numbers: Sequence[int]) -> bool:
    """Tell whether a count lies in the range that the first two numbers are."""
    low, high = numbers[0], numbers[1]
    return low <= count and (high == NO_LIMIT or count <= high)


def say_range(numbers: Sequence[int], one: str, many: str) -> str:
    """Write a range: exactly 3 bullets, at least 1 word, 20 to 40 words."""
    low, high = numbers[0], numbers[1]
    if low == high:
        return f"exactly {low} {one if low == 1 else many}"
    if high == NO_LIMIT:
        return f"at least {low} {one if low == 1 else many}"
    return f"at most {high} {one if high == 1 else many}" if low == 0 else f"{low} to {high} {many}"
