"""OPO: hand case, reduction and law."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import DrGrpo, Opo
from tests.support.credit_trees import group_of, per_node
from tests.support.example_trees import outcome_group, outcome_tree


def of_lengths(rewards: list[float], lengths: list[int]) -> Group:
    pairs = enumerate(zip(rewards, lengths, strict=True))
    return group_of(*(outcome_tree(f"t{number}", reward, tokens=length) for number, (reward, length) in pairs))


def test_long_episodes_weigh_more_in_the_baseline() -> None:
    # (3 * 1 + 1 * 1) / (3 + 2 + 4 + 1) = .4
    found = per_node(Opo()(of_lengths([1, 0, 0, 1], [3, 2, 4, 1])))
    assert [advantage for (advantage,) in found] == pytest.approx([0.6, -0.4, -0.4, 0.6])


@settings(max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_equal_lengths_reduce_to_dr_grpo(rewards: list[float]) -> None:
    found, expected = (per_node(credit(outcome_group(*rewards))) for credit in (Opo(), DrGrpo()))
    assert [advantage for (advantage,) in found] == pytest.approx([advantage for (advantage,) in expected], abs=1e-9)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 9)), min_size=1, max_size=6))
def test_length_weighted_advantages_sum_to_zero(pairs: list[tuple[float, int]]) -> None:
    rewards, lengths = [reward for reward, _ in pairs], [length for _, length in pairs]
    found = per_node(Opo()(of_lengths(rewards, lengths)))
    weighted = sum(length * advantage for length, (advantage,) in zip(lengths, found, strict=True))
    assert weighted == pytest.approx(0.0, abs=1e-9)
