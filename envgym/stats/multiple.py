"""Several comparisons at once: Holm's correction of their p-values and of the levels of their intervals."""

from collections.abc import Sequence
from typing import NamedTuple

from envgym.errors import InvalidInput
from envgym.stats.power import DEFAULT_ALPHA


class HolmStep(NamedTuple):
    """What one of several comparisons is judged by."""

    p_value: float
    """Adjusted: the comparison is significant where it is at most alpha."""
    level: float
    """Nominal coverage of the interval at which the comparison is tested."""


def correct_by_holm(p_values: Sequence[float], *, alpha: float = DEFAULT_ALPHA) -> list[HolmStep]:
    """Return for each of m comparisons what it is judged by, so that any false one comes with probability <= alpha.

    The comparison of rank i = 1 ... m has p (m - i + 1), and at least that of rank i - 1. Ranks are tested at
    alpha / (m - i + 1) until one is not significant; all later ones stay at its level.

    Source: Holm 1979.

    Raises: InvalidInput: a p-value outside [0, 1].
    """
    steps: dict[int, HolmStep] = {}
    largest, left, is_over = 0.0, len(p_values), False
    for place in sorted(range(len(p_values)), key=lambda place: p_values[place]):
        p_value = p_values[place]
        InvalidInput.unless(0 <= p_value <= 1, "p-value", "lie in [0, 1]", p_value, where="Holm", do="correct it")
        largest = max(largest, min(1.0, p_value * (len(p_values) - len(steps))))
        steps[place] = HolmStep(largest, 1 - alpha / left)
        is_over = is_over or largest > alpha
        left -= not is_over
    return [steps[place] for place in range(len(p_values))]
