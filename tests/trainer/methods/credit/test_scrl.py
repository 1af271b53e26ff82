"""Credits that compare position by position: SCRL and MT-GRPO."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.credit.positions import MtGrpo, by_position
from envgym.trainer.methods.credit.scrl import Scrl
from tests.support.credit_trees import chains, per_node


def test_every_position_is_standardised_alone() -> None:
    # position 0: [1, 0], std .707107: +-.5/.707107; position 1: [2, 2]: 0; position 2: one episode alone: 0
    found = per_node(Scrl()(chains([1, 2, 7], [0, 2])))
    assert found[0] == pytest.approx([0.707106, 0.0, 0.0], abs=1e-5)
    assert found[1] == pytest.approx([-0.707106, 0.0], abs=1e-5)


@settings(max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_one_position_is_grpo(rewards: list[float]) -> None:
    group = chains(*([reward] for reward in rewards))
    assert per_node(Scrl()(group)) == per_node(Grpo()(group))


@given(st.lists(st.lists(st.floats(-5, 5), max_size=4), max_size=5))
def test_every_position_sums_to_zero(rewards: list[list[float]]) -> None:
    found = by_position(rewards)
    assert [len(of_turns) for of_turns in found] == [len(of_turns) for of_turns in rewards]
    for position in range(4):
        column = [of_turns[position] for of_turns in found if len(of_turns) > position]
        assert sum(column) == pytest.approx(0.0, abs=1e-4)


Z = 0.5 / (0.5**0.5)
"""Of 1 among [1, 0]: half of the difference over the unbiased deviation, but for the epsilon."""


def test_turn_and_outcome_add_before_the_last_turn() -> None:
    # first turns [1, 0]: +-Z; outcomes [0, 1]: -+Z
    found = per_node(MtGrpo()(chains([1, 0], [0, 1])))
    assert found == [
        [pytest.approx(0.0), pytest.approx(-Z, abs=1e-5)],
        [pytest.approx(0.0), pytest.approx(Z, abs=1e-5)],
    ]


def test_weight_of_the_outcome_holds_before_the_last_turn_only() -> None:
    found = per_node(MtGrpo(outcome_weight=0)(chains([1, 0], [0, 1])))
    assert found[0] == pytest.approx([Z, -Z], abs=1e-5)
    assert found[1] == pytest.approx([-Z, Z], abs=1e-5)


def test_last_turn_of_a_short_episode_is_no_peer_of_an_inner_turn() -> None:
    # of the first turns only the first episode's is not last; alone, it adds 0
    found = per_node(MtGrpo()(chains([5, 1], [0])))
    assert found[0] == pytest.approx([Z, Z], abs=1e-5)
    assert found[1] == pytest.approx([-Z], abs=1e-5)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=6))
def test_turns_sum_to_zero(rewards: list[tuple[float, float]]) -> None:
    found = per_node(MtGrpo()(chains(*rewards)))
    for turn in range(2):
        assert sum(of_turns[turn] for of_turns in found) == pytest.approx(0.0, abs=1e-4)
