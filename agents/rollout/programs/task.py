"""What a program is given: its task, the address of the model, and the tools of the env. No answers."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from envgym.agents.rollout.programs.calls import Call, CallReply
from envgym.agents.rollout.programs.results import read_reward
from envgym.agents.rollout.programs.sessions import CLOSED, CallFailed, ProgramSession
from envgym.chats.openai import listed_tools, messages_to_wire, read_openai, read_tools
from envgym.core.messages import Message, Observation, ToolCall
from envgym.errors import InvalidInput
from envgym.tools import ToolSpec

T = TypeVar("T")
VERSION_PATH: Final = "/v1"
CallTools = Callable[[Sequence[ToolCall]], Coroutine[Any, Any, Observation]]
"""Plays calls of tools as one turn of the env, in the event loop of the session, and returns what the env shows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskLinks:
    """How a task reaches the rollout that runs its program."""

    session: ProgramSession
    loop: asyncio.AbstractEventLoop
    """Of the session."""
    call_tools: CallTools | None = None
    """None: the env's tools are not offered as functions."""
    mcp_url: str | None = None
    """None: the env's tools are not offered by MCP."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramTask:
    """The one argument of a program that is a function."""

    id: str
    """Of the task."""
    prompt: str
    """The text of the user's messages."""
    messages: tuple[Message, ...]
    """The first messages: standing instructions, if there are any, and the task."""
    tools: tuple[ToolSpec, ...]
    """Those of the env that are offered."""
    root_url: str
    """Address of the model without version, as Anthropic's libraries expect it."""
    api_key: str
    """Secret of this program."""
    model: str
    """Name of the model, for requests."""
    seed: int
    """For the program's own random choices."""
    links: TaskLinks

    @property
    def base_url(self) -> str:
        """Address of the model with version, as OpenAI's libraries expect it."""
        return self.root_url + VERSION_PATH

    @property
    def mcp_url(self) -> str | None:
        """Address of the env's tools as an MCP server (streamable HTTP); None: they are not offered there."""
        return self.links.mcp_url

    # ---- the model, without HTTP -------------------------------------------------------------------------------------

    def chat(
        self,
        messages: Iterable[Message | Mapping[str, Any]],
        tools: Sequence[ToolSpec | Mapping[str, Any]] | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> CallReply:
        """Call the model and wait for its reply, whose `message` belongs into the next call.

        Args:
            messages: The whole conversation, as messages or in the form of OpenAI's chat completions.
            tools: Tools that the model may call, as specs or in OpenAI's form; None: those of the env.
            max_tokens: Most tokens to sample; the run's limit holds too.
            stop: The reply ends before the first of these texts.

        Raises: CallFailed: the call is refused, for example because the context is full. InvalidInput: a message or a
            tool cannot be read.
        """
        return _wait(self._begin(_call(messages, self.tools if tools is None else tools, max_tokens, stop)))

    async def achat(
        self,
        messages: Iterable[Message | Mapping[str, Any]],
        tools: Sequence[ToolSpec | Mapping[str, Any]] | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> CallReply:
        """Call the model from a coroutine. Args and Raises: as `chat`."""
        return await self._await(self._begin(_call(messages, self.tools if tools is None else tools, max_tokens, stop)))

    def _begin(self, call: Call) -> "Future[CallReply]":
        return _submit(self.links.session.chat(call), self.links.loop)

    # ---- the env -----------------------------------------------------------------------------------------------------

    def call(self, name: str, /, **arguments: Any) -> str:  # any JSON
        """Call a tool of the env, which is one turn of it, and return what it shows.

        Raises: InvalidInput: the env's tools are not offered, or the arguments have no form in JSON. CallFailed: the
            episode is over.
        """
        return str(_wait(self._begin_calls([ToolCall(name=name, arguments=arguments)])))

    async def acall(self, name: str, /, **arguments: Any) -> str:  # any JSON
        """Call a tool of the env from a coroutine. Raises: as `call`."""
        observation = await self._await(self._begin_calls([ToolCall(name=name, arguments=arguments)]))
        return str(observation)

    def call_all(self, calls: Iterable[ToolCall]) -> tuple[Message, ...]:
        """Call the tools that a reply names, all in one turn of the env, as the agent loop does.

        Returns: The messages that the env shows, which belong into the next call of the model.

        Raises: InvalidInput: as `call`, or there is no call. CallFailed: the episode is over.
        """
        return _wait(self._begin_calls(tuple(calls))).messages

    async def acall_all(self, calls: Iterable[ToolCall]) -> tuple[Message, ...]:
        """Call the tools that a reply names from a coroutine. Returns and Raises: as `call_all`."""
        observation = await self._await(self._begin_calls(tuple(calls)))
        return observation.messages

    def _begin_calls(self, calls: Sequence[ToolCall]) -> "Future[Observation]":
        do = "pass the calls of a reply"
        InvalidInput.unless(calls, "calls", "be at least one", "none", where="task.call_all", do=do)
        call_tools = self.links.call_tools
        if call_tools is None:
            must, names, do = (
                "be offered to the program",
                [call.name for call in calls],
                "use an env with tools, and keep call in agent.program.env_tools",
            )
            raise InvalidInput.of("tool of the env", must, ", ".join(names), where="task.call", do=do)
        return _submit(call_tools(calls), self.links.loop)

    async def _await(self, pending: "Future[T]") -> T:
        try:
            return await asyncio.wrap_future(pending)
        except asyncio.CancelledError:
            if pending.cancelled() and not self.links.session.is_open:
                raise CallFailed(CLOSED.reason, kind=CLOSED.kind) from None
            raise

    def post_reward(self, value: float, components: Mapping[str, float] | None = None) -> None:
        """Post the reward of the episode.

        Raises: InvalidInput: it is no finite number, or was posted before, or the episode is over.
        """
        reward = read_reward({"reward": value, "components": components}, where="task.post_reward")

        async def post() -> None:
            self.links.session.post_reward(reward)

        _wait(_submit(post(), self.links.loop))

    def to_json(self) -> str:
        """Write the task for a command."""
        return json.dumps(
            {
                "id": self.id,
                "prompt": self.prompt,
                "messages": messages_to_wire(self.messages),
                "tools": listed_tools(self.tools),
                "model": self.model,
                "seed": self.seed,
            }
        )


def _wait(pending: "Future[T]") -> T:
    try:
        return pending.result()
    except CancelledError:
        raise CallFailed(CLOSED.reason, kind=CLOSED.kind) from None


def _submit(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> "Future[T]":
    try:
        return asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # the loop is closed
        work.close()
        raise CallFailed(CLOSED.reason, kind=CLOSED.kind) from None


def _call(
    messages: Iterable[Message | Mapping[str, Any]],
    tools: Sequence[ToolSpec | Mapping[str, Any]],
    max_tokens: int | None,
    stop: Sequence[str],
) -> Call:
    specs = tuple(
        tool if isinstance(tool, ToolSpec) else read_tools([tool], where=f"tools[{index}]")[0]
        for index, tool in enumerate(tools)
    )
    by_name = {spec.name: spec for spec in specs}
    conversation = tuple(
        message if isinstance(message, Message) else read_openai(message, where=f"messages[{index}]", tools=by_name)
        for index, message in enumerate(messages)
    )
    do = "pass the whole conversation"
    InvalidInput.unless(conversation, "messages", "hold at least one message", "none", where="task.chat", do=do)
    return Call(messages=conversation, tools=specs, max_tokens=max_tokens, stop=tuple(stop))
