"""VeriFree: the joint probability by hand, what is scored, and whose failure is no zero."""

import asyncio
import math
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.tasks import Split, Task
from envgym.core.trajectory import Group
from envgym.core.tree import Annotation
from envgym.errors import InvalidInput, PolicyFailure
from envgym.trainer.methods.annotators.base import LogprobModel, Model
from envgym.trainer.methods.annotators.rlpr import mean_probability
from envgym.trainer.methods.annotators.verifree import VeriFree, joint_probability
from tests.support.judges import CharScorer, ScoringPolicy, judge_context
from tests.support.parrots import Parrot, char_agent, parrot_job, run_episodes

TASK = Task(id="train/0", prompt="Q", payload={"answer": "42"}, split=Split.TRAIN)
BOX = (r"\boxed{", "}")
TAGS = ("<answer>", "</answer>")


class Broken(Model):
    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        raise PolicyFailure("no answer within 3 s")


def annotated(
    words: str, scorer: Model, *, answer_tags: tuple[str, str] = BOX, model: str = "policy", task: Task = TASK
) -> tuple[Group, Annotation]:
    policy = ScoringPolicy(words, scorer if isinstance(scorer, CharScorer) else CharScorer(0.5))

    async def work() -> Group:
        (tree,) = await run_episodes([parrot_job(partial(Parrot, max_turns=1))], char_agent(), policy, concurrency=1)
        context = judge_context(task=task, policy=policy, models={"other": scorer})
        return await VeriFree(model=model, answer_tags=answer_tags)(Group(key="g", trees=(tree,)), context)

    group = asyncio.run(work())
    (found,) = group.trees[0].annotations
    return group, found


@given(st.lists(st.floats(-5, 0), max_size=6))
def test_the_joint_probability_is_a_product_and_at_most_the_mean(logprobs: list[float]) -> None:
    joint = joint_probability(logprobs)
    assert joint == pytest.approx(math.prod(map(math.exp, logprobs)))
    assert 0 <= joint <= 1
    if logprobs:
        assert joint <= min(map(math.exp, logprobs)) + 1e-12
        assert joint <= mean_probability(logprobs) + 1e-12


def test_the_value_is_the_product_over_the_reference_and_the_closing_tag() -> None:
    # p(4) p(2) p(}) = .5 · .8 · .25 = .1; RLPR's mean of the reference alone would be .65
    scorer = CharScorer(0.9, **{"4": 0.5, "2": 0.8, "}": 0.25})
    _, found = annotated(r"so \boxed{7}", scorer)
    assert found.value == pytest.approx(0.1)
    assert [asked.endswith(r"<assistant>so \boxed{42}") for asked in scorer.asked] == [True]
    _, found = annotated(r"so \boxed{7}", scorer, answer_tags=(r"\boxed{", ""))
    assert found.value == pytest.approx(0.5 * 0.8)


def test_the_reasoning_and_what_was_sampled_for_an_answer_count_for_nothing() -> None:
    scorer = CharScorer(0.001, **{"4": 0.5, "2": 0.5, "}": 1.0})
    values = [annotated(words, scorer)[1].value for words in (r"\boxed{42}", r"\boxed{}", r"a b \boxed{7} c")]
    assert values == pytest.approx([0.25] * 3)


def test_an_action_that_opens_no_answer_has_zero_and_the_model_is_not_asked() -> None:
    scorer = CharScorer(0.5)
    _, found = annotated("It is 42.", scorer, answer_tags=TAGS)
    assert (found.value, found.verdict, scorer.asked) == (0.0, "no <answer> was written", [])


def test_after_an_empty_tag_the_reference_follows_all_that_was_sampled() -> None:
    scorer = CharScorer(0.9, **{"4": 0.5, "2": 0.5})
    _, found = annotated("6 by 7 is ", scorer, answer_tags=("", "."))
    assert found.value == pytest.approx(0.5 * 0.5 * 0.9)
    assert scorer.asked[0].endswith("<assistant>6 by 7 is 42.")


def test_another_model_may_give_the_probabilities() -> None:
    other = CharScorer(0.2, **{"}": 1.0})
    assert annotated(r"\boxed{7}", other, model="other")[1].value == pytest.approx(0.04)
    assert VeriFree(model="other").required_models() == {"other": LogprobModel}
    assert VeriFree().required_models() == {"policy": LogprobModel}


def test_a_model_that_fails_is_an_error_and_no_zero() -> None:
    with pytest.raises(PolicyFailure, match="no answer within 3 s"):  # which the run writes on every episode
        annotated(r"\boxed{7}", Broken(), model="other")


def test_a_task_without_the_reference_is_refused() -> None:
    task = Task(id="train/0", prompt="Q", payload={"key": "42"}, split=Split.TRAIN)
    with pytest.raises(InvalidInput, match="payload key must be a known name, got 'answer'"):
        annotated("x", CharScorer(0.5), task=task)
