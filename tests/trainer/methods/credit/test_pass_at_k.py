"""Pass@k training: worked examples, the identity with sets of k, and its reduction to GRPO."""

import math
import statistics
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.trainer.methods.credit.pass_at_k import PassAtK
from tests.support.credit_trees import batch_advantages

OUTCOMES = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=7)


def of_sets(rewards: list[float], k: int) -> list[float]:
    """Enumerate the sets of k: z of each one's best reward (population), and each episode's mean over its sets."""
    sets = list(combinations(range(len(rewards)), k))
    best = [max(rewards[number] for number in members) for members in sets]
    mean, deviation = statistics.fmean(best), statistics.pstdev(best)
    scores = [(value - mean) / (deviation + 1e-6) for value in best]
    return [
        statistics.fmean(score for score, members in zip(scores, sets, strict=True) if number in members)
        for number in range(len(rewards))
    ]


def test_one_of_four_in_pairs() -> None:
    # rho = 1 - C(3,2)/C(4,2) = .5, sigma .5: (1 - .5)/.5 = 1; (.5 - C(2,1)/C(3,1))/.5 = (.5 - 2/3)/.5 = -1/3
    assert batch_advantages(PassAtK(k=2), [0, 1, 0, 0]) == pytest.approx([-1 / 3, 1, -1 / 3, -1 / 3], abs=1e-5)


@given(OUTCOMES, st.integers(1, 7))
def test_advantage_is_the_mean_over_the_sets_that_hold_the_episode(rewards: list[float], k: int) -> None:
    k = min(k, len(rewards))
    assert batch_advantages(PassAtK(k=k), rewards) == pytest.approx(of_sets(rewards, k), abs=1e-4)


@given(OUTCOMES)
def test_sets_of_one_are_grpo_with_the_deviation_of_the_population(rewards: list[float]) -> None:
    mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
    expected = [(reward - mean) / (deviation + 1e-6) for reward in rewards]
    assert batch_advantages(PassAtK(k=1), rewards) == pytest.approx(expected, abs=1e-6)


@given(OUTCOMES, st.integers(1, 9))
def test_advantages_sum_to_zero(rewards: list[float], k: int) -> None:
    assert math.fsum(batch_advantages(PassAtK(k=k), rewards)) == pytest.approx(0.0, abs=1e-6)


def test_rewards_in_between_are_binarised() -> None:
    """In the authors' code a reward of .7 is its own advantage."""
    assert batch_advantages(PassAtK(k=2), [0.7, 1, 0, 0]) == batch_advantages(PassAtK(k=2), [0, 1, 0, 0])
    graded = batch_advantages(PassAtK(k=2, success_at=0.7), [0.7, 1, 0, 0])
    assert graded == batch_advantages(PassAtK(k=2), [1, 1, 0, 0])


def test_where_every_set_has_a_success_nothing_is_left_to_gain() -> None:
    assert batch_advantages(PassAtK(k=4), [0, 1, 1, 0]) == pytest.approx([0.0] * 4, abs=1e-9)
    assert batch_advantages(PassAtK(k=4), [1, None, 0]) == pytest.approx([0.0] * 2, abs=1e-9)  # k = n = 2
