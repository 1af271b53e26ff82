"""TARL: scores of turns read from a judge's list, summed; one that is no such list is an error."""

import asyncio

import pytest

from envgym.core.trajectory import Group
from envgym.errors import PartyFailure
from envgym.trainer.methods.annotators.base import episode_value, turn_values
from envgym.trainer.methods.annotators.tarl import Tarl, read_turn_scores
from envgym.trainer.methods.shaping.annotated import Annotated
from tests.support.credit_trees import chain
from tests.support.example_trees import branch_after_a_tool_call
from tests.support.judges import DEAD, judge_context


def test_scores_stand_on_turns_and_their_sum_on_the_episode() -> None:
    group = Group(key="g", trees=(chain("t", [0.0, 0.0, 1.0]),))
    found = asyncio.run(Tarl()(group, judge_context(lambda prompt: "one slip\n[1, -1, 0]")))
    (episode,) = found.trajectories
    assert turn_values(episode, "tarl") == (1.0, -1.0, 0.0)
    assert episode_value(episode, "tarl") == 0.0


def test_the_stable_version_adds_ten_times_the_sum_to_the_last_turn() -> None:
    group = Group(key="g", trees=(chain("t", [0.0, 0.0, 1.0]),))
    found = asyncio.run(Tarl()(group, judge_context(lambda prompt: "[1, 1, 0]")))
    (episode,) = Annotated(annotation="tarl", coef=10.0)(found).trajectories
    rewards = [turn.outcome.reward.value for turn in episode.turns]  # type: ignore[union-attr]  # every turn is paid
    assert rewards == [0.0, 0.0, 21.0]  # 1 + 10 · (1 + 1 + 0)


def test_a_shared_turn_keeps_the_first_score_and_each_episode_its_own_sum() -> None:
    replies = iter(["[1, 1]", "[0, -1]"])
    group = Group(key="g", trees=(branch_after_a_tool_call(),))
    found = asyncio.run(Tarl()(group, judge_context(lambda prompt: next(replies))))
    assert [turn_values(episode, "tarl") for episode in found.trajectories] == [(1.0, 1.0), (1.0, -1.0)]
    assert [episode_value(episode, "tarl") for episode in found.trajectories] == [2.0, -1.0]


@pytest.mark.parametrize(
    "reply", ["", "[1, 1", "[1]", "[1, 2]", "[-1, -1]", "[true, 0]", "[0.5, 1]", '{"a": 1}', "[1, 1] done", "[" * 9999]
)
def test_a_reply_that_is_no_list_of_scores_is_refused(reply: str) -> None:
    with pytest.raises(PartyFailure, match="must end with a JSON list of 2 scores -1, 0 or 1, at most one of them -1"):
        read_turn_scores(reply, 2)


def test_a_judge_that_fails_is_one_error_of_its_episode() -> None:
    group = Group(key="g", trees=(chain("t", [0.0, 1.0]),))
    found = asyncio.run(Tarl()(group, judge_context(lambda prompt: DEAD)))
    (item,) = found.trees[0].annotations
    assert (item.level, item.value, item.error) == ("episode", None, "no answer within 3 s")
