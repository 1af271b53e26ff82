"""A model as a judge: prompts, verdicts and what is refused, with the prompts by default."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import envgym
from envgym.config.plugins import Choice
from envgym.core.tasks import Split
from envgym.core.trajectory import Group
from envgym.core.tree import Annotation
from envgym.errors import InvalidInput, PartyFailure, SettingsError, UnknownName
from envgym.trainer.methods.annotators.base import ANNOTATOR, episode_value, turn_values, why_missing
from envgym.trainer.methods.annotators.judge import Judge, JudgeSettings, read_verdict
from envgym.trainer.methods.annotators.tarl import Tarl
from tests.support.example_trees import TASK, branch_after_a_tool_call, outcome_group
from tests.support.judges import DEAD, ScriptedJudge, judge_context

TREE = Group(key="g", trees=(branch_after_a_tool_call(),))


def annotations(group: Group) -> list[Annotation]:
    return [item for tree in group.trees for item in tree.annotations]


def test_every_valid_episode_gets_the_value_of_its_verdict() -> None:
    context = judge_context(lambda prompt: "It matches.\n**Yes.**")
    found = asyncio.run(Judge()(outcome_group(1, None, 0), context))
    assert [episode_value(episode, "judge") for episode in found.trajectories] == [1.0, None, 1.0]
    assert [item.verdict for item in annotations(found)] == ["It matches.\n**Yes.**"] * 2
    judge = context.models["judge"]
    assert isinstance(judge, ScriptedJudge)
    assert "6 * 7?" in judge.prompts[0]
    assert "[Reference answer]\n42" in judge.prompts[0]
    assert "[Assistant]\ndone" in judge.prompts[0]
    assert len(set(judge.seeds)) == 2


def test_a_turn_that_episodes_share_is_judged_once_and_sees_no_later_turn() -> None:
    context = judge_context(lambda prompt: "no" if "done" in prompt else "yes")
    judge = Judge(level="turn", template="{transcript}")
    found = asyncio.run(judge(TREE, context))
    assert {(item.node, item.value) for item in annotations(found)} == {(1, 1.0), (2, 0.0), (3, 0.0)}
    asked = context.models["judge"]
    assert isinstance(asked, ScriptedJudge)
    assert asked.prompts[0] == "[Turn 1]\ncall\n\n[Reply]\n42"
    assert [turn_values(episode, "judge") for episode in found.trajectories] == [(1.0, 0.0)] * 2


@pytest.mark.parametrize(
    "answer, error",
    [
        (DEAD, "no answer within 3 s"),
        ("I cannot say\x1b[2J", "the judge's reply must end with one of YES, NO, got I cannot say\\u001b[2J"),
        ("", "got nothing (judge)"),
    ],
)
def test_a_judge_that_is_missing_or_talks_nonsense_is_an_error_and_no_zero(answer: str | Exception, error: str) -> None:
    found = asyncio.run(Judge()(outcome_group(1.0), judge_context(lambda prompt: answer)))
    (item,) = annotations(found)
    assert item.value is None
    assert item.error is not None
    assert error in item.error
    assert error in why_missing(found.valid[0], "judge", "episode")


@pytest.mark.parametrize(
    "reply, value",
    [("YES", 1), ("no", 0), ("YES\nNO", 0), (" Yes! \n", 1), ("NO: it is 'yes'", None), ("yes no", None)],
)
def test_the_verdict_is_the_whole_last_line(reply: str, value: float | None) -> None:
    verdicts = {"YES": 1.0, "NO": 0.0}
    if value is None:
        with pytest.raises(PartyFailure, match="must end with one of YES, NO"):
            read_verdict(reply, verdicts)
    else:
        assert read_verdict(reply, verdicts) == value


@given(st.text())
def test_no_reply_of_a_judge_breaks_the_reader(reply: str) -> None:
    found = asyncio.run(Judge()(outcome_group(1.0), judge_context(lambda prompt: reply)))
    (item,) = annotations(found)
    assert (item.value is None) == (item.error is not None)


def test_a_template_that_names_an_unknown_field_is_refused() -> None:
    with pytest.raises(SettingsError, match="did you mean transcript"):
        ANNOTATOR.build(Choice.model_validate({"name": "judge", "template": "{transcrip}"}))


def test_a_task_without_the_reference_is_refused_with_its_keys() -> None:
    with pytest.raises(InvalidInput, match=r"payload key must be a known name, got 'anser' .*did you mean answer"):
        asyncio.run(Judge(reference="anser")(outcome_group(1.0), judge_context()))


JUDGES = ["judge", "probed_judge", "tarl", "skill_writer"]
INTERACTIVE = [
    "code/repo-v0",
    "code/sql-v0",
    "puzzles/guess_number-v0",
    "puzzles/household-v0",
    "tools/mcp-v0",
    "tools/office-v0",
    "tools/tau2-v0",
    "web/shop-v0",
]
"""Environments of several turns whose tasks have no answer."""
ANSWERED = ["math/arithmetic-v0", "math/problems-v0", "search/factbook-v0"]


def judge(name: str, **settings: Any) -> JudgeSettings:
    built = ANNOTATOR.build(Choice.model_validate({"name": name, **settings}))
    assert isinstance(built, JudgeSettings)
    return built


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize("env_id", INTERACTIVE)
def test_the_default_prompt_leaves_the_reference_out_where_a_task_has_none(name: str, env_id: str) -> None:
    task = envgym.make(env_id).unwrapped.tasks.task(Split.TRAIN, 0)
    annotator = judge(name)
    assert not annotator.task_needs()
    prompt = annotator.fill(task, "I am done.", "[Turn 1]\nI am done.")
    assert task.prompt in prompt
    assert "I am done." in prompt
    assert "eference answer" not in prompt


@pytest.mark.parametrize("name", ["judge", "probed_judge", "tarl"])
@pytest.mark.parametrize("env_id", ANSWERED)
def test_the_default_prompt_shows_the_reference_of_a_task_that_has_one(name: str, env_id: str) -> None:
    task = envgym.make(env_id).unwrapped.tasks.task(Split.TRAIN, 0)
    prompt = judge(name).fill(task, "4", "[Turn 1]\n4")
    assert f"[Reference answer]\n{task.payload['answer']}\n" in prompt


@pytest.mark.parametrize("answer", [None, ""])
def test_an_answer_that_is_nothing_is_no_reference(answer: str | None) -> None:
    task = replace(TASK, payload={"answer": answer})
    for annotator in (Judge(), Tarl()):
        prompt = annotator.fill(task, "4", "[Turn 1]\n4")
        assert "eference answer" not in prompt
        assert "None" not in prompt
    with pytest.raises(Exception, match="reference answer must be some text, got nothing"):
        Judge(reference="answer").fill(task, "4", "")


def test_zero_is_an_answer() -> None:
    assert "[Reference answer]\n0\n" in Judge().fill(replace(TASK, payload={"answer": 0}), "4", "")


def test_a_reference_that_is_named_is_never_left_out() -> None:
    with pytest.raises(UnknownName, match="payload key must be a known name, got 'anser'"):
        Judge(reference="anser").fill(replace(TASK, payload={"answer": "4"}), "4", "")
    (need,) = Judge(reference="secret").task_needs()
    assert (need.key, need.holder, need.every) == ("secret", "payload", True)
    assert not need.read(replace(TASK, payload={"answer": "4"}))
    assert need.read(replace(TASK, payload={"secret": 0}))


def test_a_reference_that_the_template_does_not_show_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"reference must be used with a template that names \{reference\}"):
        Judge(template="{task} {answer}", reference="secret")


def test_verdicts_that_are_all_worth_the_same_are_refused() -> None:
    for verdicts in ({"YES": 1.0}, {"YES": 1.0, "NO": 1.0}):
        with pytest.raises(ValidationError, match="verdicts must hold at least two different values"):
            Judge(verdicts=verdicts)
