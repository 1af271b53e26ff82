"""Aggregates of samples beside the mean: the inter-quartile mean of all, the best and the majority of a task's."""

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from envgym.errors import InvalidInput
from envgym.stats.intervals import (
    DEFAULT_LEVEL,
    Estimate,
    FloatArray,
    Interval,
    IntervalMethod,
    Samples,
    count_samples,
    task_means,
)

_TRIMMED = 0.25
_NUM_RESAMPLES = 2000
_BATCH_VALUES = 2_000_000
"""Of resamples in memory at a time."""
_MAX_SUBSETS = 2000
"""Up to this many sets of k samples are enumerated; beyond, as many are drawn: a standard error of at most 0.011."""

Votes = Sequence[tuple[Hashable | None, float]]
"""Answer (None: there is none) and success of each sample of a task."""


def estimate_interquartile_mean(
    samples: Samples, *, rng: np.random.Generator, fixed_tasks: bool = False, level: float = DEFAULT_LEVEL
) -> Estimate:
    """Return the mean of all samples without a quarter at each end, with a percentile bootstrap interval.

    Source: 2108.13264. Its bootstrap is the one of `fixed_tasks`, for other samples of the same tasks. The default
    draws tasks, each with all its samples, for other tasks of the same source.

    Args:
        samples: values by task id; a task with more samples weighs more.
        rng: drives the bootstrap.
        fixed_tasks: keep the tasks, and draw the samples of each.
        level: nominal coverage.

    Raises: InvalidInput: no task, a value that is not finite, or fixed tasks of which one has a single sample.
    """
    from scipy.stats import bootstrap  # type: ignore[import-untyped]  # heavy; SciPy has no stubs

    task_means(samples)  # refuses what is empty or not finite
    # Sorted, so that names and order of the tasks do not matter.
    tasks = sorted((np.sort(np.asarray(values, dtype=np.float64)) for values in samples.values()), key=tuple)
    value = float(_trimmed_mean(np.concatenate(tasks)))
    low = high = value
    if fixed_tasks:
        fewest = min(map(len, tasks))
        do = "draw more samples per task, or leave fixed_tasks out"
        InvalidInput.unless(fewest > 1, "samples of a task", "be at least 2", fewest, where="fixed_tasks", do=do)
        result = bootstrap(
            tasks,
            lambda *resamples, axis: _trimmed_mean(np.concatenate(resamples, axis=axis), axis),
            n_resamples=_NUM_RESAMPLES,
            confidence_level=level,
            method="percentile",
            rng=rng,
        )
        low, high = result.confidence_interval
    elif len(tasks) > 1:
        result = bootstrap(
            [np.arange(len(tasks))],
            partial(_trimmed_mean_of, tasks),
            n_resamples=_NUM_RESAMPLES,
            batch=max(1, _BATCH_VALUES // sum(map(len, tasks))),
            confidence_level=level,
            method="percentile",
            rng=rng,
        )
        low, high = result.confidence_interval
    ends = {"low": min(float(low), value), "high": max(float(high), value)}
    interval = Interval(**ends, level=level, method=IntervalMethod.BOOTSTRAP_BY_TASK)
    return Estimate(value=value, interval=interval, num_tasks=len(tasks), num_samples=count_samples(samples))


def _trimmed_mean_of(tasks: Sequence[FloatArray], indices: npt.NDArray[np.int64], axis: int = -1) -> FloatArray:
    """Return the trimmed mean of all samples of tasks that were drawn, by their index along the last axis."""
    assert axis in (-1, indices.ndim - 1), "SciPy draws along the last axis"
    if len({len(task) for task in tasks}) == 1:
        values = np.stack(tasks)[indices]
        return _trimmed_mean(values.reshape(*indices.shape[:-1], -1))
    rows = indices.reshape(-1, indices.shape[-1])
    means = [_trimmed_mean(np.concatenate([tasks[number] for number in row])) for row in rows]
    return np.array(means).reshape(indices.shape[:-1])


def _trimmed_mean(values: FloatArray, axis: int = -1) -> FloatArray:
    """Return SciPy's `trim_mean`, whose checks of arguments take thirty times as long as its work here."""
    size = values.shape[axis]
    cut = int(_TRIMMED * size)
    mean: FloatArray = np.sort(values, axis=axis).take(range(cut, size - cut), axis=axis).mean(axis=axis)
    return mean


def best_of_n(values: Sequence[float], n: int) -> float:
    """Return the expected largest of n of these values, drawn without replacement; of successes it is pass@n.

    sum_i C(i, n-1) / C(N, n) x_i over the N values x_0 <= x_1 <= ...

    Raises: InvalidInput: n outside [1, N].
    """
    _check_draws(n, len(values))
    weights = [math.comb(rank, n - 1) for rank in range(len(values))]
    return math.fsum(w * x for w, x in zip(weights, sorted(values), strict=True)) / math.comb(len(values), n)


def majority_success(votes: Votes, k: int, *, rng: np.random.Generator) -> float:
    """Return the expected success of the most frequent answer of k samples, drawn without replacement.

    A sample without an answer has no vote; k of them fail. Of answers with equally many votes each is chosen alike. The
    success of an answer is the mean over the samples that gave it.

    Source: 2203.11171 (self-consistency).

    Args:
        votes: of the samples of a task.
        k: samples drawn.
        rng: draws the sets of k samples where there are more than 2000.

    Raises: InvalidInput: k outside [1, number of samples].
    """
    _check_draws(k, len(votes))
    success: dict[Hashable, float] = {}
    for answer in {answer for answer, _ in votes if answer is not None}:
        own = [value for other, value in votes if other == answer]
        success[answer] = math.fsum(own) / len(own)
    answers = [answer for answer, _ in votes]
    if math.comb(len(votes), k) <= _MAX_SUBSETS:
        outcomes = [_success_of_majority(subset, success) for subset in itertools.combinations(answers, k)]
    else:
        draws = (rng.choice(len(votes), size=k, replace=False) for _ in range(_MAX_SUBSETS))
        outcomes = [_success_of_majority([answers[place] for place in subset], success) for subset in draws]
    return math.fsum(outcomes) / len(outcomes)


def _success_of_majority(answers: Sequence[Hashable | None], success: Mapping[Hashable, float]) -> float:
    counts = Counter(answer for answer in answers if answer is not None)
    most = max(counts.values(), default=0)
    tied = [success[answer] for answer, count in counts.items() if count == most]
    return math.fsum(tied) / len(tied) if tied else 0.0


def _check_draws(k: int, num_samples: int) -> None:
    must, do = f"lie in [1, {num_samples}], the number of samples", "draw more samples per task, or fewer of them"
    InvalidInput.unless(1 <= k <= num_samples, "samples drawn", must, k, where="statistics", do=do)
