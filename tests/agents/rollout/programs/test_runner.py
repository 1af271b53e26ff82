"""Programs that are functions or coroutines: what they get, what they return, and how they are ended."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from envgym.agents.rollout.programs.calls import CallRefused, RefusalKind
from envgym.agents.rollout.programs.env_tools import ToolReply
from envgym.agents.rollout.programs.results import ProgramResult, read_result
from envgym.agents.rollout.programs.runner import (
    FunctionProgram,
    ProgramEnd,
    ProgramRun,
)
from envgym.agents.rollout.programs.sessions import CallFailed
from envgym.agents.rollout.programs.task import ProgramTask
from envgym.core.messages import Observation, ToolCall
from envgym.core.turns import Scored
from envgym.errors import InvalidInput
from tests.support.env_server import wait_until
from tests.support.program_calls import PATIENCE_S, FakeMatcher, Gate, RunningHost, calling, running_host
from tests.support.program_runs import MESSAGES, TOOL, run, run_until


@pytest.fixture
def server() -> Iterator[RunningHost]:
    with running_host() as running:
        yield running


# ---- functions -------------------------------------------------------------------------------------------------------


def test_a_function_calls_the_model_without_http_and_with_the_sdk(server: RunningHost) -> None:
    def program(task: ProgramTask) -> dict[str, Any]:
        first = task.chat(task.messages).message
        second = task.chat([*task.messages, first, {"role": "user", "content": "Sure?"}], [], max_tokens=7, stop=["."])
        with OpenAI(base_url=task.base_url, api_key=task.api_key) as client:
            third = client.chat.completions.create(model=task.model, messages=[{"role": "user", "content": "sdk"}])
        texts = [first.content, second.message.content, third.choices[0].message.content]
        return {"answer": "|".join(map(str, texts)), "reward": 0.5, "components": {"a": 1}}

    matcher = FakeMatcher()
    outcome = run(server, program, matcher)
    answer = "re: What is 1 + 1?|re: Sure?|re: sdk"
    result = ProgramResult(answer=answer, reward=Scored(value=0.5, components={"a": 1.0}))
    assert outcome == ProgramRun(end=ProgramEnd.RETURNED, result=result)
    assert [call.tools for call in matcher.calls] == [(TOOL,), (), ()]
    assert matcher.calls[0].messages == MESSAGES
    assert (matcher.calls[1].max_tokens, matcher.calls[1].stop) == (7, (".",))


def test_a_coroutine_runs_on_its_own_loop_and_calls_side_by_side(server: RunningHost) -> None:
    gate = Gate()

    async def program(task: ProgramTask) -> str:
        threads.append(threading.get_ident())
        async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
            calls = [task.achat([{"role": "user", "content": str(index)}]) for index in range(4)]
            messages: Any = [{"role": "user", "content": "sdk"}]
            last = client.chat.completions.create(model="m", messages=messages)
            opening = asyncio.create_task(open_when_all_wait())
            replies, completion = await asyncio.gather(asyncio.gather(*calls), last)
            await opening
        return " ".join([*(reply.message.content for reply in replies), str(completion.choices[0].message.content)])

    async def open_when_all_wait() -> None:
        await asyncio.to_thread(wait_until, lambda: gate.num_waiting == 5)
        gate.open()

    threads = list[int]()
    outcome = run(server, program, generate=gate.generate)
    assert outcome.result.answer == "re: 0 re: 1 re: 2 re: 3 re: sdk"
    assert threads != [threading.get_ident()]


@pytest.mark.parametrize(
    "value, result",
    [
        (None, ProgramResult()),
        ("four", ProgramResult(answer="four")),
        (2, ProgramResult(reward=Scored(value=2.0))),
        ({"reward": -1.5}, ProgramResult(reward=Scored(value=-1.5))),
        ({"answer": "x", "reward": None}, ProgramResult(answer="x")),
        ({}, ProgramResult()),
    ],
)
def test_what_a_program_returns_is_its_result(server: RunningHost, value: object, result: ProgramResult) -> None:
    assert run(server, lambda task: value) == ProgramRun(end=ProgramEnd.RETURNED, result=result)


@pytest.mark.parametrize(
    "value, sentence",
    [
        (float("nan"), "reward must be a finite number, got nan (test.py:run); "),
        ({"reward": float("inf")}, "reward must be a finite number, got inf"),
        ({"reward": "1"}, "reward must be a finite number, got 1"),
        (True, "result of the program must be a text, a number, or a mapping"),
        ([1], "result of the program must be a text, a number, or a mapping"),
        ({"answer": 4}, "answer must be text, got 4"),
        ({"score": 4}, "key of the result must be one of answer, reward, components, got score"),
        ({"components": {"a": 1}}, "components must be those of a reward, got no reward"),
        ({"reward": 1, "components": {"a": float("nan")}}, "component a must be a finite number, got nan"),
    ],
)
def test_a_result_that_cannot_be_used_is_no_reward(server: RunningHost, value: object, sentence: str) -> None:
    outcome = run(server, lambda task: value)
    assert (outcome.end, outcome.result) == (ProgramEnd.RETURNED, ProgramResult())
    assert outcome.error is not None
    assert outcome.error.startswith(sentence)


def test_numbers_of_numpy_are_rewards() -> None:
    numpy = pytest.importorskip("numpy")
    assert read_result(numpy.float32(0.5), where="x").reward == Scored(value=0.5)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [KeyError("colour"), SystemExit(3), KeyboardInterrupt()])
def test_a_function_that_raises_is_a_crash(
    server: RunningHost, error: BaseException, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    def program(task: ProgramTask) -> None:
        raise error

    async def coroutine(task: ProgramTask) -> None:
        raise error

    outcome = run(server, coroutine if is_async else program)
    assert outcome.end is ProgramEnd.CRASHED
    assert outcome.error is not None
    assert f"program must return, got {type(error).__name__}: " in outcome.error
    assert "(test.py:run); look into the log, or at test_runner.py line " in outcome.error


def test_a_crash_in_a_library_names_the_line_of_the_program(server: RunningHost) -> None:
    outcome = run(server, lambda task: json.loads("{"))
    assert outcome.error is not None
    assert "JSONDecodeError: " in outcome.error
    assert "or at test_runner.py line " in outcome.error


def test_refused_calls_raise_in_the_program(server: RunningHost) -> None:
    kinds = list[RefusalKind]()

    def program(task: ProgramTask) -> str:
        with pytest.raises(CallFailed, match="too long") as error:
            task.chat(task.messages)
        kinds.append(error.value.kind)
        with pytest.raises(InvalidInput, match="messages must hold at least one message"):
            task.chat([])
        with pytest.raises(InvalidInput, match="role must be one of"):
            task.chat([{"role": "robot", "content": ""}])
        return "shortened"

    refusal = CallRefused(kind=RefusalKind.CONTEXT_FULL, reason="The conversation is too long.")
    assert run(server, program, FakeMatcher(refusal=refusal)).result.answer == "shortened"
    assert kinds == [RefusalKind.CONTEXT_FULL]


def test_the_tools_of_the_env_and_the_reward_are_reached_by_the_task(server: RunningHost) -> None:
    async def call_tools(calls: Sequence[ToolCall]) -> ToolReply:
        return ToolReply(Observation("; ".join(f"{call.name} {dict(call.arguments)}" for call in calls)))

    def program(task: ProgramTask) -> str:
        task.post_reward(0.25, {"a": 1})
        with pytest.raises(InvalidInput, match="reward must be posted once"):
            task.post_reward(0.5)
        with pytest.raises(InvalidInput, match="reward must be a finite number, got nan"):
            task.post_reward(float("nan"))
        with pytest.raises(InvalidInput, match="calls must be at least one, got none"):
            task.call_all([])
        return task.call("add", name="x", b=2) + asyncio.run(task.acall("add"))

    assert run(server, program, call_tools=call_tools).result.answer == "add {'name': 'x', 'b': 2}add {}"
    outcome = run(server, lambda task: task.call("add"))
    assert outcome.error is not None
    assert "tool of the env must be offered to the program, got add" in outcome.error


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_a_function_that_takes_too_long_is_left_and_its_next_call_raises(server: RunningHost) -> None:
    go_on, raised = threading.Event(), list[str]()

    def program(task: ProgramTask) -> None:
        go_on.wait(PATIENCE_S)
        try:
            task.chat(task.messages)
        except CallFailed as error:
            raised.append(error.kind)

    assert run(server, program, seconds=0.05).end is ProgramEnd.TIME_LIMIT
    go_on.set()
    wait_until(lambda: raised == [RefusalKind.CLOSED])


def test_a_coroutine_that_is_ended_is_cancelled(server: RunningHost) -> None:
    started, ended = threading.Event(), list[str]()

    async def program(task: ProgramTask) -> None:
        started.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    assert run_until(server, FunctionProgram(program, "test.py:run"), started.is_set) is ProgramEnd.POLICY_FAILED
    wait_until(lambda: ended == ["cancelled"])


def test_a_call_that_waits_when_the_time_is_over_raises(server: RunningHost) -> None:
    gate, raised = Gate(), list[str]()

    def program(task: ProgramTask) -> None:
        try:
            task.chat(task.messages)
        except CallFailed as error:
            raised.append(error.kind)

    assert run(server, program, seconds=0.2, generate=gate.generate).end is ProgramEnd.TIME_LIMIT
    wait_until(lambda: raised == [RefusalKind.CLOSED])


@pytest.mark.parametrize("is_polite", [True, False])
def test_a_program_beyond_its_turns_ends_or_is_ended(server: RunningHost, *, is_polite: bool) -> None:
    def program(task: ProgramTask) -> str:
        for number in range(70):
            if is_polite and not task.chat(task.messages).message.tool_calls:
                return f"after {number} calls"
            task.chat(task.messages)
        threading.Event().wait(PATIENCE_S)
        return "late"

    matcher = FakeMatcher(respond=lambda call: calling("add", {}), turns=8)
    outcome = run(server, program, matcher, grace_s=PATIENCE_S if is_polite else 0.05)
    assert (outcome.end, outcome.result.answer) == (
        (ProgramEnd.RETURNED, "after 4 calls") if is_polite else (ProgramEnd.TURN_LIMIT, None)
    )
    assert len(matcher.recorded) == 8


def test_a_policy_that_fails_ends_the_program(server: RunningHost) -> None:
    async def fail(request: object) -> Any:
        raise RuntimeError("out of memory")

    def program(task: ProgramTask) -> None:
        with pytest.raises(CallFailed):
            task.chat(task.messages)
        threading.Event().wait(PATIENCE_S)

    assert run(server, program, generate=fail).end is ProgramEnd.POLICY_FAILED
