"""How an oracle guesses a hidden code: as one would who knows which codes there are, and the hints so far."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
"""One code per row."""

GUESSES_WEIGHED, CODES_WEIGHED = 40, 400
"""How many of the possible codes are considered as a guess, and how many as the code."""


def narrowing_guess(possible: Codes, hints: Callable[[Codes, Codes], NDArray[np.int64]]) -> Codes:
    """Return the one of the possible codes whose hint leaves the fewest at worst (of an even sample of them).

    `hints(codes, guess)` gives for each row of `codes` the hint that `guess` would get, as one number.
    """
    rest = possible[:: -(-len(possible) // CODES_WEIGHED)]

    def left_at_worst(guess: Codes) -> int:
        return int(np.bincount(hints(rest, guess)).max())

    return min(possible[:: -(-len(possible) // GUESSES_WEIGHED)], key=left_at_worst)
