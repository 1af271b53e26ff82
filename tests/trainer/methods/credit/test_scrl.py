"""SCRL: hand case, reduction and law."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.credit.positions import by_position
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
