"""What methods on nodes share."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.paths import ROOT, Branches, discounted, node_turns, on_turns, turn_rewards
from tests.support import example_trees as cases
from tests.support.credit_trees import BRANCH, branched, chains, group_of


def test_returns_are_discounted_sums_of_what_follows() -> None:
    # .5 * (.5 * 4 + 2) + 1 = 3
    assert discounted([1, 2, 4], 0.5) == [3.0, 4.0, 4.0]
    assert discounted([1, 2, 4]) == [7.0, 6.0, 4.0]
    assert discounted([]) == []


@given(st.lists(st.floats(-5, 5), max_size=6), st.floats(0, 1))
def test_return_is_reward_and_discounted_rest(rewards: list[float], discount: float) -> None:
    returns = [*discounted(rewards, discount), 0.0]
    for reward, (here, following) in zip(rewards, pairwise(returns), strict=True):
        assert here == pytest.approx(reward + discount * following)


def test_turn_that_was_cut_paid_nothing() -> None:
    (episode,) = Group(key="g", trees=(cases.truncated_episode(),)).valid
    assert turn_rewards(episode) == [0.25, 0.0]
    assert node_turns(episode) == (-1, 0, 1)


def test_nodes_of_one_turn_share_its_advantage() -> None:
    tree = branched("t", (0, 1.0), (1, BRANCH), (2, 2.0), (2, 3.0))
    first, _ = group_of(tree).valid
    assert node_turns(first) == (-1, 0, 1, 1)
    assert on_turns(first, [5.0, 7.0]).advantages == (0.0, 5.0, 7.0, 7.0)


def test_trees_of_a_group_share_the_prompt() -> None:
    fork = branched("fork", (0, 0.0), (1, 1.0), (1, 0.0))
    branches = Branches(group=group_of(fork, *chains([1.0]).trees))
    assert branches.paths == ((ROOT, (0, 1), (0, 2)), (ROOT, (0, 1), (0, 3)), (ROOT, (1, 1)))
    assert branches.holders[ROOT] == (0, 1, 2)
    assert branches.holders[0, 1] == (0, 1)
    assert branches.children == {ROOT: ((0, 1), (1, 1)), (0, 1): ((0, 2), (0, 3))}


def test_invalid_branch_is_no_branch() -> None:
    branches = Branches(group=group_of(*cases.outcome_group(None, 1.0).trees, cases.invalid_branch()))
    assert branches.tree_numbers == (1, 2, 2)
    assert branches.children == {ROOT: ((1, 1), (2, 1), (2, 2))}
