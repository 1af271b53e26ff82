"""SCRL's rewards: what follows the first unsolved subproblem earns nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.paths import turn_rewards
from envgym.trainer.methods.credit.scrl import Scrl
from envgym.trainer.methods.shaping.solved_prefix import SolvedPrefix
from tests.support.credit_trees import branched, chains, group_of, per_node


def shaped(*rewards: list[float], solved_at: float = 1.0) -> list[list[float]]:
    group = SolvedPrefix(solved_at=solved_at)(chains(*rewards))
    return [turn_rewards(episode) for episode in group.valid]


def test_rewards_after_the_first_failure_are_0() -> None:
    assert shaped([1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]) == [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]
    assert shaped([0.5, 0.2, 0.5], solved_at=0.5) == [[0.5, 0.2, 0.0]]


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=5), min_size=1, max_size=4))
def test_sum_is_the_length_of_the_solved_prefix(rewards: list[list[float]]) -> None:
    for before, after in zip(rewards, shaped(*rewards), strict=True):
        prefix = next((place for place, reward in enumerate(before) if reward < 1), len(before))
        assert after == [1.0] * prefix + [0.0] * (len(before) - prefix)


def test_branches_below_an_unsolved_turn_earn_nothing() -> None:
    group = SolvedPrefix()(group_of(branched("t", (0, 1.0), (1, 0.0), (2, 1.0), (1, 1.0), (4, 1.0))))
    assert [turn_rewards(episode) for episode in group.valid] == [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]


def test_positions_are_compared_by_themselves() -> None:
    group: Group = SolvedPrefix()(chains([1.0, 0.0], [0.0, 1.0]))
    # second position: both 0 after shaping, so nobody is better there
    first, second = per_node(Scrl()(group))
    assert first == pytest.approx([0.707106, 0.0], abs=1e-5)
    assert second == pytest.approx([-0.707106, 0.0], abs=1e-5)
