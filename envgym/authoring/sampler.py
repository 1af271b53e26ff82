"""What generators of tasks draw with."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

ItemT = TypeVar("ItemT")


class Unsuitable(Exception):
    """What was drawn does not suit the task; draw again."""


class Sampler:
    """Draws numbers and items from a generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def between(self, low: int, high: int) -> int:
        """Draw a whole number from `low` to `high`, both included."""
        return low + int(self.rng.integers(high - low + 1))

    def one(self, items: Sequence[ItemT]) -> ItemT:
        """Draw an item. Raises: Unsuitable: there is none."""
        if not items:
            raise Unsuitable
        return items[int(self.rng.integers(len(items)))]

    def some(self, items: Sequence[ItemT], count: int) -> list[ItemT]:
        """Draw different items, in random order. Raises: Unsuitable: there are fewer."""
        if count > len(items):
            raise Unsuitable
        return [items[int(place)] for place in self.rng.choice(len(items), size=count, replace=False)]
