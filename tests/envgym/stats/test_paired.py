"""Tests of the paired comparison."""

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.errors import InvalidInput
from envgym.stats import IntervalMethod, PValueMethod, adjusted_wald_interval, compare_paired, sign_flip_p_value


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def sign_test(wins: int, losses: int) -> float:
    total = wins + losses
    tail = sum(comb(total, i) for i in range(min(wins, losses) + 1))
    return min(1.0, tail / 2.0 ** (total - 1))


def test_hand_case() -> None:
    before = {"a": [0, 0], "b": [1, 0], "c": [1, 1], "d": [0, 1]}
    after = {"a": [1, 1], "b": [1, 1], "c": [1, 0], "d": [1, 0]}
    # Differences 1, 1/2, -1/2, 0: sum 1, mean 1/4. The sums of +-1 +-1/2 +-1/2 are 2, 1, 1, 0, 0, -1, -1, -2:
    # 6 of 8 reach 1 in size.
    comparison = compare_paired(before, after, rng=rng())
    assert comparison.difference.value == 0.25
    assert (comparison.mean_before, comparison.mean_after) == (0.5, 0.75)
    assert (comparison.wins, comparison.losses, comparison.ties) == (2, 1, 1)
    assert comparison.p_value == 0.75
    assert comparison.p_value_method is PValueMethod.EXACT
    assert (comparison.num_tasks, comparison.difference.num_samples, comparison.num_left_out) == (4, 16, 0)


def test_five_wins_of_five() -> None:
    # Only all plus and all minus reach the sum: 2/32.
    assert sign_flip_p_value(np.ones(5), rng=rng()) == (0.0625, PValueMethod.EXACT)


def test_no_change_has_p_value_one() -> None:
    assert sign_flip_p_value(np.zeros(5), rng=rng()) == (1.0, PValueMethod.EXACT)


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 5))
def test_reduces_to_the_sign_test_for_single_successes(wins: int, losses: int, ties: int) -> None:
    differences = np.array([1.0] * wins + [-1.0] * losses + [0.0] * ties)
    p_value, method = sign_flip_p_value(differences, rng=rng())
    assert p_value == pytest.approx(sign_test(wins, losses), abs=1e-12)
    assert method is PValueMethod.EXACT


def test_monte_carlo_agrees_with_the_exact_sign_test() -> None:
    # 22 wins, 8 losses: 0.0161; 20,000 draws have a standard error of 0.0009.
    differences = np.array([1.0] * 22 + [-1.0] * 8)
    p_value, method = sign_flip_p_value(differences, rng=rng())
    assert method is PValueMethod.MONTE_CARLO
    assert p_value == pytest.approx(sign_test(22, 8), abs=0.0036)
    # Never 0: the observed pattern itself counts.
    assert sign_flip_p_value(np.ones(60), rng=rng())[0] == 1 / 20_001


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12), st.integers(0, 99))
def test_swapping_the_runs_negates_the_difference(counts: list[tuple[int, int]], seed: int) -> None:
    before = {str(i): [1] * b + [0] * (4 - b) for i, (b, _) in enumerate(counts)}
    after = {str(i): [1] * a + [0] * (4 - a) for i, (_, a) in enumerate(counts)}
    there = compare_paired(before, after, rng=rng(seed))
    back = compare_paired(after, before, rng=rng(seed))
    assert there.difference.value == pytest.approx(-back.difference.value, abs=1e-12)
    assert there.p_value == back.p_value
    assert (there.wins, there.losses, there.ties) == (back.losses, back.wins, back.ties)
    assert there.difference.interval.low <= there.difference.value <= there.difference.interval.high
    assert there.difference.value == pytest.approx(there.mean_after - there.mean_before, abs=1e-12)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=20), st.integers(0, 99))
def test_names_and_order_of_tasks_do_not_matter(counts: list[tuple[int, int]], seed: int) -> None:
    names = [f"n{i}" for i in rng(seed).permutation(len(counts))]
    runs = [{str(i): [pair[run] / 4] for i, pair in enumerate(counts)} for run in (0, 1)]
    renamed = [{name: run[str(i)] for i, name in enumerate(names)} for run in runs]
    first = compare_paired(runs[0], runs[1], rng=rng(seed))
    second = compare_paired(renamed[0], renamed[1], rng=rng(seed))
    assert first.difference == second.difference
    assert first.p_value == second.p_value


def test_pairing_removes_the_spread_of_difficulty() -> None:
    # Half the tasks are always solved, half never but for those that the second run gains: each run alone is
    # 0.5 -+ 0.1, yet a gain of 8 in 100 lies clear of 0: 8/102 -+ z sqrt((9/102 - (8/102)^2)/102) = 0.0784 -+ 0.0556.
    # A gain of 4 does not, as its p-value of 2/2^4 says too.
    before, four, eight = ({str(i): [int(i < solved)] for i in range(100)} for solved in (50, 54, 58))
    comparison = compare_paired(before, eight, rng=rng())
    assert comparison.difference.value == pytest.approx(0.08, abs=1e-12)
    ends = comparison.difference.interval
    assert (ends.low, ends.high) == pytest.approx((0.02282, 0.13404), abs=1e-4)
    comparison = compare_paired(before, four, rng=rng())
    assert comparison.difference.interval.low < 0
    assert comparison.p_value == 0.125


def test_no_change_at_all_still_has_an_interval() -> None:
    # Two tasks are added, whose squared changes are 0 + 1/2 + 1/2: sd = sqrt(1/52/52) = 1/52, times z = 1.959964.
    same = {str(i): [i % 2] for i in range(50)}
    interval = compare_paired(same, same, rng=rng()).difference.interval
    assert interval.low == pytest.approx(-0.037692, abs=1e-6)
    assert interval.high == pytest.approx(0.037692, abs=1e-6)


def test_interval_of_single_successes_is_that_of_agresti_and_min() -> None:
    # 10 tasks, 4 won, 1 lost: (4 - 1)/12 = 1/4; variance ((4 + 1 + 1)/12 - 1/16)/12 = 0.4375/12 = 0.0364583;
    # 1/4 -+ 1.959964 * 0.190941 = 1/4 -+ 0.374237
    interval = adjusted_wald_interval(np.array([1.0] * 4 + [-1.0] + [0.0] * 5))
    assert (interval.low, interval.high) == pytest.approx((-0.124237, 0.624237), abs=1e-6)
    assert interval.method is IntervalMethod.ADJUSTED_WALD_BY_TASK
    # In other units: all scales with the largest change.
    tenfold = adjusted_wald_interval(np.array([10.0] * 4 + [-10.0] + [0.0] * 5), max_change=10)
    assert (tenfold.low, tenfold.high) == pytest.approx((10 * interval.low, 10 * interval.high), abs=1e-12)


def test_interval_holds_a_change_of_all_tasks_and_stays_in_its_range() -> None:
    for size in (1, 5, 200):
        interval = adjusted_wald_interval(np.ones(size))
        assert interval.low < 1.0 == interval.high


@pytest.mark.parametrize("num_tasks, num_samples", [(100, 1), (30, 4), (10, 4)])
def test_interval_of_the_difference_covers(num_tasks: int, num_samples: int) -> None:
    # p ~ Beta(1, 4), mean 0.2, and 0.3 of the way to 1 after: a change of 0.24. 400 replicates: standard error 1.1.
    generator = rng(7)
    covered = 0
    for _ in range(400):
        before = generator.beta(1, 4, num_tasks)
        after = before + 0.3 * (1 - before)
        counts = [generator.binomial(num_samples, chance) / num_samples for chance in (before, after)]
        interval = adjusted_wald_interval(counts[1] - counts[0])
        covered += interval.low <= 0.24 <= interval.high
    assert 0.92 <= covered / 400 <= 0.995


def test_false_alarms_are_as_rare_as_alpha_says() -> None:
    # 300 pairs of equal runs over 24 tasks, 2 samples each: p <= 0.05 in at most about 5 %; standard error 1.3 points.
    generator = rng(5)
    alarms = 0
    for _ in range(300):
        chance = generator.random((24, 1))
        runs = [(generator.random((24, 2)) < chance).mean(axis=1) for _ in range(2)]
        alarms += sign_flip_p_value(runs[1] - runs[0], rng=generator)[0] <= 0.05
    assert alarms / 300 <= 0.09


def test_differing_tasks_are_refused_unless_intersected() -> None:
    before = {"a": [1], "b": [0], "x": [0]}
    after = {"a": [1], "b": [1], "y": [1], "z": [1]}
    with pytest.raises(InvalidInput, match=r"be the same, got 1 only before \(x\) and 2 only after \(y, z\)"):
        compare_paired(before, after, rng=rng())
    comparison = compare_paired(before, after, rng=rng(), intersect=True)
    assert (comparison.num_tasks, comparison.num_left_out) == (2, 3)
    assert comparison.difference.value == 0.5


def test_changes_beyond_the_largest_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"differences must be of some tasks and at most 1.0, got 3.0"):
        compare_paired({"a": [0]}, {"a": [3]}, rng=rng())


def test_runs_without_a_common_task_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the two runs must share a task"):
        compare_paired({"a": [1]}, {"b": [1]}, rng=rng(), intersect=True)
