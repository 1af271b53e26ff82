"""Tests of pass@k and pass^k, and of the bounds under invalid samples."""

from itertools import combinations
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.errors import InvalidInput
from envgym.stats import bound_invalid, estimate_pass_rate, estimate_success, pass_at_k, pass_hat_k, wilson_interval


@st.composite
def counts(draw: st.DrawFn, max_samples: int = 60) -> tuple[int, int]:
    num_samples = draw(st.integers(1, max_samples))
    return num_samples, draw(st.integers(0, num_samples))


def test_hand_case() -> None:
    # n = 10, c = 3, k = 2: 1 - C(7,2)/C(10,2) = 1 - 21/45; C(3,2)/C(10,2) = 3/45
    assert pass_at_k(10, 3, 2) == 24 / 45
    assert pass_hat_k(10, 3, 2) == 3 / 45


def test_k_beyond_the_failures_always_passes() -> None:
    # Two failures cannot fill three draws.
    assert pass_at_k(5, 3, 3) == 1.0
    assert pass_hat_k(5, 2, 3) == 0.0


@given(counts(max_samples=7), st.data())
def test_equal_the_share_of_subsets(count: tuple[int, int], data: st.DataObject) -> None:
    num_samples, num_successes = count
    k = data.draw(st.integers(1, num_samples))
    subsets = list(combinations([True] * num_successes + [False] * (num_samples - num_successes), k))
    assert pass_at_k(num_samples, num_successes, k) == sum(any(s) for s in subsets) / len(subsets)
    assert pass_hat_k(num_samples, num_successes, k) == sum(all(s) for s in subsets) / len(subsets)


@given(counts())
def test_at_one_both_are_the_mean(count: tuple[int, int]) -> None:
    num_samples, num_successes = count
    assert pass_at_k(num_samples, num_successes, 1) == num_successes / num_samples
    assert pass_hat_k(num_samples, num_successes, 1) == num_successes / num_samples


@given(counts())
def test_pass_at_k_rises_and_pass_hat_k_falls_with_k(count: tuple[int, int]) -> None:
    num_samples, num_successes = count
    at = [pass_at_k(num_samples, num_successes, k) for k in range(1, num_samples + 1)]
    hat = [pass_hat_k(num_samples, num_successes, k) for k in range(1, num_samples + 1)]
    assert at == sorted(at)
    assert hat == sorted(hat, reverse=True)


@given(counts(), st.data())
def test_pass_at_k_is_the_complement_of_pass_hat_k_of_failures(count: tuple[int, int], data: st.DataObject) -> None:
    num_samples, num_successes = count
    k = data.draw(st.integers(1, num_samples))
    all_fail = pass_hat_k(num_samples, num_samples - num_successes, k)
    assert pass_at_k(num_samples, num_successes, k) == pytest.approx(1 - all_fail, abs=1e-15)


def test_large_counts_keep_full_precision() -> None:
    # One success in n: pass@k = k/n exactly, though C(5000, 2500) has 1,500 digits.
    assert pass_at_k(5000, 1, 2500) == 0.5
    assert pass_at_k(5000, 1, 7) == 7 / 5000
    # All but one succeed: pass^k = (n-k)/n.
    assert pass_hat_k(5000, 4999, 4000) == 0.2


def test_is_unbiased_over_draws_of_the_samples() -> None:
    # c ~ Binomial(6, 0.3): the mean of the estimator over c is 1 - 0.7^3 and 0.3^3, summed exactly.
    weight = [comb(6, c) * 0.3**c * 0.7 ** (6 - c) for c in range(7)]
    assert sum(w * pass_at_k(6, c, 3) for c, w in enumerate(weight)) == pytest.approx(1 - 0.7**3, abs=1e-14)
    assert sum(w * pass_hat_k(6, c, 3) for c, w in enumerate(weight)) == pytest.approx(0.3**3, abs=1e-14)


def test_mean_over_tasks_weighs_tasks_not_samples() -> None:
    samples = {"a": [1, 0, 0, 0], "b": [1, 1]}
    # pass@2: a: 1 - C(3,2)/C(4,2) = 1/2, b: 1; mean 3/4.  pass^2: a: 0, b: 1; mean 1/2.
    at = estimate_pass_rate(pass_at_k, samples, 2)
    hat = estimate_pass_rate(pass_hat_k, samples, 2)
    assert (at.value, hat.value) == (0.75, 0.5)
    assert (at.num_tasks, at.num_samples) == (2, 6)
    # Groups of 2 samples: 2 of a and 1 of b are 3 trials at most. Shares 1/2 and 1: s^2 = 1/8, times 1 + (z^2 + 1)/2 =
    # 3.42; m = (3/16) 2 / 0.4276 = 0.88 is below the 2 tasks, so m = 2.
    assert at.interval == wilson_interval([0.5, 1.0], num_trials=2)


def test_estimate_at_one_is_the_success_rate() -> None:
    samples = {"a": [True, False], "b": [True, True], "c": [False, False]}
    one = estimate_pass_rate(pass_at_k, samples, 1)
    assert one == estimate_success(samples)


@pytest.mark.parametrize("num_samples, num_successes, k", [(4, 2, 0), (4, 2, 5), (4, 5, 2), (4, -1, 2)])
def test_counts_out_of_range_are_refused(num_samples: int, num_successes: int, k: int) -> None:
    with pytest.raises(InvalidInput, match=r"must lie in \["):
        pass_at_k(num_samples, num_successes, k)
    with pytest.raises(InvalidInput, match=r"must lie in \["):
        pass_hat_k(num_samples, num_successes, k)


def test_partial_scores_are_refused_with_the_task() -> None:
    with pytest.raises(InvalidInput, match=r"successes must be 0 or 1, got \[0.5, 1.0\] \(task b\)"):
        estimate_pass_rate(pass_at_k, {"a": [1, 0], "b": [0.5, 1.0]}, 2)


def test_worked_example_of_the_bounds() -> None:
    bounds = bound_invalid({"a": [1, None], "b": [0, 1], "c": [None, None]})
    assert bounds.valid is not None
    # valid: a 1, b 1/2, c has none: 3/4; as failure (1/2 + 1/2 + 0)/3 = 1/3; as success (1 + 1/2 + 1)/3 = 5/6
    assert bounds.valid.value == 0.75
    assert bounds.as_failure.value == pytest.approx(1 / 3, abs=1e-12)
    assert bounds.as_success.value == pytest.approx(5 / 6, abs=1e-12)
    assert (bounds.valid.num_tasks, bounds.valid.num_samples) == (2, 3)
    assert (bounds.num_invalid, bounds.num_samples) == (3, 6)


def test_no_valid_sample_leaves_only_the_bounds() -> None:
    bounds = bound_invalid({"a": [None], "b": [None, None]})
    assert bounds.valid is None
    assert (bounds.as_failure.value, bounds.as_success.value) == (0.0, 1.0)


def test_without_invalid_samples_all_three_are_the_estimate() -> None:
    samples = {"a": [1, 0], "b": [1, 1], "c": [0, 0]}
    bounds = bound_invalid(samples)
    assert bounds.as_failure == estimate_success(samples)
    assert bounds.valid is not None
    assert bounds.valid.value == bounds.as_failure.value == bounds.as_success.value == 0.5
    assert bounds.num_invalid == 0


VALUES = st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=4)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=3), VALUES, min_size=1, max_size=8))
def test_bounds_hold_the_estimate_over_valid_samples(samples: dict[str, list[float | None]]) -> None:
    bounds = bound_invalid(samples)
    assert bounds.as_failure.value <= bounds.as_success.value
    if bounds.valid is not None:
        assert bounds.as_failure.value - 1e-12 <= bounds.valid.value <= bounds.as_success.value + 1e-12
