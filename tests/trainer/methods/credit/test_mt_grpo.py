"""MT-GRPO: hand case, reductions and law."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.credit.positions import MtGrpo
from tests.support.credit_trees import chains, per_node

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
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.integers(1, 3))
def test_outcomes_alone_are_grpo(rewards: list[float], length: int) -> None:
    group = chains(*([0.0] * (length - 1) + [reward] for reward in rewards))
    for found, expected in zip(per_node(MtGrpo()(group)), per_node(Grpo()(group)), strict=True):
        assert found == pytest.approx(expected, abs=1e-6)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=6))
def test_turns_sum_to_zero(rewards: list[tuple[float, float]]) -> None:
    found = per_node(MtGrpo()(chains(*rewards)))
    for turn in range(2):
        assert sum(of_turns[turn] for of_turns in found) == pytest.approx(0.0, abs=1e-4)
