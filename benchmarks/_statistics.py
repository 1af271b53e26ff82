"""Means over seeds with Student's interval, and the smallest difference that so many seeds can show."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev, variance
from typing import NamedTuple

from scipy.stats import t  # type: ignore[import-untyped]  # shipped without types

LEVEL = 0.95
POWER = 0.8


class Mean(NamedTuple):
    """A mean over seeds and the ends of its interval."""

    value: float
    low: float
    high: float


def t_quantile(share: float, freedom: int) -> float:
    """Return t with P(T <= t) = share of Student's distribution."""
    return float(t.ppf(share, freedom))


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
