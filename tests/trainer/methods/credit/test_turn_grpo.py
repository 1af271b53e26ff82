"""Turn-level GRPO: hand cases, reductions, laws, and the condition under which it is unbiased."""

import math
from collections import Counter
from itertools import combinations_with_replacement
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.methods.credit.turn_grpo import TurnGrpo
from tests.support import example_trees as cases
from tests.support.credit_trees import BRANCH, branched, chains, group_of, per_node

TURNS = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=5)


def test_turns_are_compared_with_the_same_turn_of_the_others() -> None:
    # returns: A [3, 2], B [1, 1], C [5, 5]
    # turn 0: 3 - (1+5)/2, 1 - (3+5)/2, 5 - (3+1)/2; turn 1: 2 - (1+5)/2, 1 - (2+5)/2, 5 - (2+1)/2
    found = per_node(TurnGrpo()(chains([1, 2], [0, 1], [0, 5])))
    assert found == [[0.0, -1.0], [-3.0, -2.5], [3.0, 3.5]]


def test_ended_episode_counts_as_return_zero() -> None:
    # turn 1: A's 2 against B, which has ended, at 0
    assert per_node(TurnGrpo()(chains([1, 2], [4]))) == [[-1.0, 2.0], [1.0]]


def test_turn_that_one_episode_reaches_has_an_advantage_though_a_group_of_one_has_none() -> None:
    assert per_node(TurnGrpo()(chains([0, 1], [0], [0])))[0][1] == 1.0
    assert per_node(TurnGrpo()(chains([0, 1]))) == [[0.0, 0.0]]


def test_discount_weighs_later_turns_less() -> None:
    # A: [0 + .5 * 2, 2], B: [4]
    assert per_node(TurnGrpo(discount=0.5)(chains([0, 2], [4]))) == [[-3.0, 2.0], [3.0]]


def test_peers_of_a_shared_node_are_the_episodes_that_do_not_hold_it() -> None:
    fork = branched("fork", (0, 0.0), (1, 1.0), (1, 0.0))
    # node 1: 1 and 0 against the chain's .5; below the fork everyone else is a peer: 1 - (0 + 0)/2, 0 - (1 + 0)/2
    found = per_node(TurnGrpo()(group_of(fork, *chains([0.5]).trees)))
    assert found == [[0.5, 1.0], [-0.5, -0.5], [0.0]]


def test_node_that_all_episodes_hold_has_advantage_zero() -> None:
    fork = branched("fork", (0, 0.0), (1, 1.0), (1, 0.0))
    assert per_node(TurnGrpo()(group_of(fork))) == [[0.0, 1.0], [0.0, -1.0]]


def test_fork_inside_a_turn_belongs_to_that_turn() -> None:
    tree = branched("t", (0, BRANCH), (1, 1.0), (1, 0.0))
    assert per_node(TurnGrpo()(group_of(tree, *chains([0.25]).trees)))[0] == [0.75, 1.0 - 0.125]


def test_cut_turn_is_a_turn() -> None:
    group = group_of(cases.truncated_episode(), *chains([0.0, 1.0]).trees)
    assert per_node(TurnGrpo()(group)) == [[-0.75, -1.0], [0.75, 1.0]]


@settings(max_examples=20)
@given(TURNS)
def test_advantages_of_a_turn_sum_to_zero_where_ended_episodes_are_counted(turns: list[list[float]]) -> None:
    found = per_node(TurnGrpo()(chains(*turns)))
    for turn in range(max(map(len, turns))):
        of_ended = 0.0
        for number, rewards in enumerate(turns):
            if len(rewards) <= turn:  # what it would get: 0 less the mean of the others
                of_ended -= sum(sum(others[turn:]) for peer, others in enumerate(turns) if peer != number)
        reached = sum(of_episode[turn] for of_episode in found if len(of_episode) > turn)
        assert reached + of_ended / (len(turns) - 1) == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=20)
@given(TURNS, st.randoms(use_true_random=False))
def test_order_of_the_group_does_not_matter(turns: list[list[float]], random: object) -> None:
    order = list(range(len(turns)))
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    whole = per_node(TurnGrpo()(chains(*turns)))
    shuffled = per_node(TurnGrpo()(chains(*(turns[place] for place in order))))
    for found, place in zip(shuffled, order, strict=True):
        assert found == pytest.approx(whole[place], abs=1e-9)


EPISODES = {(0.0,): 0.5, (0.0, 1.0): 0.25, (0.0, 0.0): 0.25}
"""An env of at most two turns: it ends after the first with probability 1/2; the second is paid 1 or 0, evenly."""


def share_of_the_second_turns_gradient(size: int, *, baseline: str) -> float:
    """Return what an estimate gives of d E[R] / d logit of the second turn, over all groups of a size.

    The truth is P(second turn) p (1 - p) = .5 * .25. `others` is `turn_grpo`; `reached` compares a turn with the others
    that reached it, and gives 0 where there is none; `mean` takes the mean of all that reached it, oneself included.
    """
    total = 0.0
    for group in combinations_with_replacement(EPISODES, size):
        ways = math.factorial(size) / math.prod(map(math.factorial, Counter(group).values()))
        chance = ways * math.prod(EPISODES[episode] for episode in group)
        seconds = [episode[1] for episode in group if len(episode) == 2]
        found = [numbers[1] for numbers in per_node(TurnGrpo()(chains(*group))) if len(numbers) == 2]
        if baseline == "reached":
            found = [(reward * len(seconds) - sum(seconds)) / max(len(seconds) - 1, 1) for reward in seconds]
        if baseline == "mean":
            found = [reward - fmean(seconds) for reward in seconds]
        scores = [reward - 0.5 for reward in seconds]  # d log pi / d logit: 1 - p or -p
        total += chance * sum(a * score for a, score in zip(found, scores, strict=True)) / size
    return total / 0.125


@pytest.mark.parametrize("size, reached, mean", [(2, 0.5, 0.25), (4, 0.875, 0.53125), (8, 0.9921875, 0.750977)])
def test_published_shares_of_the_gradient(size: int, reached: float, mean: float) -> None:
    """Counting episodes that have ended as return 0 gives all of the gradient; the tempting baselines give less."""
    assert share_of_the_second_turns_gradient(size, baseline="others") == pytest.approx(1.0, abs=1e-12)
    assert share_of_the_second_turns_gradient(size, baseline="reached") == pytest.approx(reached, abs=1e-12)
    assert share_of_the_second_turns_gradient(size, baseline="mean") == pytest.approx(mean, abs=1e-6)
