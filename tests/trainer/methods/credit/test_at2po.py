"""AT2PO: the golden tree in every form, reductions, and laws."""

import math
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.core.turns import Ending
from envgym.trainer.methods.credit.at2po import At2po
from tests.support.credit_trees import chains, group_of, per_node
from tests.support.example_trees import paid, policy, start, turn


def golden() -> Group:
    """Root -> A (H .5) -> A1 (r 1, H .2), A2 (r 0, H .6); root -> B (r 0, H .9). Token i has surprisal i / 100."""
    tree = start("golden")
    inner = tree.add(tree.root, turn(policy(50)), outcome=paid(0.0))
    tree.add(inner, turn(policy(20)), outcome=paid(1.0), ending=Ending.TERMINATED)
    tree.add(inner, turn(policy(60)), outcome=paid(0.0), ending=Ending.TERMINATED)
    tree.add(tree.root, turn(policy(90)), outcome=paid(0.0), ending=Ending.TERMINATED)
    return group_of(tree.freeze())


def form(**fields: Any) -> list[float]:
    """Return the advantages of A, A1, A2 and B."""
    (above, first), (same, second), (alone,) = per_node(At2po(**fields)(golden()))
    assert above == same
    return [above, first, second, alone]


def test_golden_tree_with_weighted_children() -> None:
    # z of the leaves 1, 0, 0 with the population's deviation sqrt(2)/3; V(A) by softmax(.2, .6)
    assert form() == pytest.approx([0.144205, 1.414211, -0.707105, -0.707105], abs=1e-5)
    # V(root) = -.365464 by softmax(.5, .9)
    assert form(advantage="diff_parent") == pytest.approx([0.509669, 1.270006, -0.85131, -0.341641], abs=1e-5)
    assert form(advantage="diff_localglobal")[1] == pytest.approx(3.04968, abs=1e-5)
    whole, own = form(advantage="diff_global"), form()
    assert [value - mine for value, mine in zip(whole, own, strict=True)] == pytest.approx([0.365464] * 4, abs=1e-5)


def test_golden_tree_with_means() -> None:
    # child_mean: V(A) = (1.414211 - .707105)/2, V(root) = (.353553 - .707105)/2 = -.176776
    assert form(value="child_mean")[0] == pytest.approx(0.353553, abs=1e-5)
    assert form(value="child_mean", advantage="diff_parent")[0] == pytest.approx(0.353553 + 0.176776, abs=1e-5)
    # leaf_mean: V(A) the same, V(root) = 0
    assert form(value="leaf_mean", advantage="diff_parent")[0] == pytest.approx(0.353553, abs=1e-5)


def test_without_standardising_leaves_are_rewards() -> None:
    above, *leaves = form(standardise=False)
    assert leaves == [1.0, 0.0, 0.0]
    assert above == pytest.approx(math.exp(0.2) / (math.exp(0.2) + math.exp(0.6)))


@settings(max_examples=25)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_chains_get_the_standardised_reward_on_every_turn(rewards: list[float]) -> None:
    deviation = statistics.pstdev(rewards)
    found = per_node(At2po()(chains(*([0.0, reward] for reward in rewards))))
    for of_episode, reward in zip(found, rewards, strict=True):
        expected = (reward - statistics.fmean(rewards)) / (deviation + 1e-6)
        assert of_episode == pytest.approx([expected, expected], abs=1e-9)


def test_surer_child_weighs_less() -> None:
    """At equal surprisals the weights are those of the mean."""
    tree = start("even")
    inner = tree.add(tree.root, turn(policy(50)), outcome=paid(0.0))
    for reward in (1.0, 0.0):
        tree.add(inner, turn(policy(30)), outcome=paid(reward), ending=Ending.TERMINATED)
    group = group_of(tree.freeze())
    assert per_node(At2po()(group)) == [pytest.approx(row) for row in per_node(At2po(value="child_mean")(group))]
    assert form(standardise=False)[0] < 0.5 == form(standardise=False, value="child_mean")[0]
