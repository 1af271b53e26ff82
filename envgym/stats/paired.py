"""Paired comparison of two runs over the same tasks."""

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np

from envgym.errors import InvalidInput
from envgym.stats.intervals import (
    DEFAULT_LEVEL,
    Estimate,
    FloatArray,
    Interval,
    IntervalMethod,
    Samples,
    check_level,
    count_samples,
    task_means,
)

_MAX_EXACT = 16
"""Up to this many changed tasks all 2^m sign patterns are summed."""
_NUM_FLIPS = 20_000
"""Monte-Carlo sign patterns: the standard error of a p-value of 0.05 is 0.0015."""
_FLIP_BLOCK = 1_000_000
_TIE = 1e-9
"""Two differences closer than this are the same: sums of shares round at about 1e-16."""
_IDS_SHOWN = 3


class PValueMethod(StrEnum):
    """How a p-value was made."""

    EXACT = "exact sign flip"
    MONTE_CARLO = "monte-carlo sign flip"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """What changed from one run to another over the same tasks."""

    difference: Estimate
    """Mean over tasks of (after - before), with its interval clustered by task; its samples are those of both runs."""
    mean_before: float
    """Mean over the compared tasks."""
    mean_after: float
    """Mean over the compared tasks."""
    p_value: float
    """Two-sided, for the hypothesis that the sign of every task's difference is a coin flip."""
    p_value_method: PValueMethod
    wins: int
    """Tasks with a higher mean after."""
    losses: int
    """Tasks with a lower mean after."""
    ties: int
    num_left_out: int
    """Tasks only one run has; 0 unless an intersection was asked for."""

    @property
    def num_tasks(self) -> int:
        return self.difference.num_tasks


def compare_paired(
    before: Samples,
    after: Samples,
    *,
    rng: np.random.Generator,
    intersect: bool = False,
    max_change: float = 1.0,
) -> PairedComparison:
    """Compare two runs task by task: difference of the per-task means, interval clustered by task, sign-flip p-value.

    Pairing removes the spread of difficulty between tasks, which is most of the variance of either run alone.

    Args:
        before: samples by task id; a task may have any number of samples, other than in `after` too.
        after: samples by task id.
        rng: drives the sign flips, where many tasks changed.
        intersect: compare the common tasks where the ids differ, instead of refusing.
        max_change: the largest difference that a task can have: 1 for successes and scores in [0, 1].

    Raises:
        InvalidInput: the task ids differ and `intersect` is not set, no task is common, or one changed by more.
    """
    task_ids = _common_tasks(before, after, intersect=intersect)
    pair_before = {task_id: before[task_id] for task_id in task_ids}
    pair_after = {task_id: after[task_id] for task_id in task_ids}
    means_before, means_after = task_means(pair_before), task_means(pair_after)
    differences = paired_differences(pair_before, pair_after)
    difference = Estimate(
        value=float(differences.mean()),
        interval=adjusted_wald_interval(differences, max_change=max_change),
        num_tasks=len(task_ids),
        num_samples=count_samples(pair_before) + count_samples(pair_after),
    )
    p_value, method = sign_flip_p_value(differences, rng=rng)
    return PairedComparison(
        difference=difference,
        mean_before=float(np.mean(list(means_before.values()))),
        mean_after=float(np.mean(list(means_after.values()))),
        p_value=p_value,
        p_value_method=method,
        wins=int((differences > 0).sum()),
        losses=int((differences < 0).sum()),
        ties=int((differences == 0).sum()),
        num_left_out=len(before.keys() ^ after.keys()),
    )


def paired_differences(before: Samples, after: Samples) -> FloatArray:
    """Return the differences of the means of tasks, [N], sorted by size: the order of the tasks does not matter.

    Raises: InvalidInput: the tasks are not the same.
    """
    task_ids = _common_tasks(before, after, intersect=False)
    means_before, means_after = task_means(before), task_means(after)
    differences = np.sort(np.array([means_after[task_id] - means_before[task_id] for task_id in task_ids]))
    differences[np.abs(differences) < _TIE] = 0.0
    return differences


def adjusted_variance(differences: FloatArray, *, max_change: float = 1.0) -> float:
    """Return the variance of the differences with the two tasks of `adjusted_wald_interval`, which is never 0."""
    num_tasks = len(differences) + 2
    mean = float(differences.sum()) / num_tasks
    return (float((differences**2).sum()) + max_change**2) / num_tasks - mean**2


def adjusted_wald_interval(
    differences: FloatArray, *, max_change: float = 1.0, level: float = DEFAULT_LEVEL
) -> Interval:
    """Return the interval of the mean of paired differences: the normal one after two tasks are added.

    One of them did not change, half a task rose by `max_change` and half a task fell by it; so a run that changes
    nothing, or all tasks alike, claims no certainty. Source: Agresti and Min 2005 for single successes.

    Args:
        differences: [N], one per task.
        max_change: the largest size of a difference.
        level: nominal coverage.

    Raises: InvalidInput: no difference, or one that is larger.
    """
    check_level(level)
    largest = float(np.abs(differences).max(initial=0.0))
    if len(differences) == 0 or largest > max_change + _TIE:
        must, got = f"be of some tasks and at most {max_change}", largest if len(differences) else "none"
        raise InvalidInput.of("differences", must, got, where="adjusted_wald_interval", do="pass their max_change")
    num_tasks = len(differences) + 2
    mean = float(differences.sum()) / num_tasks
    variance = adjusted_variance(differences, max_change=max_change)
    half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(variance / num_tasks)
    estimate = float(differences.mean())
    low, high = max(min(mean - half, estimate), -max_change), min(max(mean + half, estimate), max_change)
    return Interval(low=low, high=high, level=level, method=IntervalMethod.ADJUSTED_WALD_BY_TASK)


def sign_flip_p_value(differences: FloatArray, *, rng: np.random.Generator) -> tuple[float, PValueMethod]:
    """Return the two-sided sign-flip p-value: the share of sign patterns s with |sum s_i d_i| >= |sum d_i|.

    Exact up to 16 non-zero differences; beyond, (1 + hits) / (1 + draws) over seeded draws, which is never 0. For
    differences of -1 and 1 it is McNemar's exact (sign) test.

    Args:
        differences: [N], one per task; zeros carry no sign and drop out.
    """
    # Sorted by size, so that the order of the tasks does not matter.
    sizes = np.sort(np.abs(differences[differences != 0]))
    observed = abs(float(differences.sum())) - _TIE
    if len(sizes) <= _MAX_EXACT:
        sums = np.zeros(1)
        for size in sizes:
            sums = np.concatenate([sums + size, sums - size])
        return float((np.abs(sums) >= observed).mean()), PValueMethod.EXACT
    hits, block = 0, max(1, _FLIP_BLOCK // len(sizes))
    for start in range(0, _NUM_FLIPS, block):
        num_draws = min(block, _NUM_FLIPS - start)
        signs = rng.integers(2, size=(num_draws, len(sizes)), dtype=np.int8) * 2 - 1
        hits += int((np.abs(signs @ sizes) >= observed).sum())
    return (1 + hits) / (1 + _NUM_FLIPS), PValueMethod.MONTE_CARLO


def _common_tasks(before: Samples, after: Samples, *, intersect: bool) -> list[str]:
    common = sorted(before.keys() & after.keys())
    only_before, only_after = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    if (only_before or only_after) and not intersect:
        got = f"{len(only_before)} only before{_some(only_before)} and {len(only_after)} only after{_some(only_after)}"
        do = "evaluate both on the same tasks, or pass intersect=True to compare those in common"
        raise InvalidInput.of("the task ids of both runs", "be the same", got, where="compare_paired", do=do)
    if not common:
        got = f"{len(before)} tasks before, {len(after)} after, none in common"
        do = "evaluate both on the same tasks"
        raise InvalidInput.of("the two runs", "share a task", got, where="compare_paired", do=do)
    return common


def _some(task_ids: list[str]) -> str:
    """Return the first ids in brackets, or nothing."""
    if not task_ids:
        return ""
    return f" ({', '.join(task_ids[:_IDS_SHOWN])}{', ...' if len(task_ids) > _IDS_SHOWN else ''})"
