"""The overlong penalty: hand cases, reduction, law, and what it leaves alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.turns import Scored
from envgym.trainer.methods.credit.outcome import DrGrpo
from envgym.trainer.methods.shaping.none import NoShaping
from envgym.trainer.methods.shaping.overlong import Overlong
from tests.support import example_trees as cases
from tests.support.credit_trees import branched, group_of, per_node

SOFT = Overlong(max_tokens=10, buffer=4)


def test_penalty_grows_over_the_buffer() -> None:
    assert [SOFT.penalty(length) for length in (0, 6, 7, 8, 9, 10, 11, 99)] == [0, 0, -0.25, -0.5, -0.75, -1, -1, -1]


def test_without_a_buffer_only_what_exceeds_the_limit_is_punished() -> None:
    hard = Overlong(max_tokens=10, buffer=0)
    assert [hard.penalty(length) for length in (9, 10, 11)] == [0, 0, -1]


def test_penalty_is_a_component_of_the_last_turns_reward() -> None:
    group = group_of(cases.outcome_tree("long", 1.0, tokens=8), cases.outcome_tree("short", 1.0, tokens=3))
    long, short = SOFT(group).valid
    assert isinstance(long.reward, Scored)
    assert (long.reward.value, dict(long.reward.components)) == (0.5, {"answer": 1.0, "overlong": -0.5})
    assert short.reward == group.valid[1].reward
    assert long.rows == group.valid[0].rows
    assert per_node(DrGrpo()(SOFT(group))) == [[-0.25], [0.25]]


def test_episode_cut_inside_a_turn_is_punished_too() -> None:
    (cut,) = group_of(cases.truncated_episode()).valid  # .25 for the first turn; 1 + 3 sampled tokens
    (shaped,) = Overlong(max_tokens=4, buffer=2)(group_of(cases.truncated_episode())).valid
    assert isinstance(shaped.reward, Scored)
    assert shaped.reward.value == -0.75
    assert (shaped.ending, shaped.rows, len(shaped.turns)) == (cut.ending, cut.rows, len(cut.turns))


def test_invalid_episode_stays_invalid() -> None:
    shaped = Overlong(max_tokens=1)(group_of(cases.invalid_branch()))
    assert [episode.is_valid for episode in shaped.trajectories] == [True, True, False]


def test_branches_are_punished_by_their_own_length() -> None:
    tree = branched("t", (0, 0.0), (1, 1.0), (1, 0.0), (3, 1.0))
    rewards = [episode.reward for episode in Overlong(max_tokens=3, buffer=1)(group_of(tree)).valid]
    assert [reward.value for reward in rewards if isinstance(reward, Scored)] == [1.0, 0.0]


def test_none_changes_nothing() -> None:
    group = cases.outcome_group(1, 0)
    assert NoShaping()(group) is group


@given(st.integers(1, 50), st.integers(0, 20), st.integers(0, 80))
def test_penalty_never_rises_with_length(most: int, buffer: int, length: int) -> None:
    shaping = Overlong(max_tokens=most, buffer=buffer)
    assert -1 <= shaping.penalty(length + 1) <= shaping.penalty(length) <= 0


def test_short_episodes_reduce_to_no_shaping() -> None:
    group = cases.outcome_group(1, 0)
    assert Overlong()(group) == NoShaping()(group)


@pytest.mark.parametrize("setting", [{"max_tokens": 0}, {"buffer": -1}])
def test_impossible_lengths_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="greater than or equal"):
        Overlong(**setting)
