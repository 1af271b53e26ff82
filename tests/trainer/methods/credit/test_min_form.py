"""PURE: hand case, reductions and law."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.core.turns import Ending
from envgym.trainer.methods.credit.min_form import MinForm, soft_minimum
from tests.support.credit_trees import chains, per_node
from tests.support.example_trees import outcome_tree, start

REWARDS = st.lists(st.floats(-5, 5), min_size=1, max_size=5)


def test_weights_are_a_softmax_of_minus_the_rewards() -> None:
    # T = 1: weights e^0 : e^-1 = .731059 : .268941, times 0 and 1
    assert soft_minimum([0.0, 1.0], 1.0) == pytest.approx([0.0, 1 / (1 + math.e)])
    assert soft_minimum([], 1.0) == []


def test_turns_behind_the_worst_are_not_blamed_for_it() -> None:
    # A is worth its worst turn, -1, which stands first; what follows is worth 0. B is worth 1.
    found = per_node(MinForm(temperature=0.01)(chains([-1, 1], [1])))
    assert found[0] == pytest.approx([-2.0, -1.0])
    assert found[1] == pytest.approx([2.0])


def test_good_turns_do_not_outweigh_a_bad_one() -> None:
    (long, short) = per_node(MinForm(temperature=0.01)(chains([1, 1, 1, -1], [0])))
    assert long[0] == pytest.approx(-1.0)
    assert short == pytest.approx([1.0])


def test_group_of_one_has_advantage_zero_on_all_turns() -> None:
    assert per_node(MinForm()(chains([1, -1, 2]))) == [[0.0, 0.0, 0.0]]


@given(REWARDS)
def test_low_temperature_is_the_minimum(rewards: list[float]) -> None:
    assert sum(soft_minimum(rewards, 1e-3)) == pytest.approx(min(rewards), abs=5e-3)


@settings(max_examples=20)
@given(st.lists(REWARDS, min_size=1, max_size=4))
def test_first_turns_sum_to_zero(turns: list[list[float]]) -> None:
    assert sum(found[0] for found in per_node(MinForm()(chains(*turns)))) == pytest.approx(0.0, abs=1e-9)


def test_an_episode_without_a_turn_is_worth_nothing_to_the_others() -> None:
    empty = start("empty")
    empty.end(empty.root, Ending.TRUNCATED_TIME)
    group = Group(key="g", trees=(outcome_tree("one", 1.0), empty.freeze(), outcome_tree("two", 4.0)))
    # Leave one out of 1, 0 and 4: 1 - 2, and 4 - 1/2.
    first, nothing, last = per_node(MinForm()(group))
    assert first == pytest.approx([-1.0])
    assert nothing == []
    assert last == pytest.approx([3.5])
