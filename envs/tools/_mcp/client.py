"""The client: the official SDK of the Model Context Protocol, connected to servers in sandboxes.

The SDK is asynchronous; its sessions live in the event loop of one thread of this process, and callers wait for it.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Literal, TypeVar

import anyio
import anyio.to_thread
from mcp import Client, MCPError
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Request,
    RequestParams,
    Result,
    TextContent,
    ToolListChangedNotification,
    jsonrpc_message_adapter,
)

from envgym.core.json_types import JsonObject, canonical, well_formed
from envgym.envs.tools._mcp.processes import McpServerState, ServerLost, ServerProcess
from envgym.errors import ToolError
from envgym.runtime.event_loop import LoopThread
from envgym.tools import ToolSpec

ResultT = TypeVar("ResultT")
AnswerT = TypeVar("AnswerT", bound=Result)


class _State(RequestParams):
    state: dict[str, Any]  # decoded JSON


class _LoadState(Request[_State, Literal["envgym/load_state"]]):
    method: Literal["envgym/load_state"] = "envgym/load_state"
    params: _State


class _SaveState(Request[RequestParams | None, Literal["envgym/save_state"]]):
    method: Literal["envgym/save_state"] = "envgym/save_state"
    params: RequestParams | None = None


class _SavedState(Result):
    state: dict[str, Any]  # decoded JSON


class ServerConnection:
    """A server's process and the client's session with it; used by one thread at a time."""

    def __init__(self, name: str) -> None:
        """Start the server and agree on a protocol. Raises: ToolInfraFailure, ServerLost: it does not start."""
        self.state: McpServerState | None = None
        """What the server holds, None where that is not known."""
        self._has_new_tools = False
        self._read_only: frozenset[str] = frozenset()
        self._process = ServerProcess(name)
        self._loss: BaseException | None = None
        self._loop = _loop_of(os.getpid())
        try:
            self._client, self._ending = self._wait(self._open())
        except BaseException:
            self._process.close()
            raise

    @property
    def is_lost(self) -> bool:
        """Whether the server has ended, as far as is known."""
        return self._process.is_lost

    @property
    def instructions(self) -> str:
        return self._client.session.instructions or ""

    def load(self, state: McpServerState) -> None:
        """Let the server hold a state. Raises: ServerLost."""
        if self.state != state:
            self.state = None
            self._wait(self._request(_LoadState(params=_State(state=dict(state.read()))), Result))
            self.state = state

    def list_tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the server offers now. Raises: ServerLost."""
        listed = self._wait(self._client.list_tools()).tools
        read_only = (tool.name for tool in listed if tool.annotations is not None and tool.annotations.read_only_hint)
        self._read_only |= frozenset(read_only)
        return tuple(
            ToolSpec(name=tool.name, description=tool.description or "", parameters=tool.input_schema)
            for tool in listed
        )

    def call(self, name: str, arguments: JsonObject) -> str:
        """Call a tool; `state` and `has_new_tools` follow. Raises: ToolError: the server refuses. ServerLost."""
        self._has_new_tools = False
        before, self.state = self.state, None
        params = CallToolRequestParams(name=name, arguments=json.loads(well_formed(canonical(arguments))))
        try:
            result = self._wait(self._request(CallToolRequest(params=params), CallToolResult))
        except MCPError as error:
            if error.code != INVALID_PARAMS:
                raise ServerLost(f"an error of the protocol: {error}") from None
            result = CallToolResult(content=[TextContent(text=error.message)], is_error=True)
        if name in self._read_only:
            self.state = before
        else:
            saved = self._wait(self._request(_SaveState(), _SavedState))
            self.state = McpServerState(canonical(saved.state))
        text = "\n".join(part.text for part in result.content if isinstance(part, TextContent))
        if result.is_error:
            raise ToolError(text)
        return text

    @property
    def has_new_tools(self) -> bool:
        """Whether the server has said, since the last call, that its tools are others now."""
        return self._has_new_tools

    def close(self) -> None:
        self._loop.call(self._ending.set)
        self._process.close()

    # ---- in the thread of the loop -------------------------------------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        future = self._loop.begin(work)
        try:
            return future.result()
        except MCPError:
            if self._loss is not None:
                raise ServerLost(str(self._loss)) from None
            raise
        except BaseException:
            future.cancel()
            raise

    async def _open(self) -> tuple[Client, asyncio.Event]:
        """Enter the client in a task of its own, which leaves it in the end."""
        opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        ending = asyncio.Event()
        self._task = asyncio.ensure_future(self._hold(opened, ending))
        return await opened, ending

    async def _hold(self, opened: asyncio.Future[Client], ending: asyncio.Event) -> None:
        try:
            async with Client(self._transport(), mode="legacy", cache=None, message_handler=self._note) as client:
                opened.set_result(client)
                await ending.wait()
        except Exception as error:  # noqa: BLE001  # whoever waits for the client gets it
            if not opened.done():
                opened.set_exception(ServerLost(str(self._loss or error)))

    async def _note(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._has_new_tools = True

    async def _request(self, request: Request[Any, Any], kind: type[AnswerT]) -> AnswerT:
        return await self._client.session.send_request(request, kind)

    @asynccontextmanager
    async def _streams(self) -> AsyncIterator[Any]:  # the pair of streams that the SDK reads and writes
        to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        to_server, from_client = anyio.create_memory_object_stream[SessionMessage](0)

        async def relay() -> None:
            async with to_client, from_client:
                async for item in from_client:
                    try:
                        lines = await anyio.to_thread.run_sync(self._exchange, item)
                    except Exception as error:  # noqa: BLE001  # kept for whoever waits: its stream ends now
                        self._loss = error
                        return
                    for line in lines:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                        await to_client.send(SessionMessage(message))

        async with anyio.create_task_group() as group, from_server, to_server:
            group.start_soon(relay)
            yield from_server, to_server
            group.cancel_scope.cancel()

    def _transport(self) -> Transport:
        return self._streams()

    def _exchange(self, item: SessionMessage) -> list[str]:
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        return self._process.exchange(line, getattr(item.message, "id", None))


@cache
def _loop_of(process: int) -> LoopThread:
    return LoopThread("envgym-mcp")
