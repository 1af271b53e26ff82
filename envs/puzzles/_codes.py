"""Games of a hidden code: the board with what its guesses earn, and how an oracle guesses from the hints so far."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
"""One code per row."""

GUESSES_WEIGHED, CODES_WEIGHED = 40, 400
"""How many of the possible codes are considered as a guess, and how many as the code."""

TURN_SHARE = 0.5
"""What places that are right are worth, with `turn_reward`, where the code is not found."""


@dataclass(frozen=True, slots=True)
class Board:
    """The hidden code, and what was guessed."""

    code: str
    guesses: tuple[str, ...] = ()
    best: int = 0
    """The most places that have been right in one guess."""
    paid: float = 0.0
    """Rewards of the turns so far."""

    def after(self, guess: str, right: int, *, turn_reward: bool) -> "Board":
        """Return the board after a guess with `right` places right: the code earns 1, other guesses a share by turn."""
        best = max(right, self.best)
        earned = float(guess == self.code) or turn_reward * TURN_SHARE * best / len(self.code)
        return Board(self.code, (*self.guesses, guess), best, earned)


def chance_score(hit: float, length: int, *, turn_reward: bool) -> float:
    """Return what blind guesses score at most: a share `hit` of the codes, else all places but one."""
    return hit + turn_reward * TURN_SHARE * (1 - hit) * (length - 1) / length


def narrowing_guess(possible: Codes, hints: Callable[[Codes, Codes], NDArray[np.int64]]) -> Codes:
    """Return the one of the possible codes whose hint leaves the fewest at worst (of an even sample of them).

    `hints(codes, guess)` gives for each row of `codes` the hint that `guess` would get, as one number.
    """
    rest = possible[:: -(-len(possible) // CODES_WEIGHED)]

    def left_at_worst(guess: Codes) -> int:
        return int(np.bincount(hints(rest, guess)).max())

    return min(possible[:: -(-len(possible) // GUESSES_WEIGHED)], key=left_at_worst)
