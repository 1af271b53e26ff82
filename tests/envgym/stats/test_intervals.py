"""Tests of samples, and of intervals clustered by task."""

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.errors import InvalidInput
from envgym.stats import (
    Interval,
    IntervalMethod,
    bootstrap_interval,
    estimate_mean,
    estimate_success,
    successes_of,
    wilson_interval,
)

SAMPLES = st.dictionaries(
    st.text(max_size=4),
    st.lists(st.floats(-5, 5), min_size=1, max_size=5),
    min_size=1,
    max_size=12,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def shares(num_successes: int, num_tasks: int) -> list[float]:
    return [1.0] * num_successes + [0.0] * (num_tasks - num_successes)


def of_trials(num_successes: int, num_trials: int) -> Interval:
    return wilson_interval(shares(num_successes, num_trials), num_trials=num_trials)


def test_one_sample_per_task_has_the_interval_of_wilson() -> None:
    # z = 1.959964, z^2 = 3.841459. 8 of 10: center 0.8 + z^2/20 = 0.992073, scale 1 + z^2/10 = 1.384146,
    # spread = sqrt(z^2 (0.016 + z^2/400)) = 0.313640; (0.992073 -+ 0.313640) / 1.384146
    eight = of_trials(8, 10)
    assert eight.low == pytest.approx(0.490162, abs=1e-6)
    assert eight.high == pytest.approx(0.943318, abs=1e-6)
    # 0 of 10: [0, z^2 / (n + z^2)] = 3.841459 / 13.841459
    none = of_trials(0, 10)
    assert none.low == 0.0
    assert none.high == pytest.approx(0.277533, abs=1e-6)
    assert none.method is eight.method is IntervalMethod.WILSON_BY_TASK


@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_share_and_mirrors(num_trials: int, data: st.DataObject) -> None:
    num_successes = data.draw(st.integers(0, num_trials))
    interval, mirrored = (of_trials(c, num_trials) for c in (num_successes, num_trials - num_successes))
    assert 0 <= interval.low <= num_successes / num_trials <= interval.high <= 1
    assert interval.low == pytest.approx(1 - mirrored.high, abs=1e-12)


def test_wilson_covers_a_small_proportion() -> None:
    # Exact coverage at p = 0.1, n = 50: the binomial weight of the counts whose interval holds p.
    weight = [comb(50, c) * 0.1**c * 0.9 ** (50 - c) for c in range(51)]
    intervals = [of_trials(c, 50) for c in range(51)]
    covered = sum(w for w, i in zip(weight, intervals, strict=True) if i.low <= 0.1 <= i.high)
    assert 0.94 < covered < 0.98


def test_worked_example_of_the_effective_number_of_trials() -> None:
    # Shares 0, 1/2, 1/2, 1 of 4 tasks with 8 samples: p = 1/2, s^2 = (1/4 + 1/4)/3 = 1/6, times
    # 1 + (z^2 + 1)/6 = 1.806910: 0.301152. m = (1/4) 4 / 0.301152 = 3.32 is below the 4 tasks, so m = 4:
    # scale 1 + z^2/4 = 1.960365, spread = sqrt(z^2 (1/16 + z^2/64)) = 0.686072; 1/2 -+ 0.349971
    few = wilson_interval([0.0, 0.5, 0.5, 1.0], num_trials=32)
    assert (few.low, few.high) == pytest.approx((0.150029, 0.849971), abs=1e-5)
    # 20 tasks at 1/4, 20 at 3/4: s^2 = 40 (1/16)/39 = 0.064103, times 1 + (z^2 + 1)/78 = 1.062070: 0.068081;
    # m = (1/4) 40 / 0.068081 = 146.883, between 40 and 160. scale 1.026153, spread = sqrt(z^2 (0.25/m + z^2/4m^2))
    # = 0.081917; 1/2 -+ 0.079829
    many = wilson_interval([0.25, 0.75] * 20, num_trials=160)
    assert (many.low, many.high) == pytest.approx((0.420171, 0.579829), abs=1e-5)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_clustered_interval_lies_between_those_of_tasks_and_of_samples_as_trials(solved: list[int]) -> None:
    # With m trials of the same share: m = the tasks is the widest, m = the samples the narrowest.
    found = wilson_interval([count / 4 for count in solved], num_trials=4 * len(solved))
    narrow = of_trials(sum(solved), 4 * len(solved))
    assert found.high - found.low >= narrow.high - narrow.low - 1e-12
    if sum(solved) % 4 == 0:
        wide = of_trials(sum(solved) // 4, len(solved))
        assert found.high - found.low <= wide.high - wide.low + 1e-12


def test_the_mean_weighs_every_task_the_same() -> None:
    # (1/4 + 1)/2, not 3/6
    estimate = estimate_success({"a": [1, 0, 0, 0], "b": [1, 1]})
    assert estimate.value == 0.625
    assert (estimate.num_tasks, estimate.num_samples) == (2, 6)
    assert estimate.interval.method is IntervalMethod.WILSON_BY_TASK


def test_bootstrap_of_two_tasks_is_their_range() -> None:
    # Resampled means are 0, 1/2, 1 with weights 1/4, 1/2, 1/4: both 2.5 % tails are the extremes.
    interval = bootstrap_interval([0.0, 1.0], rng=rng())
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_bootstrap_nears_the_normal_interval_of_many_tasks() -> None:
    # 400 tasks, half of them solved: 0.5 -+ 1.96 * 0.5/20 = [0.451, 0.549]
    interval = bootstrap_interval([0.0, 1.0] * 200, rng=rng())
    assert interval.low == pytest.approx(0.451, abs=0.004)
    assert interval.high == pytest.approx(0.549, abs=0.004)


def test_further_samples_that_repeat_the_first_do_not_narrow_the_interval() -> None:
    # Clustering: ten identical samples of a task are one piece of evidence.
    once = estimate_success({f"t{i}": [i % 2] for i in range(40)})
    tenfold = estimate_success({f"t{i}": [i % 2] * 10 for i in range(40)})
    assert tenfold.interval == once.interval
    assert (once.num_samples, tenfold.num_samples) == (40, 400)


@settings(max_examples=50)
@given(SAMPLES, st.integers(0, 99))
def test_bootstrap_holds_the_estimate_and_stays_between_extremes(samples: dict[str, list[float]], seed: int) -> None:
    estimate = estimate_mean(samples, rng=rng(seed))
    means = [float(np.mean(values)) for values in samples.values()]
    assert estimate.interval.low <= estimate.value <= estimate.interval.high
    assert min(means) - 1e-9 <= estimate.interval.low
    assert estimate.interval.high <= max(means) + 1e-9


@settings(max_examples=50)
@given(SAMPLES, st.integers(0, 99))
def test_names_and_order_of_tasks_do_not_matter(samples: dict[str, list[float]], seed: int) -> None:
    groups = list(samples.values())
    order = np.random.default_rng(seed).permutation(len(groups))
    renamed = {f"other-{i}": groups[i] for i in order}
    first = estimate_mean(samples, rng=rng(seed))
    assert estimate_mean(renamed, rng=rng(seed)) == first


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=4), st.lists(st.integers(-8, 8), min_size=4, max_size=4), min_size=1))
def test_a_shift_of_all_values_shifts_the_interval(samples: dict[str, list[int]]) -> None:
    # Integers, and a shift by 3, so that no two means merge by rounding.
    shift = 3
    moved = {task_id: [value + shift for value in values] for task_id, values in samples.items()}
    first = estimate_mean(samples, rng=rng())
    second = estimate_mean(moved, rng=rng())
    assert second.value == pytest.approx(first.value + shift, abs=1e-8)
    assert second.interval.low == pytest.approx(first.interval.low + shift, abs=1e-8)
    assert second.interval.high == pytest.approx(first.interval.high + shift, abs=1e-8)


def test_a_perfect_score_does_not_claim_certainty() -> None:
    # All 30 tasks solved: Wilson's lower end for 30 of 30, n / (n + z^2) = 30 / 33.841459
    estimate = estimate_success({f"t{i}": [True, True] for i in range(30)})
    assert estimate.value == 1.0
    assert estimate.interval.high == 1.0
    assert estimate.interval.low == pytest.approx(30 / 33.841459, abs=1e-6)


def test_tasks_that_are_all_alike_are_as_good_as_independent_samples() -> None:
    # Half of 4 samples solved in each of 10 tasks: what 20 of 40 trials say.
    interval, trials = wilson_interval([0.5] * 10, num_trials=40), of_trials(20, 40)
    assert (interval.low, interval.high) == pytest.approx((trials.low, trials.high), abs=1e-12)


def test_the_method_never_depends_on_the_values() -> None:
    samples = ({"a": [1, 1], "b": [1, 1]}, {"a": [0, 1], "b": [1, 1]}, {"a": [0, 1]}, {"a": [0]})
    assert {estimate_success(item).interval.method for item in samples} == {IntervalMethod.WILSON_BY_TASK}


def test_equal_values_of_an_unknown_range_have_a_point() -> None:
    interval = bootstrap_interval([0.25] * 4, rng=rng())
    assert (interval.low, interval.high) == (0.25, 0.25)
    assert interval.method is IntervalMethod.BOOTSTRAP_BY_TASK


@pytest.mark.parametrize("num_tasks, num_samples", [(60, 8), (10, 4), (5, 8)])
def test_interval_by_task_covers_and_by_sample_does_not(num_tasks: int, num_samples: int) -> None:
    # Tasks differ in difficulty, p ~ U(0, 1), mean 0.5. 400 replicates: the standard error of the coverage is 1.1
    # points. Pretending that samples are independent loses coverage; of 60 tasks with 8 samples: variance
    # p(1-p)/(nk) = 0.25/480, true (1/12 + (1/6)/8)/60 = 0.00174, so 1.96 * 0.0228/0.0417 = 1.07 standard errors: 72 %.
    generator = rng(11)
    by_task = by_sample = 0
    for _ in range(400):
        solved = generator.random((num_tasks, num_samples)) < generator.random((num_tasks, 1))
        interval = wilson_interval(solved.mean(axis=1).tolist(), num_trials=solved.size)
        naive = of_trials(int(solved.sum()), solved.size)
        by_task += interval.low <= 0.5 <= interval.high
        by_sample += naive.low <= 0.5 <= naive.high
    assert 0.92 <= by_task / 400 <= 0.99
    assert by_sample / 400 < 0.88


def test_a_higher_level_is_wider() -> None:
    values = [0.0, 0.2, 0.4, 1.0, 0.7]
    narrow, wide = (bootstrap_interval(values, rng=rng(), level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high
    narrow, wide = (wilson_interval(values, num_trials=5, level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="samples must hold at least one task"):
        estimate_mean({}, rng=rng())
    with pytest.raises(InvalidInput, match=r"a task must have a sample, got none \(task b\)"):
        estimate_mean({"a": [1.0], "b": []}, rng=rng())
    with pytest.raises(InvalidInput, match=r"be finite, got \[nan\] \(task a\)"):
        estimate_mean({"a": [float("nan")]}, rng=rng())
    with pytest.raises(InvalidInput, match=r"must lie in \[0, 1\], got values from 0.0 to 2.0"):
        estimate_success({"a": [2.0], "b": [0.0]})
    with pytest.raises(InvalidInput, match=r"level must lie in \(0, 1\), got 95"):
        bootstrap_interval([1.0], rng=rng(), level=95)
    with pytest.raises(InvalidInput, match="num_trials must be at least the number of tasks, 3, got 2"):
        wilson_interval([1.0, 0.0, 0.0], num_trials=2)
    with pytest.raises(InvalidInput, match="low <= high"):
        Interval(low=1, high=0, level=0.95, method=IntervalMethod.WILSON_BY_TASK)
    with pytest.raises(InvalidInput, match="hold at least one task"):
        bootstrap_interval([], rng=rng())


def test_success_is_a_reward_of_at_least_the_mark_and_invalid_stays_invalid() -> None:
    assert successes_of({"a": (0.49, 0.5, None, 1.0), "b": ()}, 0.5) == {"a": [False, True, None, True], "b": []}
