"""Reward functions: what they may take and return, each checked; what the env shows them; who has an oracle."""

import pickle
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from envgym import Action, Ending, Invalid, Message, Role, Scored, Split, Task, ToolCall
from envgym.authoring import RubricEnv, TaskDraft, from_rubric
from envgym.env import NoOracle
from envgym.errors import InvalidInput
from envgym.rubric import Rubric
from envgym.verifiers import Exact, RewardFunction, Verdict, right

TASKS = [TaskDraft(prompt=f"{n} + {n}?", payload={"n": n, "answer": str(2 * n)}) for n in range(50)]
TASK = Task(id="t", prompt="1 + 1?", payload={"answer": "2"}, split=Split.TRAIN)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def is_right(answer: str, task: Task) -> bool:
    return answer == task.payload["answer"]


def is_short(answer: str) -> float:
    return 1.0 if len(answer) <= 3 else 0.25


def has_called(tool_calls: Sequence[ToolCall]) -> float:
    return min(1.0, len(tool_calls) / 2)


def num_messages(transcript: Sequence[Message], scale: float = 10.0) -> float:
    return len(transcript) / scale


ADDED = Action("", tool_calls=[ToolCall(name="add", arguments={"a": 1, "b": 1})])


def test_function_takes_what_it_names_and_its_result_is_the_score() -> None:
    rubric = Rubric([(is_right, 2.0, "right"), (is_short, 1.0, "short"), (has_called, 1.0, "calls")])
    env = from_rubric(TASKS, rubric, tools=[add])
    env.reset(seed=0)
    env.step(ADDED)
    reward = env.step(str(env.task.payload["answer"])).info["envgym"].reward
    assert reward == Scored(value=0.875, components={"right": 1.0, "short": 1.0, "calls": 0.5})  # (2 + 1 + 0.5) / 4


def test_transcript_is_what_was_said_from_the_first_observation_to_the_answer() -> None:
    seen: list[Sequence[Message]] = []

    def look(transcript: Sequence[Message]) -> bool:
        seen.append(transcript)
        return True

    env = from_rubric(TASKS, look, tools=[add])
    for _ in range(2):
        prompt = str(env.reset(seed=0).observation)
        env.step(ADDED)
        env.step("2")
        assert [(message.role, message.content) for message in seen[-1]] == [
            (Role.USER, prompt),
            (Role.ASSISTANT, ""),
            (Role.TOOL, "2"),
            (Role.ASSISTANT, "2"),
        ]
    assert seen[-1][1].tool_calls == ADDED.tool_calls


def test_copy_has_a_transcript_of_its_own() -> None:
    env = from_rubric(TASKS, num_messages, tools=[add])
    env.reset(seed=0)
    twin = env.fork()
    twin.step(ADDED)
    assert (env.step("2").reward, twin.step("2").reward) == (0.2, 0.4)


@pytest.mark.parametrize(
    "result, score",
    [
        (True, 1.0), (False, 0.0), (0, 0.0), (0.5, 0.5), (np.float32(0.25), 0.25), (np.True_, 1.0), (right(), 1.0),
        (Fraction(1, 4), 0.25), (Decimal("0.25"), 0.25), (np.array(0.5), 0.5), (np.array(True), 1.0),
        (np.array(Decimal("0.5")), 0.5), (np.int64(1), 1.0),
    ],
)  # fmt: skip
def test_number_bool_and_verdict_are_scores(result: Any, score: float) -> None:
    reward = Rubric([(lambda answer: result, 1.0, "it")])("", TASK)
    assert reward == Scored(value=score, components={"it": score})
    assert type(reward.value) is float


@pytest.mark.parametrize("result", [None, "yes", "0.5", 1.01, -0.1, float("nan"), [1.0], (1.0, "why"), 1j,
     Decimal("NaN"), Decimal("sNaN"), Decimal(2), np.array([1.0]), np.array("1"), np.array(2.0)])  # fmt: skip
def test_any_other_result_makes_the_reward_invalid_and_names_function_and_task(result: Any) -> None:
    def judge(answer: str) -> Any:
        return result

    env = from_rubric(TASKS, judge)
    env.reset(seed=0)
    record = env.step("2").info["envgym"]
    assert record.ending is Ending.ERROR_ENV
    assert isinstance(record.reward, Invalid)
    told = "reward function judge must return a number in [0, 1], a bool or a Verdict"
    assert f"{told}, got {result!r} (task {env.task.id})" in record.reward.reason


async def later(answer: str) -> float:
    return 1.0


@pytest.mark.parametrize(
    "function, told",
    [
        (
            lambda completion, task: 1.0,
            "by name, among answer, task, transcript, tool_calls, got completion",
        ),
        (lambda answer, /: 1.0, "got answer"),
        (lambda *args: 1.0, "got args"),
        (lambda answer, key, **rest: 1.0, "got key"),
        (3, "got 3"),
        (later, "reward function later must be a plain function, got async def"),
    ],
)
def test_function_that_cannot_be_a_reward_is_refused_when_it_is_given(function: Any, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        from_rubric(TASKS, function)
    assert told in str(caught.value)
    assert "(Rubric)" in str(caught.value)


def test_function_that_passes_anything_on_gets_everything() -> None:
    def pass_on(**given: object) -> bool:
        return list(given) == ["answer", "task", "transcript", "tool_calls"]

    assert Rubric([(pass_on, 1.0, "all")])("", TASK).value == 1.0


def test_function_in_a_class_is_no_method_and_survives_pickling() -> None:
    class Sums(RubricEnv):
        tasks = from_rubric(TASKS, is_right).tasks
        rubric = is_right

    class Short(Sums):
        rubric = staticmethod(is_short)  # type: ignore[assignment]  # another function

    for cls in (Sums, Short):
        env = cls()
        env.reset(seed=0)
        assert env.step(env.oracle()).reward == 1.0
    assert pickle.loads(pickle.dumps(Rubric([(is_right, 1.0, "a")])))("2", TASK).value == 1.0


def solve_at_once(task: Task) -> str:
    return str(task.payload["answer"])


def solve_with_tool(task: Task) -> list[str]:
    return [ADDED, str(task.payload["answer"])]


@pytest.mark.parametrize(
    "options, num_turns", [({}, 1), ({"solve": solve_at_once}, 1), ({"tools": [add], "solve": solve_with_tool}, 2)]
)
def test_oracle_answers_and_with_tools_does_what_solve_says(options: dict[str, Any], num_turns: int) -> None:
    env = from_rubric(TASKS, is_right, **options)
    for seed in range(5):
        env.reset(seed=seed)
        results = [env.step(env.oracle()) for _ in range(num_turns)]
        assert [result.terminated for result in results] == [False] * (num_turns - 1) + [True]
        assert results[-1].reward == 1.0


OTHER = [TaskDraft(prompt=f"{n}?", payload={"key": n}) for n in range(50)]


@pytest.mark.parametrize("tasks, tools", [(TASKS, [add]), (OTHER, [])])
def test_env_of_tools_or_no_answer_needs_an_oracle(tasks: list[TaskDraft], tools: list[Callable[..., object]]) -> None:
    env = from_rubric(tasks, is_right, tools=tools)
    env.reset(seed=0)
    with pytest.raises(NoOracle):
        env.oracle()


def test_oracle_says_the_first_of_several_accepted_answers() -> None:
    env = from_rubric([TaskDraft(prompt=f"{n}?", payload={"n": n, "answer": ["two", "2"]}) for n in range(50)], Exact())
    env.reset(seed=0)
    assert env.oracle() == "two"


def test_verdict_out_of_range_is_refused_where_it_is_made() -> None:
    def judge(answer: str) -> Verdict:
        return Verdict(score=2.0, reason="twice as good")

    function: RewardFunction = judge
    with pytest.raises(InvalidInput, match=r"score must lie in \[0, 1\], got 2.0"):
        Rubric([(function, 1.0, "it")])("", TASK)


def test_errors_that_the_author_names_end_the_episode() -> None:
    def ask(query: str) -> str:
        """Ask a database."""
        raise ConnectionError(query)

    env = from_rubric(TASKS, is_right, tools=[ask], propagated_errors=(ConnectionError,))
    env.reset(seed=0)
    record = env.step(Action("", tool_calls=[ToolCall(name="ask", arguments={"query": "x"})])).info["envgym"]
    assert record.ending is Ending.ERROR_ENV
