"""SPO: hand case, reduction and law."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.methods.credit.spo import Spo
from tests.support.credit_trees import branched, chain, group_of, per_node

TREE = group_of(branched("A", (0, 0.0), (1, 1.0), (1, 0.0)), chain("B", [0.0, 0.25]))
"""A's first turn is worth .5, B .25, the prompt .375."""


def test_segment_is_worth_what_the_value_gains() -> None:
    assert per_node(Spo()(TREE)) == [[0.125, 0.5], [0.125, -0.5], [-0.125, -0.125]]


def test_gains_can_be_divided_by_the_spread_of_the_siblings() -> None:
    # first turns [.5, .25]: std .176777; leaves [1, 0]: std .707107
    found = per_node(Spo(standardise=True)(TREE))
    assert found[0] == pytest.approx([0.125 / 0.176777, 0.5 / 0.707107], abs=1e-4)


def test_value_is_a_mean_over_children_not_over_leaves() -> None:
    # the branch of three leaves weighs no more than the chain: V(prompt) = (1 + 0) / 2
    group = group_of(branched("A", (0, 0.0), (1, 1.0), (1, 1.0), (1, 1.0)), chain("B", [0.0]))
    assert [found[0] for found in per_node(Spo()(group))] == [0.5, 0.5, 0.5, -0.5]


@settings(max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=5))
def test_gains_along_a_path_sum_to_reward_less_the_value_of_the_prompt(rewards: list[float]) -> None:
    group = group_of(branched("A", (0, 0.0), *((1, reward) for reward in rewards), (0, 0.5)))
    mean = sum(rewards) / len(rewards)
    if len(rewards) == 1:  # an unbranched turn carries the gain of its segment
        return
    for found, reward in zip(per_node(Spo()(group)), [*rewards, 0.5], strict=True):
        assert sum(found) == pytest.approx(reward - (mean + 0.5) / 2, abs=1e-9)
