"""A judge's verdicts: which words count, what the prompt holds, and that a judge that fails is no zero."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.core.tree import Annotation
from envgym.errors import InvalidInput, PartyFailure, SettingsError
from envgym.plugins import Choice
from envgym.trainer.catalog import ANNOTATOR
from envgym.trainer.methods.annotators.base import episode_value, turn_values, why_missing
from envgym.trainer.methods.annotators.judge import Judge, read_verdict
from tests.support.example_trees import branch_after_a_tool_call, outcome_group
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
