"""Means over seeds with Student's interval, and the smallest difference that so many seeds can show."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev, variance
from typing import NamedTuple

LEVEL = 0.95
POWER = 0.8
_HALVINGS = 60


class Mean(NamedTuple):
    """A mean over seeds and the ends of its interval."""

    value: float
    low: float
    high: float


def t_probability(t: float, freedom: int) -> float:
    """Return P(|T| <= t) of Student's distribution, exact for whole degrees of freedom.

    With theta = atan(t / sqrt(n)), c = cos(theta)^2: odd n: 2/pi (theta + sin cos (1 + 2/3 c + 2*4/(3*5) c^2 + ...)),
    (n - 1) / 2 terms; even n: sin (1 + 1/2 c + 1*3/(2*4) c^2 + ...), n / 2 terms. Source: Abramowitz and Stegun 26.7.3.
    """
    theta = math.atan(t / math.sqrt(freedom))
    is_odd = freedom % 2
    term, total = 1.0, 0.0
    for number in range(1, (freedom - is_odd) // 2 + 1):
        total += term
        term *= math.cos(theta) ** 2 * (2 * number - 1 + is_odd) / (2 * number + is_odd)
    if is_odd:
        return 2 / math.pi * (theta + math.sin(theta) * math.cos(theta) * total)
    return math.sin(theta) * total


def t_quantile(share: float, freedom: int) -> float:
    """Return t with P(T <= t) = share, for a share of at least one half."""
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < 2 * share - 1:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, freedom) < 2 * share - 1 else (low, middle)
    return (low + high) / 2


def t_interval(values: Sequence[float]) -> Mean:
    """Return the mean of independent values with its interval; one value has none, and its ends are infinite."""
    mean = fmean(values)
    if len(values) < 2:
        return Mean(mean, -math.inf, math.inf)
    half = t_quantile((1 + LEVEL) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Mean(mean, mean - half, mean + half)


def smallest_effect(spread: float, num_seeds: int) -> float:
    """Return the mean difference found with probability `POWER`: (t_{1-a/2} + t_power) spread / sqrt(n)."""
    freedom = num_seeds - 1
    return (t_quantile((1 + LEVEL) / 2, freedom) + t_quantile(POWER, freedom)) * spread / math.sqrt(num_seeds)


def pooled_spread(samples: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation within samples of equal size, their means left free."""
    return math.sqrt(fmean(variance(sample) for sample in samples))
