"""Credits of trees by their leaves: Tree-GRPO and TreePO."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.credit.tree_outcome import TreeGrpo, TreePo
from tests.support import example_trees as cases
from tests.support.credit_trees import branched, chains, group_of, per_node

REWARDS = st.lists(st.floats(-5, 5), min_size=1, max_size=4)


def of_trees(*rewards: list[float]) -> Group:
    """Build trees whose leaves hang below one shared first turn."""
    return group_of(
        *(
            branched(f"t{number}", (0, 0.0), *((1, reward) for reward in of_tree))
            for number, of_tree in enumerate(rewards)
        )
    )


def of_leaves(credit: TreeGrpo | Grpo, group: Group) -> list[float]:
    found = per_node(credit(group))
    assert all(len(set(numbers)) == 1 for numbers in found)
    return [numbers[0] for numbers in found]


def test_published_vector() -> None:
    group = of_trees([1, 0, 0], [1, 1, 0])
    inter = [0.912869, -0.912869, -0.912869, 0.912869, 0.912869, -0.912869]
    both = [2.067568, -1.490219, -1.490219, 1.490218, 1.490218, -2.067568]
    assert of_leaves(Grpo(), group) == pytest.approx(inter, abs=2e-6)
    assert of_leaves(TreeGrpo(), group) == pytest.approx(both, abs=2e-6)
    intra = [whole - part for whole, part in zip(of_leaves(TreeGrpo(), group), inter, strict=True)]
    assert intra == pytest.approx([1.154698, -0.577349, -0.577349, 0.577349, 0.577349, -1.154699], abs=3e-6)


def test_tree_of_one_episode_has_no_intra_term() -> None:
    """The authors' code sets mean 0 and std 1 there, so that the raw reward becomes an advantage."""
    group = chains([1], [0], [0], [1], [1], [0])
    assert of_leaves(TreeGrpo(), group) == of_leaves(Grpo(), group)


def test_trees_without_spread_are_told_apart_by_the_inter_term() -> None:
    found = of_leaves(TreeGrpo(), of_trees([1, 1, 1], [0, 0, 0]))
    assert found == pytest.approx([0.9129] * 3 + [-0.9129] * 3, abs=1e-4)


def test_one_tree_counts_twice() -> None:
    """Within one tree both terms are the same."""
    group = of_trees([1, 0, 0])
    assert of_leaves(TreeGrpo(), group) == pytest.approx([2 * advantage for advantage in of_leaves(Grpo(), group)])


def test_invalid_branch_changes_nothing() -> None:
    assert of_leaves(TreeGrpo(), group_of(cases.invalid_branch())) == pytest.approx(
        of_leaves(TreeGrpo(), group_of(branched("t", (0, 1.0), (0, 0.0))))
    )


@settings(max_examples=20)
@given(st.lists(REWARDS, min_size=1, max_size=3))
def test_advantages_sum_to_zero(rewards: list[list[float]]) -> None:
    found = of_leaves(TreeGrpo(), of_trees(*rewards))
    assert sum(found) == pytest.approx(0.0, abs=1e-4 * max(1.0, *map(abs, found)))


@settings(max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=5))
def test_chains_reduce_to_grpo(rewards: list[float]) -> None:
    group = chains(*([reward] for reward in rewards))
    assert of_leaves(TreeGrpo(), group) == of_leaves(Grpo(), group)


def of_two_subtrees(*rewards: float) -> list[float]:
    """Return what two sub-trees of two leaves each get below one prompt."""
    first, second, third, fourth = rewards
    tree = branched("p", (0, 0.0), (1, first), (1, second), (0, 0.0), (4, third), (4, fourth))
    return [found[-1] for found in per_node(TreePo()(group_of(tree)))]


def test_published_vectors() -> None:
    assert of_two_subtrees(1, 0, 0, 1) == pytest.approx([0.5, -0.5, -0.5, 0.5])
    # the first: 4/6 * (1 - 3/4) + 2/6 * (1 - 1)
    assert of_two_subtrees(1, 1, 0, 1) == pytest.approx([0.166667, 0.166667, -0.666667, 0.333333], abs=1e-6)


def test_unbranched_turns_are_no_ancestors_of_their_own() -> None:
    short = branched("p", (0, 0.0), (1, 1.0), (1, 1.0), (0, 0.0), (4, 0.0), (4, 1.0))
    long = branched("p", (0, 0.0), (1, 0.0), (2, 1.0), (2, 1.0), (0, 0.0), (5, 0.0), (6, 0.0), (6, 1.0))
    assert [f[-1] for f in per_node(TreePo()(group_of(long)))] == [f[-1] for f in per_node(TreePo()(group_of(short)))]


@settings(max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=4, max_size=4))
def test_balanced_trees_sum_to_zero(rewards: list[float]) -> None:
    assert sum(of_two_subtrees(*rewards)) == pytest.approx(0.0, abs=1e-9)
