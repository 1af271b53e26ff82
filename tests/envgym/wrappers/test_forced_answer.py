"""Long thoughts end: a turn without an answer is told that time is up, and the next one is what the env hears."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.segments import Origin
from envgym.core.turns import Ending
from envgym.errors import InvalidInput
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.trainer.train import train
from envgym.wrappers import ForcedAnswer
from envgym.wrappers.base import record_of
from envgym.wrappers.forced_answer import MARKS, TIME_IS_UP
from tests.support.toys import Counter, Sums
from tests.trainer.test_recipes import settings


def started() -> ForcedAnswer:
    env = ForcedAnswer(Sums())
    env.reset(seed=1)
    return env


def test_turn_without_an_answer_is_asked_for_one_and_the_next_is_graded() -> None:
    env = started()
    first = env.step("let me think")
    assert (first.observation, first.reward, first.terminated) == (TIME_IS_UP, 0.0, False)
    second = env.step(env.oracle())
    assert (second.reward, record_of(second).turn, record_of(second).ending) == (1.0, 1, Ending.TERMINATED)
    env.reset(seed=1)
    assert env.step("let me think").observation == TIME_IS_UP, "asked once an episode, in every episode"


@pytest.mark.parametrize("mark", ["</answer>", r"\boxed{4", "#### 4"])
def test_a_mark_inside_cut_thinking_is_no_answer(mark: str) -> None:
    env = started()
    assert env.step(f"<think>perhaps {mark}, but").observation == TIME_IS_UP
    env = started()
    assert env.step(f"<think>perhaps {mark}</think>Hm.").observation == TIME_IS_UP
    assert env.step(env.oracle()).reward == 1.0


def test_a_call_that_cannot_be_read_goes_to_the_env() -> None:
    env = started()
    assert "could not be read" in env.step("I look. <tool_call>{'name': 'a'}</tool_call>").observation
    env = started()
    assert env.step('<think>or <tool_call>{"name": "a"}</tool_call> or').observation == TIME_IS_UP


def test_second_turn_goes_to_the_env_whatever_it_is() -> None:
    env = started()
    env.step("let me think")
    last = env.step("and think")
    assert (last.reward, last.terminated) == (0.0, True)


@given(st.sampled_from(MARKS), st.text(max_size=8))
def test_turn_with_a_mark_is_graded_as_without_the_wrapper(mark: str, text: str) -> None:
    plain = Sums()
    plain.reset(seed=1)
    assert started().step(text + mark)[:4] == plain.step(text + mark)[:4]


def test_tool_calls_go_to_the_env() -> None:
    env, plain = ForcedAnswer(Counter()), Counter()
    env.reset(seed=3)
    plain.reset(seed=3)
    call = '<tool_call>{"name": "add", "arguments": {"amount": 5}}</tool_call>'
    assert env.step(call)[:4] == plain.step(call)[:4]
    assert env.step("thinking").observation == TIME_IS_UP


def test_no_mark_and_no_text_are_refused() -> None:
    with pytest.raises(InvalidInput, match="marks must hold something"):
        ForcedAnswer(Sums(), marks=())
    with pytest.raises(InvalidInput, match="text must hold something"):
        ForcedAnswer(Sums(), text="")


def test_recipe_trains_with_answers_that_were_forced(tmp_path: Path) -> None:
    env = {"id": "math/arithmetic-v0", "settings": {"level": 1}, "wrappers": ["forced_answer"]}
    train(settings("scale_rl", tmp_path / "run", envs=[env], filter={"name": "keep_all"}))
    run = RunDirectory.open(tmp_path / "run")
    steps = [row for row in run.metrics() if "train/rows" in row]
    assert [row["optim/updates"] for row in steps] == [1.0] * 3
    assert [row["rollout/turns"] for row in steps] == [2.0] * 3, "thoughts of four tokens, then an answer"
    (episode,) = trees_of(run.episodes())[0].leaves
    origins = [segment.origin for segment in trees_of(run.episodes())[0].nodes[1].edge.segments]
    assert episode > 0
    assert origins[0] is Origin.POLICY
    assert Origin.TOOL in origins, "what ends the thoughts does not train"
