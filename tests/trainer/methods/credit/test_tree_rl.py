"""TreeRL: the published tree by the paper's formula, the defects of the code, reductions and laws."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.methods.credit.tree_rl import TreeRl
from tests.support.credit_trees import BRANCH, branched, chain, chains, group_of, per_node

PUBLISHED = group_of(branched("A", (0, BRANCH), (1, 1.0), (1, 0.0), (1, 1.0)), chain("B", [0.0]))
"""A prefix with three branches paid 1, 0, 1, and a chain paid 0; leaves less the mean of the others: 2/3, -2/3, ..."""


def test_published_tree_without_discounting_shared_nodes() -> None:
    # V(prefix) = (2/3 - 2/3 + 2/3)/3 = .222222, so 2 V = .444444; leaf: 2/3 + (2/3 - .222222) = 1.111111
    first, second, third, lone = per_node(TreeRl(shared=0)(PUBLISHED))
    assert first == pytest.approx([0.444444, 1.111111], abs=1e-6)
    assert second == pytest.approx([0.444444, -1.555556], abs=1e-6)
    assert third == first
    assert lone == pytest.approx([-1.333333], abs=1e-6)


@pytest.mark.parametrize("exponent, prefix", [(0.5, 0.256600), (1.0, 0.148148)])
def test_published_tree_by_the_papers_formula(exponent: float, prefix: float) -> None:
    """The authors' code divides before it differences, which gives 1.205033 and -1.461633 on the leaves at e = 1/2."""
    found = per_node(TreeRl(shared=exponent)(PUBLISHED))
    assert found[0] == pytest.approx([prefix, 1.111111], abs=1e-6)
    assert found[1] == pytest.approx([prefix, -1.555556], abs=1e-6)
    assert found[3] == pytest.approx([-1.333333], abs=1e-6)


def test_the_papers_exponent_is_the_default() -> None:
    assert per_node(TreeRl()(PUBLISHED)) == per_node(TreeRl(shared=0.5)(PUBLISHED))


def test_exponent_is_the_times_that_a_shared_node_counts() -> None:
    # three rows hold the prefix: in all it weighs 3, sqrt 3 or 1 times its advantage
    for exponent, times in ((0.0, 3.0), (0.5, 3**0.5), (1.0, 1.0)):
        rows = per_node(TreeRl(shared=exponent)(PUBLISHED))[:3]
        assert sum(row[0] for row in rows) == pytest.approx(times * 0.444444, abs=1e-5)


def test_unbranched_turns_are_one_step() -> None:
    """Cutting a chain into turns must not take the local advantage from all turns but the first."""
    assert per_node(TreeRl()(chains([0, 0, 1], [0]))) == [[2.0, 2.0, 2.0], [-2.0]]


def test_branch_that_adds_nothing_has_local_advantage_zero() -> None:
    """The authors' code copies the parent's L there, though the branch is a real one."""
    group = group_of(branched("A", (0, 0.0), (1, 1.0), (1, 1.0)), chain("B", [0.0]))
    # leaves 1 - 1/2, 1 - 1/2, 0 - 1; V(first) = .5: G + L = .5 + .5; below: .5 + 0
    assert per_node(TreeRl(shared=0)(group)) == [[1.0, 0.5], [1.0, 0.5], [-2.0]]


def test_group_of_one_has_advantage_zero() -> None:
    assert per_node(TreeRl()(chains([1, 2]))) == [[0.0, 0.0]]


@settings(max_examples=20)
@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=3), min_size=1, max_size=4))
def test_first_turns_sum_to_zero_over_episodes(rewards: list[list[float]]) -> None:
    trees = [branched(f"t{n}", (0, 0.0), *((1, reward) for reward in found)) for n, found in enumerate(rewards)]
    found = per_node(TreeRl(shared=0)(group_of(*trees)))
    assert sum(row[0] for row in found) == pytest.approx(0.0, abs=1e-9)
