"""What a program is given: its task, the address of the model, and the tools of the env. No answers."""

import asyncio
import json
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Final

from envgym.agents.rollout.programs.calls import Call, CallReply
from envgym.agents.rollout.programs.env_tools import CallTool
from envgym.agents.rollout.programs.results import read_reward
from envgym.agents.rollout.programs.sessions import CLOSED, CallFailed, ProgramSession
from envgym.chats.openai import listed_tools, messages_to_wire, read_openai, read_tools
from envgym.core.messages import Message
from envgym.errors import InvalidInput
from envgym.runtime.event_loop import in_daemon_thread
from envgym.tools import ToolSpec

VERSION_PATH: Final = "/v1"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskLinks:
    """How a task reaches the rollout that runs its program."""

    session: ProgramSession
    loop: asyncio.AbstractEventLoop
    """Of the session."""
    call_tool: CallTool | None = None
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
        try:
            return self._begin(_call(messages, self.tools if tools is None else tools, max_tokens, stop)).result()
        except CancelledError:
            raise CallFailed(CLOSED.reason, kind=CLOSED.kind) from None

    async def achat(
        self,
        messages: Iterable[Message | Mapping[str, Any]],
        tools: Sequence[ToolSpec | Mapping[str, Any]] | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> CallReply:
        """Call the model from a coroutine. Args and Raises: as `chat`."""
        pending = self._begin(_call(messages, self.tools if tools is None else tools, max_tokens, stop))
        try:
            return await asyncio.wrap_future(pending)
        except asyncio.CancelledError:
            if pending.cancelled() and not self.links.session.is_open:
                raise CallFailed(CLOSED.reason, kind=CLOSED.kind) from None
            raise

    def _begin(self, call: Call) -> "Future[CallReply]":
        return _submit(self.links.session.chat(call), self.links.loop)

    # ---- the env -----------------------------------------------------------------------------------------------------

    def call(self, name: str, /, **arguments: Any) -> str:  # any JSON
        """Call a tool of the env, and return what it shows. Raises: InvalidInput: the env's tools are not offered."""
        call_tool = self.links.call_tool
        if call_tool is None:
            do = "use an env with tools, and keep call in agent.program.env_tools"
            raise InvalidInput.of("tool of the env", "be offered to the program", name, where="task.call", do=do)
        return call_tool(name, arguments).text

    async def acall(self, name: str, /, **arguments: Any) -> str:  # any JSON
        """Call a tool of the env from a coroutine. Raises: as `call`."""
        return await in_daemon_thread(lambda: self.call(name, **arguments))

    def post_reward(self, value: float, components: Mapping[str, float] | None = None) -> None:
        """Post the reward of the episode.

        Raises: InvalidInput: it is no finite number, or was posted before, or the episode is over.
        """
        reward = read_reward({"reward": value, "components": components}, where="task.post_reward")

        async def post() -> None:
            self.links.session.post_reward(reward)

        _submit(post(), self.links.loop).result()

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


def _submit(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> "Future[Any]":
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
