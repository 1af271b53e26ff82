"""Tests of the paired comparison."""

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.errors import InvalidInput
from envgym.stats import UNIT_RANGE, PValueMethod, compare_paired, sign_flip_p_value


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def sign_test(wins: int, losses: int) -> float:
    """Return the exact two-sided sign test."""
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
    # Half the tasks are always solved, half never but for 4 that the second run gains: each run alone is
    # 0.5 -+ 0.1, yet the gain of 4 in 100 lies clear of 0.
    before = {str(i): [int(i < 50)] for i in range(100)}
    after = {str(i): [int(i < 54)] for i in range(100)}
    comparison = compare_paired(before, after, rng=rng(), value_range=UNIT_RANGE)
    assert comparison.difference.value == pytest.approx(0.04, abs=1e-12)
    assert comparison.difference.interval.low > 0.005
    assert comparison.difference.interval.high < 0.09


def test_no_change_at_all_still_has_an_interval() -> None:
    # 0 of 50 tasks changed: at most w = z^2/(50 + z^2) = 0.071347 did, so the difference lies in -+ w.
    same = {str(i): [i % 2] for i in range(50)}
    interval = compare_paired(same, same, rng=rng(), value_range=UNIT_RANGE).difference.interval
    assert interval.low == pytest.approx(-0.071347, abs=1e-6)
    assert interval.high == pytest.approx(0.071347, abs=1e-6)


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


def test_runs_without_a_common_task_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the two runs must share a task"):
        compare_paired({"a": [1]}, {"b": [1]}, rng=rng(), intersect=True)
