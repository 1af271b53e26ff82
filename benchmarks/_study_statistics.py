"""Statistics of studies over seeds: means with Student's interval, paired differences, what so many seeds can show.

Statistics over tasks are those of `envgym.stats`. Shares are fractions; pages print them in percent and in points.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev, variance
from typing import NamedTuple

import numpy as np
from scipy.stats import t, ttest_1samp  # type: ignore[import-untyped]  # shipped without types

from envgym.agents.evaluation.play import EvalRecord
from envgym.stats import PairedComparison

LEVEL = 0.95
POWER = 0.8


class Mean(NamedTuple):
    """A mean over seeds or tasks and the ends of its interval."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    mean: Mean
    p_value: float
    """Of the paired t-test, two-sided."""


def solved(record: EvalRecord) -> dict[str, list[float]]:
    """Return task id -> success of each sample; an invalid episode is a failure."""
    return {
        task: [float(reward is not None and reward >= record.success_at) for reward in rewards]
        for task, rewards in record.rewards.items()
    }


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


def compare(differences: Sequence[float]) -> Comparison:
    """Test whether the mean of two or more paired differences is 0; where all are equal p is 0, or 1 if they are 0."""
    if len(set(differences)) == 1:
        return Comparison(t_interval(differences), float(differences[0] == 0))
    return Comparison(t_interval(differences), float(ttest_1samp(differences, 0.0).pvalue))


def minimum_detectable_effect(spread: float, num_seeds: int, *, freedom: int | None = None) -> float:
    """Return the mean difference that is detected with probability `POWER`: (t_{1-a/2} + t_power) spread / sqrt(n).

    `freedom` is that of the estimate of the spread, by default n - 1.
    """
    freedom = num_seeds - 1 if freedom is None else freedom
    return (t_quantile((1 + LEVEL) / 2, freedom) + t_quantile(POWER, freedom)) * spread / math.sqrt(num_seeds)


def detectable_by_interval(paired: PairedComparison, num_tasks: int) -> float:
    """Return the difference that so many tasks detect with probability `POWER`, by the width of a pilot's interval."""
    interval, z = paired.difference.interval, NormalDist().inv_cdf
    to_edge = z((1 + LEVEL) / 2)
    error = (interval.high - interval.low) / 2 / to_edge * math.sqrt(paired.num_tasks / num_tasks)
    return error * (to_edge + z(POWER))


def pooled_spread(samples: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation within samples of equal size, their means left free."""
    return math.sqrt(fmean(variance(sample) for sample in samples))


def pooled_intervals(samples: Mapping[str, Sequence[float]], *, level: float = LEVEL) -> dict[str, Mean]:
    """Return each sample's mean with its interval by one spread for all, which few seeds then estimate better.

    The freedom is that of all samples together; samples must be of equal size, of at least 2.
    """
    num_seeds = len(next(iter(samples.values())))
    quantile = t_quantile((1 + level) / 2, len(samples) * (num_seeds - 1))
    half = quantile * pooled_spread(list(samples.values())) / math.sqrt(num_seeds)
    return {name: Mean(mean := fmean(values), mean - half, mean + half) for name, values in samples.items()}


def combined_p_value(comparisons: Sequence[PairedComparison]) -> float:
    """Return the two-sided p-value of several comparisons by Stouffer's sum of z."""
    normal = NormalDist()
    scores = [math.copysign(normal.inv_cdf(1 - of.p_value / 2), of.difference.value) for of in comparisons]
    return 2 * (1 - normal.cdf(abs(sum(scores)) / len(scores) ** 0.5))


def area(points: Sequence[Sequence[float]], budget: float) -> float:
    """Return the mean of the metric over [0, budget] tokens, linear between the points; the last one reaches it."""
    total, (before, low) = 0.0, points[0]
    for spent, skill in points[1:]:
        end = min(spent, budget)
        at_end = low + (skill - low) * (end - before) / (spent - before)
        total += (end - before) * (low + at_end) / 2
        before, low = spent, skill
        if spent >= budget:
            break
    return total / budget


def interpolated(points: Sequence[Sequence[float]], spent: float) -> float:
    """Return the metric after so many tokens, linear between the points."""
    curve = np.asarray(points, dtype=np.float64)
    return float(np.interp(spent, curve[:, 0], curve[:, 1]))
