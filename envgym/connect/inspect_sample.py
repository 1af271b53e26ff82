"""One sample of a task of inspect-ai, played turn by turn.

The solver of the task runs in an event loop. It stops where it calls the model, and continues with the reply of the
agent. When it has ended, the scorers run. Only the environment imports this module, once inspect-ai is found.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageUser,
    GenerateConfig,
    Model,
    ModelName,
    ModelOutput,
    ModelUsage,
    execute_tools,
    get_model,
)
from inspect_ai.model._model import init_active_model, init_model_roles  # what an eval sets for its samples, as below
from inspect_ai.scorer import Score, Target
from inspect_ai.solver import TaskState, chain
from inspect_ai.solver._task_state import set_sample_state
from inspect_ai.tool import Tool, ToolDef
from inspect_ai.tool import ToolCall as InspectCall
from inspect_ai.util import registry_info
from inspect_ai.util._store import init_subtask_store

from envgym.chats.fields import plain_json
from envgym.connect.inspect_messages import assistant_to_inspect, from_inspect, results_of
from envgym.core.json_types import JsonObject
from envgym.core.messages import Action, Message
from envgym.errors import EnvFailure, InfrastructureError, ToolError
from envgym.party import Party
from envgym.runtime.error_log import log_error
from envgym.runtime.event_loop import LoopThread, in_daemon_thread, shared_loop
from envgym.tools import ToolSpec

OWN_TOOLS: Final = ("think", "update_plan")
"""Tools of inspect-ai itself that need neither a sandbox nor a service."""
CLOSE_S: Final = 5.0
"""Longest wait for the end of a solver, in seconds."""
_SLICES: Final = 20
"""Parts of `timeout_s`. Each counts once, however long code of another sample holds the loop in it."""
ONCE: Final = "call the model once, by generate"
"""What a solver must do."""


_lost_loops: set[LoopThread] = set()
"""Loops that code of a task blocks; later samples run in another one."""
_progress: Counter[LoopThread] = Counter()
"""Grows as long as nothing blocks a loop."""


class TaskRefused(EnvFailure):
    """The task does what an environment cannot run."""


class GraderMissing(TaskRefused):
    """A scorer calls a model, and none was named."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The solver waits for the next message of the agent."""

    messages: tuple[Message, ...]
    """The conversation when the solver called the model."""
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """The sample has ended."""

    by_name: dict[str, Any]
    """Name of a scorer -> its score, None if it gave none."""


@dataclass(frozen=True, slots=True)
class _Reply:
    action: Action
    results: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    arguments: JsonObject


Outcome = ModelCall | Scores
T = TypeVar("T")


class SampleRun:
    """A running sample. Its methods may be called by any thread, one at a time."""

    def __init__(self, task: Task, sample: Sample, *, grader: Party | None, timeout_s: float, where: str) -> None:
        """Take a task and one of its samples.

        Args:
            task: what `@task` returned.
            sample: is copied.
            grader: answers the calls of scorers to a model.
            timeout_s: longest wait for the solver, a tool or the scorers, in seconds. All samples share a loop: the
                time in which it runs code of others hardly counts.
            where: names the environment in errors.
        """
        self._inspect_task, self._sample, self._grader = task, deepcopy(sample), grader
        self._timeout_s, self._where = timeout_s, where
        self._loop = shared_loop(f"envgym-inspect-{len(_lost_loops)}")
        self._inbox: asyncio.Queue[_Reply | _Call] = asyncio.Queue()
        self._outbox: asyncio.Queue[object] = asyncio.Queue()
        self._work: asyncio.Task[None] | None = None
        self._is_answered = self._is_scoring = False
        self._failure: InfrastructureError | None = None

    def begin(self) -> Outcome:
        """Run the solver until it calls the model. Raises: EnvFailure: it fails, or is too slow."""
        return self._outcome(self._exchange(None))

    def call(self, name: str, arguments: JsonObject) -> str:
        """Run a tool of the task. Raises: ToolError: it refuses. Exception: it fails, in whatever way."""
        result = self._exchange(_Call(name, plain_json(arguments)))
        if isinstance(result, Exception):
            raise result
        if isinstance(result, BaseException):  # which would end the program
            raise EnvFailure(f"The tool {name} raised {result!r}.") from result
        return str(result)

    def reply(self, action: Action, results: Sequence[Message] = ()) -> Outcome:
        """Continue with a message of the agent, and the results of its calls.

        Raises: EnvFailure: the solver or a scorer fails, or is too slow. PartyFailure: the grader fails.
        """
        return self._outcome(self._exchange(_Reply(action, tuple(results))))

    def close(self) -> None:
        """End the solver where it stands; may be called twice."""
        work, self._work = self._work, None
        if work is not None and not work.done():
            try:
                self._wait(self._loop.begin(_cancel(work)), min(self._timeout_s, CLOSE_S))
            except TimeoutError:  # code of the task blocks the loop
                _lost_loops.add(self._loop)

    def _outcome(self, result: object) -> Outcome:
        if isinstance(result, InfrastructureError):
            raise result
        if isinstance(result, BaseException):
            what = "scorer" if self._is_scoring else "solver"
            must, do = "run without an error", "correct the task or task_args; its solver must not be an agent"
            got = f"{type(result).__name__}: {result}"
            raise EnvFailure.of(what, must, got, where=self._where, do=do) from result
        assert isinstance(result, ModelCall | Scores), "the result of a call goes to who called"
        return result

    def _exchange(self, event: "_Reply | _Call | None") -> object:
        future = self._loop.begin(self._step(event))
        try:
            return self._wait(future, self._timeout_s)
        except TimeoutError as error:
            future.cancel()
            self.close()
            must, do = f"answer within {self._timeout_s:g} s", "raise timeout_s"
            raise EnvFailure.of("task", must, "no answer", where=self._where, do=do) from error

    def _wait(self, future: "Future[T]", seconds: float) -> T:
        """Wait for work that ends by its own clock. Raises: TimeoutError: it has, or the loop is blocked so long."""
        while True:
            before = _progress[self._loop]
            try:
                return future.result(seconds)
            except TimeoutError:
                if future.done():
                    return future.result()
                if _progress[self._loop] == before:
                    raise

    # ---- in the loop -------------------------------------------------------------------------------------------------

    async def _step(self, event: "_Reply | _Call | None") -> object:
        if event is None:  # without what an eval around this env has set
            self._work = asyncio.get_running_loop().create_task(self._run(), context=Context())
        else:
            self._inbox.put_nowait(event)
        for _ in range(_SLICES):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s / _SLICES):
                    return await self._outbox.get()
            _progress[self._loop] += 1
        raise TimeoutError

    def _give(self, outcome: object) -> None:
        _progress[self._loop] += 1
        self._outbox.put_nowait(outcome)

    async def _run(self) -> None:
        try:
            outcome: object = await self._play()
        except BaseException as error:  # of the task; the caller raises it
            outcome = error
            if isinstance(error, asyncio.CancelledError) and self._work is None:
                raise
        self._give(outcome if self._failure is None else self._failure)

    async def _play(self) -> Scores:
        """Run setup, solver, scorers and clean-up."""
        task, sample = self._inspect_task, self._sample
        model = self._model()
        init_active_model(model, GenerateConfig())
        init_model_roles({"grader": model})
        state = _state_of(sample)
        set_sample_state(state)
        init_subtask_store(state.store)
        try:
            solvers = [part for part in (task.setup, task.solver) if part is not None]
            state = await chain(*solvers)(state, self._generate)
            if not self._is_answered and self._failure is None:
                raise self._refuse(ONCE, "no call")
            self._is_scoring = True
            scores: dict[str, Score | None] = {}
            for name, scorer in zip(scorer_names(task), task.scorer or (), strict=True):
                scores[name] = await scorer(state, Target(sample.target))
            return Scores(scores)
        finally:
            if task.cleanup is not None:
                await self._clean_up(task.cleanup, state)

    async def _clean_up(self, cleanup: Callable[[TaskState], Awaitable[None]], state: TaskState) -> None:
        try:
            await cleanup(state)
        except Exception as error:  # noqa: BLE001  # the scores stand
            log_error(error, f"the clean-up of {self._where} failed")

    async def _generate(self, state: TaskState, tool_calls: str = "loop", **_: Any) -> TaskState:
        """Wait for the agent in place of a model; run the tools that it calls."""
        if self._is_answered:
            raise self._refuse(ONCE, "a second call")
        tools = tuple(self._spec(tool) for tool in state.tools)
        if tools and tool_calls != "loop":
            raise self._refuse("let generate run the tools until the answer", f"tool_calls={tool_calls!r}")
        opening = tuple(from_inspect(message, where=self._where) for message in state.messages)
        while True:
            self._give(ModelCall(opening, tools))
            reply = await self._next_reply(state)
            message = assistant_to_inspect(reply.action.message)
            state.output = _output_of(message)
            state.messages.append(message)
            state.messages.extend(results_of(reply.action, reply.results))
            if state.completed or not reply.results:
                self._is_answered = True
                return state

    async def _next_reply(self, state: TaskState) -> _Reply:
        while True:
            event = await self._inbox.get()
            if isinstance(event, _Reply):
                return event
            try:
                result: object = await _run_tool(state, event)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001  # of the tool; the caller raises it
                result = error
            self._give(result)

    def _spec(self, tool: Tool) -> ToolSpec:
        name = registry_info(tool).name
        package, _, own = name.partition("/")
        if package == "inspect_ai" and own not in OWN_TOOLS:
            raise self._refuse("have tools that are plain functions", name)
        definition = ToolDef(tool)
        parameters = definition.parameters.model_dump(exclude_none=True)
        return ToolSpec(name=definition.name, description=definition.description, parameters=parameters)

    def _refuse(self, must: str, got: str, kind: type[TaskRefused] = TaskRefused, do: str = "") -> TaskRefused:
        """Note a refusal, which holds even where the task catches it."""
        do = do or "choose a task whose solver only writes prompts and calls generate"
        failure = kind.of("solver" if not self._is_scoring else "scorer", must, got, where=self._where, do=do)
        self._failure = self._failure or failure
        return failure

    def _model(self) -> Model:
        """Return the model of the evaluation, which is the grader; only scorers may ask it."""
        return get_model("mockllm/grader", custom_outputs=self._grade)

    async def _grade(self, messages: list[ChatMessage], *_: Any) -> ModelOutput:
        if not self._is_scoring:
            raise self._refuse(ONCE, "a call of the model by itself")
        if self._grader is None:
            do = "name an endpoint, as in parties: {grader: {name: endpoint, base_url: ..., model: ...}}"
            raise self._refuse("have a model to ask", "no grader", GraderMissing, do)
        conversation = [from_inspect(message, where=self._where) for message in messages]
        try:
            reply = await in_daemon_thread(partial(self._grader.reply, conversation))
        except InfrastructureError as error:
            self._failure = self._failure or error
            raise
        return _output_of(ChatMessageAssistant(content=reply.content))


def scorer_names(task: Task) -> list[str]:
    """Return the names of a task's scorers without their package; the second of a name has its number."""
    names: list[str] = []
    for scorer in task.scorer or ():
        name = registry_info(scorer).name.rpartition("/")[2]
        names.append(name if name not in names else f"{name}{len(names)}")
    return names


def _state_of(sample: Sample) -> TaskState:
    messages = [ChatMessageUser(content=sample.input)] if isinstance(sample.input, str) else list(sample.input)
    return TaskState(
        model=ModelName("envgym/agent"),
        sample_id=sample.id,
        epoch=1,
        input=deepcopy(sample.input),
        messages=messages,
        target=Target(sample.target),
        choices=sample.choices,
        metadata=sample.metadata or {},
    )


def _output_of(message: ChatMessageAssistant) -> ModelOutput:
    choice = ChatCompletionChoice(message=message, stop_reason="tool_calls" if message.tool_calls else "stop")
    return ModelOutput(model="envgym", choices=[choice], usage=ModelUsage())  # without, it would count tokens


async def _run_tool(state: TaskState, call: _Call) -> str:
    """Run a call. Raises: ToolError: the tool or its checks refuse."""
    item = InspectCall(id="call", function=call.name, arguments=dict(call.arguments))
    ran = await execute_tools([*state.messages, ChatMessageAssistant(content="", tool_calls=[item])], state.tools)
    message = ran.messages[0]
    if message.error is not None:
        raise ToolError(message.error.message)
    return str(message.text)


async def _cancel(work: "asyncio.Task[None]") -> None:
    work.cancel()
    await asyncio.wait([work], timeout=CLOSE_S)
