"""The pauses between attempts of a request. Pure: the caller measures the time, waits, and decides what it repeats."""

import math
from typing import Final, NamedTuple

PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""Statuses of HTTP after which the same request may succeed."""
_MOST_DOUBLINGS = 64
"""Further ones change no pause that anybody waits for."""


def read_retry_after(value: str | None) -> float | None:
    """Return the seconds of a header Retry-After; None: it is missing, or a date, which is left to the own backoff."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


class Backoff(NamedTuple):
    """Pauses that double up to a longest one."""

    first_s: float
    longest_s: float = math.inf

    def pause_s(self, attempt: int, *, left_s: float = math.inf, jitter: float = 0.0) -> float:
        """Return the seconds to wait after a failed attempt.

        Args:
            attempt: number of the attempt, from 0.
            left_s: seconds until the deadline, which no pause passes.
            jitter: number in [0, 1), drawn by the caller, which shortens the pause by up to half.
        """
        pause_s = min(self.first_s * 2.0 ** min(attempt, _MOST_DOUBLINGS), self.longest_s) * (1 - jitter / 2)
        return max(0.0, min(pause_s, left_s))
