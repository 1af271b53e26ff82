"""Samples by task, and estimates of them with intervals, whose unit is the task.

A success rate, and pass@k, has Wilson's interval at the effective number of trials; the mean of other values has the
bootstrap over tasks. Which one a figure has never depends on the values.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from envgym.core.turns import reaches
from envgym.errors import InvalidInput

FloatArray: TypeAlias = npt.NDArray[np.float64]

Samples: TypeAlias = Mapping[str, Sequence[float]]
"""Task id -> the values (success, score or reward) of its samples; a bool counts as 0 or 1."""


def successes_of(rewards: Mapping[str, Sequence[float | None]], success_at: float) -> dict[str, list[bool | None]]:
    """Return task id -> whether the reward of each sample is at least `success_at`; None stays None: it is invalid."""
    return {
        task_id: [None if reward is None else reaches(reward, success_at) for reward in of_task]
        for task_id, of_task in rewards.items()
    }


def task_means(samples: Samples) -> dict[str, float]:
    """Return the mean value of each task.

    Raises:
        InvalidInput: no task, a task without samples, or a value that is not finite.
    """
    InvalidInput.unless(samples, "samples", "hold at least one task", "none", where="statistics", do="evaluate first")
    means: dict[str, float] = {}
    for task_id, values in samples.items():
        if len(values) == 0:
            raise InvalidInput.of("a task", "have a sample", "none", where=f"task {task_id}", do="leave the task out")
        mean = float(np.mean(np.asarray(values, dtype=np.float64)))
        if not np.isfinite(mean):
            do = "mark invalid samples as None and use bound_invalid"
            raise InvalidInput.of("sample values", "be finite", list(values), where=f"task {task_id}", do=do)
        means[task_id] = mean
    return means


def count_samples(samples: Samples) -> int:
    """Return the number of samples over all tasks."""
    return sum(len(values) for values in samples.values())


DEFAULT_LEVEL = 0.95
DEFAULT_NUM_RESAMPLES = 10_000
"""Puts the Monte-Carlo error of a 2.5 % quantile at about a hundredth of the interval's width."""

_ROUNDING = 1e-9
"""Means of the same shares differ by about 1e-16."""

_BLOCK = 1_000_000
"""Counts drawn at once, so that memory stays at some megabytes for any number of tasks."""


class IntervalMethod(StrEnum):
    """How an interval was made."""

    WILSON_BY_TASK = "Wilson, clustered by task"
    """Of success rates and pass rates; see `wilson_interval`."""
    ADJUSTED_WALD_BY_TASK = "adjusted Wald, paired by task"
    """Of the difference of two runs; see `compare_paired`."""
    BOOTSTRAP_BY_TASK = "bootstrap by task"
    """Of means of other values; see `bootstrap_interval`, and `estimate_interquartile_mean` for strata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    level: float
    """Nominal coverage, such as 0.95."""
    method: IntervalMethod

    def __post_init__(self) -> None:
        check_level(self.level)
        if not self.low <= self.high:
            got = f"[{self.low}, {self.high}]"
            raise InvalidInput.of("an interval", "have low <= high", got, where="Interval", do="swap its ends")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over tasks with its interval and what it rests on."""

    value: float
    interval: Interval
    num_tasks: int
    num_samples: int

    @property
    def percent(self) -> str:
        """A share in words, such as `45.0% [38.1%, 52.0%]`."""
        return f"{self.value:.1%} [{self.interval.low:.1%}, {self.interval.high:.1%}]"

    @property
    def points(self) -> str:
        """A difference of shares in words, such as `+12.0 points [+4.1, +19.8]`."""
        return f"{self.value * 100:+.1f} points [{self.interval.low * 100:+.1f}, {self.interval.high * 100:+.1f}]"


def wilson_interval(task_values: Collection[float], *, num_trials: int, level: float = DEFAULT_LEVEL) -> Interval:
    """Return Wilson's score interval for the mean of one share in [0, 1] per task, clustered by task.

    (p + z^2/2m -+ z sqrt(p(1-p)/m + z^2/4m^2)) / (1 + z^2/m), with p the mean over the n tasks and m the effective
    number of trials: p(1-p) n / s^2, where s^2 is the variance between tasks, divided by 1 + (z^2 + 1) / 2(n-1) as
    that variance is estimated. m lies between n (the samples of a task are all alike, and where p is 0 or 1) and
    `num_trials` (the tasks are all alike). With one sample per task it is Wilson's interval of n trials.

    Source: Wilson 1927; the effective number of trials is that of Korn and Graubard 1998, who use Student's quantile,
    here to first order.

    Args:
        task_values: one share per task.
        num_trials: independent trials if all tasks were alike: the number of samples.
        level: nominal coverage.

    Raises:
        InvalidInput: no value, one outside [0, 1], or fewer trials than tasks.
    """
    check_level(level)
    values = _sort(task_values)
    if not -_ROUNDING <= values[0] <= values[-1] <= 1 + _ROUNDING:
        got, do = f"values from {values[0]} to {values[-1]}", "use bootstrap_interval for other values"
        raise InvalidInput.of("task values", "lie in [0, 1]", got, where="wilson_interval", do=do)
    must, do = f"be at least the number of tasks, {len(values)}", "give the number of samples"
    InvalidInput.unless(num_trials >= len(values), "num_trials", must, num_trials, where="wilson_interval", do=do)
    share = _mean(values)
    z_squared = NormalDist().inv_cdf((1 + level) / 2) ** 2
    trials = _effective_trials(values, num_trials, z_squared)
    spread = math.sqrt(z_squared * (max(share * (1 - share), 0.0) / trials + z_squared / (4 * trials**2)))
    center = share + z_squared / (2 * trials)
    scale = 1 + z_squared / trials
    # At the edges the formula gives 0 and 1 exactly, rounding does not.
    low = 0.0 if share <= 0 else min((center - spread) / scale, share)
    high = 1.0 if share >= 1 else max((center + spread) / scale, share)
    return Interval(low=low, high=high, level=level, method=IntervalMethod.WILSON_BY_TASK)


def _effective_trials(values: FloatArray, num_trials: int, z_squared: float) -> float:
    """Return how many independent trials tell as much as these shares of tasks; see `wilson_interval`."""
    num_tasks, share = len(values), _mean(values)
    if num_tasks == 1 or share * (1 - share) < _ROUNDING:
        return num_tasks
    variance = float(values.var(ddof=1)) * (1 + (z_squared + 1) / (2 * (num_tasks - 1)))
    if variance < _ROUNDING:
        return num_trials
    return min(max(share * (1 - share) * num_tasks / variance, num_tasks), num_trials)


def bootstrap_interval(
    task_values: Collection[float],
    *,
    rng: np.random.Generator,
    level: float = DEFAULT_LEVEL,
    num_resamples: int = DEFAULT_NUM_RESAMPLES,
) -> Interval:
    """Return the percentile bootstrap interval for the mean of one value per task.

    Tasks are drawn with replacement, each with all its samples, so correlation within a task is respected. The values
    are sorted first: names and order of the tasks do not matter. Below about 30 tasks it covers a little less than
    `level`; where all tasks have the same value it is that value.

    Raises:
        InvalidInput: no value, or one that is not finite.
    """
    check_level(level)
    values = _sort(task_values)
    mean = _mean(values)
    means = _resampled_means(values, rng=rng, num_resamples=num_resamples)
    low, high = (float(end) for end in np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))
    # Rounding, or a tiny level, can put the estimate just outside.
    return Interval(low=min(low, mean), high=max(high, mean), level=level, method=IntervalMethod.BOOTSTRAP_BY_TASK)


def estimate_mean(samples: Samples, *, rng: np.random.Generator) -> Estimate:
    """Return the mean over tasks of the mean over a task's samples, with its bootstrap interval."""
    means = list(task_means(samples).values())
    interval = bootstrap_interval(means, rng=rng)
    return Estimate(
        value=_mean(_sort(means)), interval=interval, num_tasks=len(means), num_samples=count_samples(samples)
    )


def estimate_success(samples: Samples) -> Estimate:
    """Return the success rate (values in [0, 1]) with Wilson's interval, clustered by task."""
    num_samples = count_samples(samples)
    return estimate_share(task_means(samples).values(), num_samples=num_samples, num_trials=num_samples)


def estimate_share(task_values: Collection[float], *, num_samples: int, num_trials: int) -> Estimate:
    """Return the mean of one share in [0, 1] per task, with the interval of `wilson_interval`."""
    interval = wilson_interval(task_values, num_trials=num_trials)
    return Estimate(
        value=_mean(_sort(task_values)), interval=interval, num_tasks=len(task_values), num_samples=num_samples
    )


def check_level(level: float) -> None:
    """Refuse a level outside (0, 1)."""
    InvalidInput.unless(0 < level < 1, "level", "lie in (0, 1)", level, where="an interval", do="use 0.95 for 95 %")


def _sort(task_values: Collection[float]) -> FloatArray:
    """Return the values in rising order, so that the order of tasks never matters; or say what is wrong with them."""
    values = np.sort(np.asarray(list(task_values), dtype=np.float64))
    if len(values) == 0:
        raise InvalidInput.of("task values", "hold at least one task", "none", where="statistics", do="evaluate first")
    if not np.isfinite(values).all():
        raise InvalidInput.of("task values", "be finite", values.tolist(), where="statistics", do="drop invalid ones")
    return values


def _mean(values: FloatArray) -> float:
    """Return the mean of a sorted array; of equal values, that value to the last bit."""
    return float(values[0]) if values[-1] - values[0] <= _ROUNDING else float(values.mean())


def _resampled_means(values: FloatArray, *, rng: np.random.Generator, num_resamples: int) -> FloatArray:
    """Return the means of resamples; of tasks with the same value only their number is drawn."""
    distinct, counts = np.unique(values, return_counts=True)
    block = max(1, _BLOCK // len(distinct))
    means = np.empty(num_resamples)
    for start in range(0, num_resamples, block):
        stop = min(start + block, num_resamples)
        draws = rng.multinomial(len(values), counts / len(values), size=stop - start)
        means[start:stop] = draws @ distinct / len(values)
    return means
