"""RLPR: published numbers, where the reference is spliced in, and the whole annotator on characters."""

import asyncio
import math
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.tasks import Split, Task
from envgym.core.trajectory import Group, Trajectory
from envgym.errors import InvalidInput
from envgym.trainer.methods.annotators.base import episode_annotation
from envgym.trainer.methods.annotators.rlpr import Rlpr, is_well_formed, mean_probability, rlpr_reward, splice
from tests.support.judges import CharScorer, ScoringPolicy, judge_context
from tests.support.parrots import CharRenderer, Parrot, char_agent, encode, parrot_job, run_episodes, show

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
TASK = Task(id="train/0", prompt="Q", payload={"answer": "42"}, split=Split.TRAIN)


def text(token_ids: Sequence[int]) -> str:
    return "".join(show(token_ids))


def test_published_numbers() -> None:
    # (.9 + .8 + .1) / 3 = .6;  .9 · (.6 - .35) = .225, with the right format .1 more;  the product would be .072
    mean = mean_probability([math.log(p) for p in (0.9, 0.8, 0.1)])
    assert mean == pytest.approx(0.6)
    assert rlpr_reward(mean, 0.35, well_formed=False) == pytest.approx(0.225)
    assert rlpr_reward(mean, 0.35, well_formed=True) == pytest.approx(0.325)


def test_reasoning_that_helps_nothing_is_paid_for_its_format_alone() -> None:
    assert rlpr_reward(0.2, 0.9, well_formed=True) == pytest.approx(0.1)
    assert rlpr_reward(0.2, 0.9, well_formed=False) == 0.0


@given(st.lists(st.floats(-50, 0), min_size=1))
def test_the_mean_is_a_probability_and_knows_no_order(logprobs: list[float]) -> None:
    assert 0 <= mean_probability(logprobs) <= 1
    assert mean_probability(logprobs) == pytest.approx(mean_probability(sorted(logprobs)))


@pytest.mark.parametrize(
    "words, holds",
    [
        ("<think>a</think><answer>b</answer>", True),
        ("x<think></think> y <answer></answer>z", True),
        ("<answer>b</answer><think>a</think>", False),
        ("<think>a</think><answer>b</answer></answer>", False),
        ("<think>a</think><answer>b", False),
        ("", False),
    ],
)
def test_the_format_is_every_tag_once_and_in_order(words: str, holds: bool) -> None:
    assert is_well_formed(words, TAGS) == holds


@pytest.mark.parametrize(
    "sampled, whole, scored",
    [
        ("so <answer>7</answer>", "Q:so <answer>42", "42"),
        ("<answer>1</answer> no <answer>\n 7</answer>", "Q:<answer>1</answer> no <answer>\n 42", "42"),
        ("I do not know", "Q:I do not know<answer>42", "42"),
        ("", "Q:<answer>42", "42"),
    ],
)
def test_the_reference_stands_where_the_answer_stood(sampled: str, whole: str, scored: str) -> None:
    spliced = splice(encode("Q:"), encode(sampled), "42", CharRenderer(), "<answer>")
    assert text(spliced.token_ids) == whole
    assert text(spliced.token_ids[spliced.first :]) == scored


def test_tokens_before_the_answer_stay_as_they_were_sampled() -> None:
    class Pairs(CharRenderer):
        """Tokens of two characters where they were sampled so; new text is one character each."""

        def token_strings(self, token_ids: Sequence[int]) -> tuple[str, ...]:
            return tuple(chr(token % 256) + (chr(token // 256) if token >= 256 else "") for token in token_ids)

    pair = ord("r") + 256 * ord(">")  # ends at the tag's end
    astride = ord(">") + 256 * ord("7")  # holds the tag's end and the answer
    sampled = (*encode("<answe"), pair, *encode("7"))
    assert splice((), sampled, "42", Pairs(), "<answer>").token_ids == (*encode("<answe"), pair, *encode("42"))
    sampled = (*encode("<answer"), astride)
    spliced = splice((), sampled, "42", Pairs(), "<answer>")
    assert spliced.token_ids == (*encode("<answer"), *encode(">42"))
    assert spliced.first == len(encode("<answer>"))


def annotated(words: str, *, task: Task = TASK) -> tuple[Trajectory, CharScorer, CharScorer]:
    now, before = CharScorer(0.8), CharScorer(0.3)
    policy = ScoringPolicy(words, now)

    async def work() -> Group:
        (tree,) = await run_episodes([parrot_job(partial(Parrot, max_turns=1))], char_agent(), policy, concurrency=1)
        context = judge_context(task=task, policy=policy, models={"initial": before})
        return await Rlpr()(Group(key="g", trees=(tree,)), context)

    return asyncio.run(work()).trajectories[0], now, before


def test_the_reward_is_what_the_reasoning_adds_and_the_format() -> None:
    episode, now, before = annotated("<think>x</think><answer>7</answer>")
    (found,) = episode.tree.annotations
    assert found.value == pytest.approx(0.9 * (0.8 - 0.3) + 0.1)
    assert found.verdict == "B=0.8 A=0.3 format=1"
    (asked,), (alone,) = now.asked, before.asked
    assert asked.endswith("<assistant><think>x</think><answer>42")
    assert alone.endswith("<assistant> 42")
    assert "7" not in alone


def test_a_task_without_the_reference_is_refused() -> None:
    with pytest.raises(InvalidInput, match="payload key must be a known name, got 'answer'"):
        annotated("x", task=Task(id="train/0", prompt="Q", payload={"key": "42"}, split=Split.TRAIN))


def test_an_unfinished_action_is_scored_from_what_was_sampled() -> None:
    episode, now, _ = annotated("no idea")
    item = episode_annotation(episode, "rlpr")
    assert item is not None
    assert item.value == pytest.approx(0.9 * 0.5)
    assert now.asked[0].endswith("<assistant>no idea<answer>42")
