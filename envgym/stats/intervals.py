"""Samples by task, and estimates of them with intervals: bootstrap clustered by task, Wilson for one proportion."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from envgym.errors import InvalidInput

FloatArray: TypeAlias = npt.NDArray[np.float64]

Samples: TypeAlias = Mapping[str, Sequence[float]]
"""Task id -> the values (success, score or reward) of its samples; a bool counts as 0 or 1."""


def successes_of(rewards: Mapping[str, Sequence[float | None]], success_at: float) -> dict[str, list[bool | None]]:
    """Return task id -> whether the reward of each sample is at least `success_at`; None stays None: it is invalid."""
    return {
        task_id: [None if reward is None else reward >= success_at for reward in of_task]
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

    BOOTSTRAP_BY_TASK = "bootstrap by task"
    WILSON = "wilson"
    WILSON_BY_TASK = "wilson by task"
    """Every task has the same value, so a bootstrap would claim certainty; see `bootstrap_interval`."""


class ValueRange(NamedTuple):
    """The smallest and the largest value a sample can have."""

    low: float
    high: float


UNIT_RANGE = ValueRange(0.0, 1.0)
"""Successes and scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    level: float
    """Nominal coverage, such as 0.95."""
    method: IntervalMethod

    def __post_init__(self) -> None:
        """Refuse an interval that is empty or has no valid level."""
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


def wilson_interval(num_successes: int, num_trials: int, *, level: float = DEFAULT_LEVEL) -> Interval:
    """Return Wilson's score interval for the success probability of independent trials.

    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), with p = successes/n.
    Use it where every task has one sample; several samples of a task are not independent.

    Raises:
        InvalidInput: no trial, or a number of successes outside [0, num_trials].
    """
    check_level(level)
    if num_trials < 1 or not 0 <= num_successes <= num_trials:
        got = f"{num_successes} of {num_trials}"
        raise InvalidInput.of(
            "successes", "lie in [0, trials] with trials >= 1", got, where="wilson_interval", do="check both"
        )
    share = num_successes / num_trials
    z_squared = NormalDist().inv_cdf((1 + level) / 2) ** 2
    spread = math.sqrt(z_squared * (share * (1 - share) / num_trials + z_squared / (4 * num_trials**2)))
    center = share + z_squared / (2 * num_trials)
    scale = 1 + z_squared / num_trials
    # At the edges the formula gives 0 and 1 exactly, rounding does not.
    low = 0.0 if num_successes == 0 else (center - spread) / scale
    high = 1.0 if num_successes == num_trials else (center + spread) / scale
    return Interval(low=low, high=high, level=level, method=IntervalMethod.WILSON)


def bootstrap_interval(
    task_values: Collection[float],
    *,
    rng: np.random.Generator,
    value_range: ValueRange | None = None,
    level: float = DEFAULT_LEVEL,
    num_resamples: int = DEFAULT_NUM_RESAMPLES,
) -> Interval:
    """Return the percentile bootstrap interval for the mean of one value per task.

    Tasks are drawn with replacement, each with all its samples, so correlation within a task is respected. The values
    are sorted first: names and order of the tasks do not matter. Below about 30 tasks it covers a little less than
    `level`.

    Where all n tasks have the same value c, no resample differs. If `value_range` = [a, b] is known, the share of tasks
    with another value is then below w = Wilson's upper end for 0 of n, and the interval is [c - w(c-a), c + w(b-c)].

    Raises:
        InvalidInput: no value, or one outside `value_range`.
    """
    check_level(level)
    values = _sort(task_values, value_range)
    mean = _mean(values)
    if not _same(values):
        means = _resampled_means(values, rng=rng, num_resamples=num_resamples)
        low, high = (float(end) for end in np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))
        method = IntervalMethod.BOOTSTRAP_BY_TASK
    elif value_range is None:
        low, high, method = mean, mean, IntervalMethod.BOOTSTRAP_BY_TASK
    else:
        other = wilson_interval(0, len(values), level=level).high
        low, high = mean - other * (mean - value_range.low), mean + other * (value_range.high - mean)
        method = IntervalMethod.WILSON_BY_TASK
    # Rounding, or a tiny level, can put the estimate just outside.
    return Interval(low=min(low, mean), high=max(high, mean), level=level, method=method)


def estimate_task_values(
    task_values: Collection[float],
    *,
    num_samples: int,
    rng: np.random.Generator,
    value_range: ValueRange | None = None,
) -> Estimate:
    """Return the mean of one value per task with its bootstrap interval."""
    interval = bootstrap_interval(task_values, rng=rng, value_range=value_range)
    value = _mean(_sort(task_values, value_range))
    return Estimate(value=value, interval=interval, num_tasks=len(task_values), num_samples=num_samples)


def estimate_mean(samples: Samples, *, rng: np.random.Generator, value_range: ValueRange | None = None) -> Estimate:
    """Return the mean over tasks of the mean over a task's samples, with its interval clustered by task."""
    means = task_means(samples).values()
    return estimate_task_values(means, num_samples=count_samples(samples), rng=rng, value_range=value_range)


def estimate_success(samples: Samples, *, rng: np.random.Generator) -> Estimate:
    """Return the success rate (values in [0, 1]) with its interval clustered by task."""
    return estimate_mean(samples, rng=rng, value_range=UNIT_RANGE)


def check_level(level: float) -> None:
    """Refuse a level outside (0, 1)."""
    InvalidInput.unless(0 < level < 1, "level", "lie in (0, 1)", level, where="an interval", do="use 0.95 for 95 %")


def _sort(task_values: Collection[float], value_range: ValueRange | None) -> FloatArray:
    """Return the values in rising order, or say what is wrong with them."""
    values = np.sort(np.asarray(list(task_values), dtype=np.float64))
    where = "bootstrap_interval"
    if len(values) == 0:
        raise InvalidInput.of("task values", "hold at least one task", "none", where=where, do="evaluate first")
    if not np.isfinite(values).all():
        raise InvalidInput.of("task values", "be finite", values.tolist(), where=where, do="drop invalid ones")
    if value_range is not None:
        low, high = value_range
        if not low - _ROUNDING <= values[0] <= values[-1] <= high + _ROUNDING:
            got, must = f"values from {values[0]} to {values[-1]}", f"lie in [{low}, {high}]"
            raise InvalidInput.of("task values", must, got, where=where, do="give the range they really have")
    return values


def _same(values: FloatArray) -> bool:
    """Tell whether all values of a sorted array are the same up to rounding."""
    return bool(values[-1] - values[0] <= _ROUNDING)


def _mean(values: FloatArray) -> float:
    """Return the mean of a sorted array; of equal values, that value to the last bit."""
    return float(values[0]) if _same(values) else float(values.mean())


def _resampled_means(values: FloatArray, *, rng: np.random.Generator, num_resamples: int) -> FloatArray:
    """Return the means of resamples; of tasks with the same value only their number is drawn."""
    distinct, counts = np.unique(values, return_counts=True)
    block = max(1, _BLOCK // len(distinct))
    means = np.empty(num_resamples)
    for start in range(0, num_resamples, block):
        stop = min(start + block, num_resamples)
        drawn = rng.multinomial(len(values), counts / len(values), size=stop - start)
        means[start:stop] = drawn @ distinct / len(values)
    return means
