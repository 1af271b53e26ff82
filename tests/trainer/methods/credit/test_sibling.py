"""Sibling baseline: hand cases, reductions and laws."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.methods.credit.outcome import Rloo
from envgym.trainer.methods.credit.sibling import Sibling
from envgym.trainer.methods.credit.turn_grpo import TurnGrpo
from tests.support import example_trees as cases
from tests.support.credit_trees import BRANCH, branched, chain, chains, group_of, per_node

TURNS = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=1, max_size=5)


def test_children_of_one_node_share_a_baseline() -> None:
    group = group_of(branched("A", (0, 0.5), (1, 1.0), (1, 0.0)), chain("B", [0.25]))
    # leaves weigh 1/4, 1/4, 1/2, times 3: .75, .75, 1.5; Q(A's first) = .5 + .5 = 1
    # first turns: 1 - .25 = .75 and .25 - 1 = -.75; below the fork: 1 - 0 and 0 - 1
    assert per_node(Sibling()(group)) == [[0.75 * 0.75, 0.75], [0.75 * 0.75, -0.75], [1.5 * -0.75]]


def test_node_without_siblings_is_compared_with_those_of_the_branch_above() -> None:
    # below a fork two chains: A pays 1 then 4, B pays 2 and ends
    group = group_of(branched("t", (0, 0.0), (1, 1.0), (2, 4.0), (1, 2.0)))
    # turn 1: 5 - 2 and 2 - 5; turn 2: 4 against B, which has ended, at 0; the first turn has nothing to compare with
    assert per_node(Sibling()(group)) == [[0.0, 3.0, 4.0], [0.0, -3.0]]


def test_fork_inside_a_turn_is_a_branch() -> None:
    group = group_of(branched("t", (0, BRANCH), (1, 1.0), (1, 0.0)), chain("B", [0.0]))
    found = per_node(Sibling()(group))
    assert found[0] == pytest.approx([0.75 * 0.5, 0.75 * 1.0])
    assert found[2] == pytest.approx([1.5 * -0.5])


def test_invalid_branch_is_no_sibling() -> None:
    assert per_node(Sibling()(group_of(cases.invalid_branch()))) == [[1.0], [-1.0]]


def test_advantages_under_one_node_sum_to_zero() -> None:
    group = group_of(branched("t", (0, 0.0), (1, 1.0), (1, 0.0), (1, 5.0)))
    assert sum(row[1] for row in per_node(Sibling()(group))) == pytest.approx(0.0)


@settings(max_examples=20)
@given(TURNS)
def test_chains_get_turn_grpo(turns: list[list[float]]) -> None:
    for found, expected in zip(per_node(Sibling()(chains(*turns))), per_node(TurnGrpo()(chains(*turns))), strict=True):
        assert found == pytest.approx(expected, abs=1e-9)


@settings(max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_single_turns_get_rloo(rewards: list[float]) -> None:
    group = chains(*([reward] for reward in rewards))
    for found, expected in zip(per_node(Sibling()(group)), per_node(Rloo()(group)), strict=True):
        assert found == pytest.approx(expected, abs=1e-9)


@settings(max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=4))
def test_one_tree_branched_at_the_prompt_is_a_group_of_chains(rewards: list[float]) -> None:
    star = group_of(branched("star", *((0, reward) for reward in rewards)))
    assert per_node(Sibling()(star)) == per_node(Sibling()(chains(*([reward] for reward in rewards))))
