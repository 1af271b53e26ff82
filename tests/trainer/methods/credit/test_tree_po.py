"""TreePO: published vectors, reduction and law."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.methods.credit.outcome import DrGrpo
from envgym.trainer.methods.credit.tree_outcome import TreePo
from tests.support.credit_trees import branched, chains, group_of, per_node


def of_leaves(*rewards: float) -> list[float]:
    """Return what two sub-trees of two leaves each get below one prompt."""
    first, second, third, fourth = rewards
    tree = branched("p", (0, 0.0), (1, first), (1, second), (0, 0.0), (4, third), (4, fourth))
    return [found[-1] for found in per_node(TreePo()(group_of(tree)))]


def test_published_vectors() -> None:
    assert of_leaves(1, 0, 0, 1) == pytest.approx([0.5, -0.5, -0.5, 0.5])
    # the first: 4/6 * (1 - 3/4) + 2/6 * (1 - 1)
    assert of_leaves(1, 1, 0, 1) == pytest.approx([0.166667, 0.166667, -0.666667, 0.333333], abs=1e-6)


def test_unbranched_turns_are_no_ancestors_of_their_own() -> None:
    short = branched("p", (0, 0.0), (1, 1.0), (1, 1.0), (0, 0.0), (4, 0.0), (4, 1.0))
    long = branched("p", (0, 0.0), (1, 0.0), (2, 1.0), (2, 1.0), (0, 0.0), (5, 0.0), (6, 0.0), (6, 1.0))
    assert [f[-1] for f in per_node(TreePo()(group_of(long)))] == [f[-1] for f in per_node(TreePo()(group_of(short)))]


@settings(max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_chains_get_dr_grpo(rewards: list[float]) -> None:
    group = chains(*([0.0, reward] for reward in rewards))
    for found, expected in zip(per_node(TreePo()(group)), per_node(DrGrpo()(group)), strict=True):
        assert found == pytest.approx(expected, abs=1e-9)


@settings(max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=4, max_size=4))
def test_balanced_trees_sum_to_zero(rewards: list[float]) -> None:
    assert sum(of_leaves(*rewards)) == pytest.approx(0.0, abs=1e-9)
