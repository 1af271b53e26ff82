"""Tests of aggregates beside the mean, against enumeration, SciPy and rliable."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean  # type: ignore[import-untyped]  # SciPy has no stubs

from envgym.errors import InvalidInput
from envgym.stats import best_of_n, estimate_interquartile_mean, majority_success, pass_at_k
from envgym.stats.aggregates import Votes

RUNS_TASKS = np.array([[((7 * n + 3 * m + n * m) % 11 / 10) ** 2 for m in range(8)] for n in range(5)])
"""[5 runs, 8 tasks] scores, of which rliable 1.2.0 gave the values below (with arch 8.0.0, and without its
`random_state`, which that version does not take; 20,000 resamples after `numpy.random.seed(0)`)."""
RLIABLE_IQM = 0.2365
RLIABLE_INTERVAL = (0.143, 0.358)
"""`get_interval_estimates` of `aggregate_iqm`, stratified."""


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def by_task(scores: np.ndarray) -> dict[str, list[float]]:
    return {f"t{number}": [float(value) for value in column] for number, column in enumerate(scores.T)}


def test_interquartile_mean_and_its_stratified_interval_are_those_of_rliable() -> None:
    estimate = estimate_interquartile_mean(by_task(RUNS_TASKS), rng=rng(), fixed_tasks=True)
    assert estimate.value == pytest.approx(RLIABLE_IQM, abs=1e-12)
    # 2,000 resamples put a 2.5 % quantile within about a twentieth of the width
    assert (estimate.interval.low, estimate.interval.high) == pytest.approx(RLIABLE_INTERVAL, abs=0.012)
    assert (estimate.num_tasks, estimate.num_samples) == (8, 40)


def test_worked_example_of_the_interquartile_mean() -> None:
    # 0 1 2 3 4 5 6 100: two of eight are cut at each end, (2 + 3 + 4 + 5)/4
    estimate = estimate_interquartile_mean({"a": [0, 100, 3, 4], "b": [1, 2, 5, 6]}, rng=rng())
    assert estimate.value == 3.5
    assert estimate.interval.low <= 3.5 <= estimate.interval.high


@settings(max_examples=10)
@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=1, max_size=6))
def test_interquartile_mean_is_the_trimmed_mean_of_all_samples(values: list[list[float]]) -> None:
    samples = {str(number): own for number, own in enumerate(values)}
    estimate = estimate_interquartile_mean(samples, rng=rng())
    assert estimate.value == pytest.approx(trim_mean(np.concatenate(values), 0.25), abs=1e-9)
    backwards = dict(reversed(samples.items()))
    assert estimate_interquartile_mean(backwards, rng=rng()) == estimate, "the order of tasks does not matter"


def test_one_task_has_no_spread_and_one_sample_no_strata() -> None:
    estimate = estimate_interquartile_mean({"a": [1.0, 2.0]}, rng=rng())
    assert (estimate.interval.low, estimate.interval.high) == (1.5, 1.5)
    with pytest.raises(InvalidInput, match="samples of a task must be at least 2, got 1"):
        estimate_interquartile_mean({"a": [1.0, 2.0], "b": [1.0]}, rng=rng(), fixed_tasks=True)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=7), st.data())
def test_best_of_n_is_the_mean_of_the_largest_over_all_subsets(values: list[float], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(values)))
    largest = [max(drawn) for drawn in itertools.combinations(values, n)]
    assert best_of_n(values, n) == pytest.approx(math.fsum(largest) / len(largest), abs=1e-9)


@given(st.integers(1, 10), st.data())
def test_best_of_n_successes_is_pass_at_n(num_samples: int, data: st.DataObject) -> None:
    solved, n = data.draw(st.integers(0, num_samples)), data.draw(st.integers(1, num_samples))
    values = [1.0] * solved + [0.0] * (num_samples - solved)
    assert best_of_n(values, n) == pytest.approx(pass_at_k(num_samples, solved, n), abs=1e-12)


def test_worked_example_of_the_majority() -> None:
    votes = [("7", 1.0), ("7", 1.0), ("8", 0.0), (None, 0.0)]
    # k = 1: 7, 7, 8, none: 2/4. k = 2: 77, 7 8 (tie 1/2) twice, 7 none twice, 8 none: (1 + 1/2 + 1/2 + 1 + 1 + 0)/6
    # k = 3: 778, 77none, 78none (tie) twice: (1 + 1 + 1/2 + 1/2)/4. k = 4: 7.
    found = [majority_success(votes, k, rng=rng()) for k in (1, 2, 3, 4)]
    assert found == pytest.approx([0.5, 4 / 6, 0.75, 1.0], abs=1e-12)


def test_no_answer_at_all_fails() -> None:
    assert majority_success([(None, 0.0)] * 3, 2, rng=rng()) == 0.0


def test_many_subsets_are_drawn_from_the_seed_and_near_the_binomial() -> None:
    # 15 of 25 answers are right: the majority of 5 is right where at least 3 are: sum C(15,i) C(10,5-i) / C(25,5)
    votes: Votes = [("7", 1.0)] * 15 + [("8", 0.0)] * 10
    exact = sum(math.comb(15, i) * math.comb(10, 5 - i) for i in (3, 4, 5)) / math.comb(25, 5)
    drawn = majority_success(votes, 5, rng=rng())
    assert drawn == majority_success(votes, 5, rng=rng())
    assert drawn == pytest.approx(exact, abs=0.04)


@pytest.mark.parametrize("drawn", [0, 3])
def test_more_draws_than_samples_are_refused(drawn: int) -> None:
    with pytest.raises(InvalidInput, match=rf"samples drawn must lie in \[1, 2\], the number of samples, got {drawn}"):
        best_of_n([0.0, 1.0], drawn)
    with pytest.raises(InvalidInput, match="samples drawn must lie"):
        majority_success([("a", 1.0)] * 2, drawn, rng=rng())
