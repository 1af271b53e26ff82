"""What methods on nodes share."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.paths import (
    ROOT,
    GroupTree,
    discounted_returns,
    turn_credit,
    turn_of_nodes,
    turn_rewards,
)
from tests.support import example_trees as cases
from tests.support.credit_trees import BRANCH, branched, chains, group_of


def test_returns_are_discounted_sums_of_what_follows() -> None:
    # .5 * (.5 * 4 + 2) + 1 = 3
    assert discounted_returns([1, 2, 4], 0.5) == [3.0, 4.0, 4.0]
    assert discounted_returns([1, 2, 4]) == [7.0, 6.0, 4.0]
    assert discounted_returns([]) == []


@given(st.lists(st.floats(-5, 5), max_size=6), st.floats(0, 1))
def test_return_is_reward_and_discounted_rest(rewards: list[float], discount: float) -> None:
    returns = [*discounted_returns(rewards, discount), 0.0]
    for reward, (here, following) in zip(rewards, pairwise(returns), strict=True):
        assert here == pytest.approx(reward + discount * following)


def test_turn_that_was_cut_paid_nothing() -> None:
    (episode,) = Group(key="g", trees=(cases.truncated_episode(),)).valid
    assert turn_rewards(episode) == [0.25, 0.0]
    assert turn_of_nodes(episode) == (-1, 0, 1)


def test_nodes_of_one_turn_share_its_advantage() -> None:
    tree = branched("t", (0, 1.0), (1, BRANCH), (2, 2.0), (2, 3.0))
    first, _ = group_of(tree).valid
    assert turn_of_nodes(first) == (-1, 0, 1, 1)
    assert turn_credit(first, [5.0, 7.0]).advantages == (0.0, 5.0, 7.0, 7.0)


def test_trees_of_a_group_share_the_prompt() -> None:
    fork = branched("fork", (0, 0.0), (1, 1.0), (1, 0.0))
    branches = GroupTree(group=group_of(fork, *chains([1.0]).trees))
    assert branches.paths == ((ROOT, (0, 1), (0, 2)), (ROOT, (0, 1), (0, 3)), (ROOT, (1, 1)))
    assert branches.episodes_through[ROOT] == (0, 1, 2)
    assert branches.episodes_through[0, 1] == (0, 1)
    assert branches.children == {ROOT: ((0, 1), (1, 1)), (0, 1): ((0, 2), (0, 3))}


def test_invalid_branch_is_no_branch() -> None:
    branches = GroupTree(group=group_of(*cases.outcome_group(None, 1.0).trees, cases.invalid_branch()))
    assert branches.tree_numbers == (1, 2, 2)
    assert branches.children == {ROOT: ((1, 1), (2, 1), (2, 2))}
