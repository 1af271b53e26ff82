"""Every interval holds the true value in 93 to 97 of 100 simulated evaluations, at the nominal 95.

`ENVGYM_COVERAGE_RUNS` is the number of simulated evaluations of a case: `make nightly` takes 20,000. Three standard
errors of the simulation are allowed beyond these bounds.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import beta, trim_mean  # type: ignore[import-untyped]  # SciPy has no stubs

from envgym.stats import (
    Interval,
    adjusted_wald_interval,
    bootstrap_interval,
    estimate_interquartile_mean,
    estimate_pass_rate,
    estimate_success,
    majority_success,
    pass_at_k,
    pass_hat_k,
    wilson_interval,
)

RUNS = int(os.environ.get("ENVGYM_COVERAGE_RUNS", "600"))
LOW, HIGH = 0.93, 0.97

Rates = np.ndarray
"""[N] chance of each task to be solved."""


class Case(NamedTuple):
    tasks: int
    samples: int
    a: float
    """Of the beta distribution of a task's chance."""
    b: float


CASES = (
    Case(100, 1, 1, 1),
    Case(100, 4, 1, 1),
    Case(100, 8, 0.5, 1.5),
    Case(60, 4, 8, 8),
    Case(200, 2, 0.3, 0.3),
    Case(40, 4, 2, 5),
)


def covered(interval: Callable[[np.random.Generator], Interval], truth: float, runs: int = RUNS) -> float:
    """Return the share of simulated intervals that hold the truth."""
    rngs = np.random.default_rng(7).spawn(runs)
    intervals = [interval(rng) for rng in rngs]
    return sum(item.low <= truth <= item.high for item in intervals) / runs


def check(share: float, *, runs: int = RUNS, low: float = LOW, high: float = HIGH) -> None:
    error = 3 * math.sqrt(0.05 * 0.95 / runs)
    assert low - error <= share <= high + error


def draw(case: Case, rng: np.random.Generator) -> np.ndarray:
    """Return successes, [tasks, samples]."""
    rates = rng.beta(case.a, case.b, size=(case.tasks, 1))
    return rng.random((case.tasks, case.samples)) < rates


def as_samples(values: np.ndarray) -> dict[str, Sequence[float]]:
    return {str(number): row.tolist() for number, row in enumerate(values)}


@pytest.mark.parametrize("case", CASES)
def test_success(case: Case) -> None:
    truth = case.a / (case.a + case.b)
    check(covered(lambda rng: estimate_success(as_samples(draw(case, rng))).interval, truth))


@pytest.mark.parametrize("case", [case for case in CASES if case.samples >= 4])
@pytest.mark.parametrize("k", [2, 4])
def test_pass_rates(case: Case, k: int) -> None:
    # E[p^k] and 1 - E[(1-p)^k] of the beta distribution
    moment = math.prod((case.a + i) / (case.a + case.b + i) for i in range(k))
    failed = math.prod((case.b + i) / (case.a + case.b + i) for i in range(k))
    for formula, truth in ((pass_at_k, 1 - failed), (pass_hat_k, moment)):

        def interval(rng: np.random.Generator, formula: Callable[[int, int, int], float] = formula) -> Interval:
            return estimate_pass_rate(formula, as_samples(draw(case, rng)), k).interval

        check(covered(interval, truth))


@pytest.mark.parametrize("samples", [1, 4])
def test_difference_of_two_models(samples: int) -> None:
    # The second model solves a task with chance p + 0.3 (1 - p): the mean difference is 0.3 E[1 - p]
    def interval(rng: np.random.Generator) -> Interval:
        rates = rng.beta(1, 2, size=(80, 1))
        before = rng.random((80, samples)) < rates
        after = rng.random((80, samples)) < rates + 0.3 * (1 - rates)
        return adjusted_wald_interval(after.mean(axis=1) - before.mean(axis=1))

    check(covered(interval, 0.3 * 2 / 3))


def test_mean_reward() -> None:
    def interval(rng: np.random.Generator) -> Interval:
        rewards = rng.beta(2, 4, size=(80, 1)) + rng.normal(0, 0.1, size=(80, 3))
        return bootstrap_interval(rewards.mean(axis=1).tolist(), rng=rng, num_resamples=1000)

    check(covered(interval, 1 / 3))


def test_interquartile_mean_of_other_tasks() -> None:
    # Rewards of one sample: the mean of the beta distribution between its quartiles
    low, high = beta.ppf([0.25, 0.75], 2, 4)
    truth = float(beta.expect(lambda x: x, args=(2, 4), lb=low, ub=high, conditional=True))

    def interval(rng: np.random.Generator) -> Interval:
        return estimate_interquartile_mean(as_samples(rng.beta(2, 4, size=(60, 1))), rng=rng).interval

    check(covered(interval, truth))


def test_interquartile_mean_of_other_samples_of_the_same_tasks() -> None:
    # 20 tasks of means 0 to 1, each sampled 10 times with a spread of 0.3. The truth is the mean of many such draws.
    means = np.linspace(0, 1, 20)[:, None]
    many = trim_mean((means + np.random.default_rng(0).normal(0, 0.3, size=(20, 200_000))).ravel(), 0.25)
    runs = max(150, RUNS // 20)

    def interval(rng: np.random.Generator) -> Interval:
        samples = as_samples(means + rng.normal(0, 0.3, size=(20, 10)))
        return estimate_interquartile_mean(samples, rng=rng, fixed_tasks=True).interval

    check(covered(interval, float(many), runs), runs=runs, high=0.98)


def test_majority() -> None:
    # 3 samples with 2 possible answers, of which one is right: 3 p^2 - 2 p^3, whose mean for uniform p is 1/2
    def interval(rng: np.random.Generator) -> Interval:
        right = draw(Case(80, 3, 1, 1), rng).tolist()
        rates = [majority_success([(str(item), float(item)) for item in own], 3, rng=rng) for own in right]
        return wilson_interval(rates, num_trials=len(rates))

    check(covered(interval, 0.5))
