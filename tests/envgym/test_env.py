"""The contract: what an author writes becomes records, whatever it is; order, budgets, copies."""

import copy
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym import Action, Ending, Env, ForkCapability, Invalid, Observation, Reply, Role, Scored, Split, Task, ToolCall
from envgym.core.turns import Reward
from envgym.env import MAX_ACTION_CHARS
from envgym.errors import (
    EnvFailure,
    ForkUnsupported,
    InvalidInput,
    PartyFailure,
    PolicyFailure,
    ResetNeeded,
    ToolInfraFailure,
    UnknownName,
)
from envgym.records import StepRecord
from tests.support.toys import Counter, CounterTasks, Sums


@dataclass(slots=True)
class Nothing:
    """No state."""


class Answering(Env[Nothing]):
    """Answers with whatever it was made with; raises it where it is an exception."""

    tasks = CounterTasks()

    def __init__(self, answer: object, max_turns: int | None = None) -> None:
        super().__init__(max_turns=max_turns)
        self.answer = answer

    def begin(self, task: Task) -> str:
        self.state = Nothing()
        return "Say something."

    def respond(self, action: Action) -> Reply:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]  # wrong types are what is tested


def answered(answer: object, action: str = "hello") -> StepRecord:
    env = Answering(answer)
    env.reset(seed=0)
    record: StepRecord = env.step(action).info["envgym"]
    return record


def call(amount: object) -> str:
    return f'<tool_call>{{"name": "add", "arguments": {{"amount": {amount}}}}}</tool_call>'


# ---- one turn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error, ending",
    [
        (ToolInfraFailure("no sandbox"), Ending.ERROR_TOOL_INFRA),
        (PartyFailure("no judge"), Ending.ERROR_PARTY),
        (PolicyFailure("no engine"), Ending.ERROR_POLICY),
        (EnvFailure("no world"), Ending.ERROR_ENV),
        (ZeroDivisionError("a bug"), Ending.ERROR_ENV),
        (InvalidInput("a rule"), Ending.ERROR_ENV),
        (RecursionError("deep"), Ending.ERROR_ENV),
    ],
)
def test_failed_turn_is_an_invalid_reward_and_not_a_zero(error: Exception, ending: Ending) -> None:
    record = answered(error)
    assert record.ending is ending
    assert isinstance(record.reward, Invalid)
    assert record.reward.cause is ending
    assert record.error == f"step of Answering failed: {type(error).__name__}: {error}"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "text",
        Reply(reward=float("nan")),
        Reply(reward=float("inf")),
        Reply(reward="0.5"),  # type: ignore[arg-type]  # what is tested
        Reply(observation=3),  # type: ignore[arg-type]  # as above
    ],
)
def test_reply_that_is_none_is_a_fault_of_the_env(answer: object) -> None:
    record = answered(answer)
    assert record.ending is Ending.ERROR_ENV
    assert isinstance(record.reward, Invalid)


def test_invalid_turn_is_truncated_with_reward_zero_in_gymnasiums_tuple() -> None:
    env = Answering(ZeroDivisionError("a bug"))
    env.reset(seed=0)
    result = env.step("hello")
    assert (result.reward, result.terminated, result.truncated) == (0.0, False, True)


def test_reply_may_carry_a_reward_with_components_or_an_invalid_one() -> None:
    scored = Scored(value=0.5, components={"form": 1.0, "content": 0.0})
    assert answered(Reply(reward=scored)).reward == scored
    invalid: Reward = Invalid(cause=Ending.ERROR_PARTY, reason="the judge is away")
    record = answered(Reply(reward=invalid))
    assert (record.ending, record.reward, record.error) == (Ending.ERROR_PARTY, invalid, "the judge is away")


@pytest.mark.parametrize(
    "value, expected",
    [(True, 1.0), (np.float64(0.25), 0.25), (2, 2.0), (Fraction(1, 2), 0.5), (Decimal("0.5"), 0.5), (np.array(3), 3.0)],
)
def test_reward_is_a_plain_float(value: Any, expected: float) -> None:
    reward = answered(Reply(reward=value)).reward
    assert isinstance(reward, Scored)
    assert type(reward.value) is float
    assert reward.value == expected


def test_tool_calls_are_run_and_counted() -> None:
    env = Counter()
    env.reset(seed=0)
    record = env.step(call(3) + call('"x"') + "<tool_call>{</tool_call>").info["envgym"]
    assert (record.tool_calls, record.tool_errors, record.ending) == (2, 2, None)
    assert [message.role for message in record.observation.messages] == [Role.TOOL] * 3
    assert env.state.count == 3


def test_action_is_taken_as_it_is_and_text_is_parsed() -> None:
    env = Counter()
    env.reset(seed=0)
    ready = Action("call", content="", tool_calls=[ToolCall(name="add", arguments={"amount": 2})])
    assert env.step(ready).info["envgym"].action is ready
    assert env.step(call(3)).info["envgym"].action.tool_calls == (ToolCall(name="add", arguments={"amount": 3}),)
    assert env.state.count == 5


def test_action_beyond_the_limit_is_answered_and_not_run() -> None:
    env = Counter()
    env.reset(seed=0)
    result = env.step(call(3) + "x" * MAX_ACTION_CHARS)
    assert result.observation.endswith("at most 200000 are read.")
    assert (env.state.count, result.truncated) == (0, False)


@pytest.mark.parametrize("action", [None, 3, b"text", ["text"]])
def test_action_must_be_a_str(action: Any) -> None:
    env = Counter()
    env.reset(seed=0)
    with pytest.raises(InvalidInput, match="action must be a str"):
        env.step(action)


def test_turn_limit_truncates_and_ending_in_the_last_turn_terminates() -> None:
    env = Answering(Reply(observation="go on"), max_turns=2)
    env.reset(seed=0)
    assert not env.step("a").truncated
    assert env.step("b").info["envgym"].ending is Ending.TRUNCATED_TURNS
    env = Answering(Reply(terminated=True), max_turns=1)
    env.reset(seed=0)
    assert env.step("a").info["envgym"].ending is Ending.TERMINATED


@pytest.mark.parametrize("max_turns", [0, -1])
def test_turn_limit_must_be_positive(max_turns: int) -> None:
    with pytest.raises(InvalidInput, match="max_turns must be at least 1"):
        Counter(max_turns=max_turns)


def test_turns_are_numbered_from_zero_in_each_episode() -> None:
    env = Counter()
    for _ in range(2):
        env.reset(seed=0)
        assert [env.step("x").info["envgym"].turn for _ in range(3)] == [0, 1, 2]


@given(st.text(max_size=60))
def test_no_text_raises_or_breaks_an_env(text: str) -> None:
    env = Counter()
    env.reset(seed=0)
    record = env.step(text).info["envgym"]
    assert record.ending is None or not record.ending.is_error


# ---- reset -------------------------------------------------------------------------------------------------------


def test_reset_record_tells_prompt_tools_and_seed() -> None:
    env = Counter()
    result = env.reset(seed=7, options={"split": "test", "index": 3})
    record = result.info["envgym"]
    assert record.task == Counter.tasks.task(Split.TEST, 3) == env.task
    assert record.seed == 7
    assert record.system_prompt == "Use the tool to count, then say DONE."
    assert [tool.name for tool in record.tools] == ["add"]
    assert record.observation.messages[0].role is Role.USER


def test_reset_draws_a_train_task_from_the_seed() -> None:
    keys = {Counter().reset(seed=seed).info["envgym"].task.key for seed in (1, 1, 2, 3)}
    assert len(keys) == 3
    assert Counter().reset(seed=1).info["envgym"].task.split is Split.TRAIN


def test_given_task_is_played() -> None:
    task = Task(id="mine", prompt="Count to 2.", payload={"target": 2}, split=Split.TEST)
    env = Counter()
    env.reset(seed=0, options={"task": task})
    assert env.task is task


@pytest.mark.parametrize(
    "options, rule",
    [
        ({"tusk": 1}, r"reset options must be task alone, or split and index, got \['tusk'\]"),
        ({"task": Counter.tasks.task(Split.TEST, 0), "split": "test"}, "must be task alone"),
        ({"task": "train/1"}, r"options\['task'\] must be a Task, got train/1"),
        ({"index": 10**9}, "index must lie in"),
    ],
)
def test_wrong_reset_option_is_one_sentence(options: Mapping[str, Any], rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        Counter().reset(options=options)


def test_unknown_split_lists_near_names() -> None:
    with pytest.raises(UnknownName, match="did you mean train"):
        Counter().reset(options={"split": "tarin"})


def test_empty_split_is_one_sentence() -> None:
    class Empty(Counter):
        tasks = CounterTasks(num_targets=0)

    with pytest.raises(InvalidInput, match="split must hold tasks, got test"):
        Empty().reset(options={"split": "test"})


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), ToolInfraFailure("no sandbox")])
def test_failed_reset_is_an_infrastructure_error_and_starts_no_episode(error: Exception) -> None:
    class Broken(Counter):
        def begin(self, task: Task) -> str:
            raise error

    env = Broken()
    with pytest.raises((EnvFailure, ToolInfraFailure), match=str(error)):
        env.reset(seed=0)
    with pytest.raises(ResetNeeded):
        env.step("x")


def test_first_observation_must_be_text() -> None:
    class Silent(Counter):
        def begin(self, task: Task) -> str:
            super().begin(task)
            return None  # type: ignore[return-value]  # what is tested

    with pytest.raises(EnvFailure, match=r"observation must be a str, got None \(begin\)"):
        Silent().reset(seed=0)


@pytest.mark.parametrize("method", ["begin", "respond", "oracle"])
def test_what_an_author_must_write_is_named(method: str) -> None:
    with pytest.raises(TypeError, match=f"Env must define {method}"):
        getattr(Env(), method)(*([None] if method != "oracle" else []))


# ---- order -------------------------------------------------------------------------------------------------------


def test_step_task_and_fork_need_an_episode() -> None:
    env = Counter()
    with pytest.raises(ResetNeeded, match="step must follow a reset"):
        env.step("x")
    with pytest.raises(ResetNeeded, match="fork must follow a reset"):
        env.fork()
    with pytest.raises(ResetNeeded, match="task must be read after reset"):
        _ = env.task


def test_step_after_the_end_needs_a_reset() -> None:
    env = Counter()
    env.reset(seed=0)
    assert env.step("DONE").terminated
    with pytest.raises(ResetNeeded):
        env.step("DONE")
    env.reset(seed=0)
    env.step("x")


def test_render_shows_the_last_observation() -> None:
    env = Counter(render_mode="ansi")
    first = env.reset(seed=0).observation
    assert env.render() == first
    env.step("x")
    assert env.render() == "Use the tool, or say DONE."
    assert type(env.render()) is str


# ---- copies ------------------------------------------------------------------------------------------------------


def transcript(env: Counter, actions: list[str]) -> list[tuple[str, float, bool]]:
    return [env.step(action)[:3] for action in actions]


@given(st.lists(st.integers(-5, 160), max_size=5), st.lists(st.integers(-5, 160), max_size=2), st.integers(0, 9))
def test_fork_goes_on_alike_and_does_not_touch_its_original(before: list[int], after: list[int], seed: int) -> None:
    env = Counter()
    env.reset(seed=seed)
    transcript(env, [call(amount) for amount in before])
    twin, other = env.fork(), env.fork()
    astray = [call(1)] * (7 - len(before))
    transcript(twin, astray)
    rest = [call(amount) for amount in after] + ["DONE"]
    assert transcript(env, rest) == transcript(other, rest)
    assert other.max_turns == env.max_turns
    assert other.name == env.name


def test_fork_keeps_the_turn_count_and_the_end() -> None:
    env = Counter(max_turns=2)
    env.reset(seed=0)
    env.step("x")
    twin = env.fork()
    assert twin.step("x").truncated
    with pytest.raises(ResetNeeded):
        twin.fork().step("x")
    assert env.step("x").truncated


def test_env_that_cannot_be_forked_says_so() -> None:
    class Single(Counter):
        fork_capability = ForkCapability.NONE

    env = Single()
    env.reset(seed=0)
    with pytest.raises(ForkUnsupported, match="fork must be supported by the env, got none"):
        env.fork()


def test_fresh_makes_another_instance_with_the_same_arguments() -> None:
    env = Counter(max_turns=3)
    env.reset(seed=0)
    twin = env.fresh()
    assert twin.max_turns == 3
    with pytest.raises(ResetNeeded):
        twin.step("x")


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_env_survives_copies_in_the_middle(duplicate: Any) -> None:
    env = Counter(max_turns=4)
    env.reset(seed=3)
    env.step(call(5))
    twin = duplicate(env)
    assert transcript(twin, [call(6), "DONE"]) == transcript(env, [call(6), "DONE"])
    assert twin.fresh().max_turns == 4


def test_records_survive_pickle() -> None:
    env = Counter()
    reset, step = env.reset(seed=3), env.step(call(5))
    for result in (reset, step):
        again = pickle.loads(pickle.dumps(result.info["envgym"]))
        assert again == result.info["envgym"]
        assert again.observation.messages == result.info["envgym"].observation.messages


def test_observation_and_info_are_new_in_every_turn() -> None:
    env = Sums()
    first = env.reset(seed=0)
    second = env.reset(seed=0)
    assert first.info is not second.info
    assert isinstance(first.observation, Observation)
