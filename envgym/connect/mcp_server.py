"""An environment as an MCP server: each session of a client plays episodes, over stdio or streamable HTTP.

Over HTTP a session is what the handshake of the protocol opens. Later revisions of the protocol have no sessions over
HTTP: the server does not offer them there, and clients fall back to the handshake.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TextIO

from envgym.chats.fields import plain_json
from envgym.connect.mcp_session import INSTRUCTIONS, McpAnswer, McpSession
from envgym.connect.uvicorn_server import listening_socket, uvicorn_server
from envgym.core.json_types import JsonObject
from envgym.errors import InvalidInput
from envgym.registry import maker
from envgym.runtime.event_loop import in_daemon_thread
from envgym.runtime.http.access import address_url, check_token, is_loopback, refusal
from envgym.serving.sessions import SessionLimits

if TYPE_CHECKING:  # the SDK takes a second to import
    from mcp.server import Server
    from starlette.types import Message, Receive, Scope, Send

TOKEN_VARIABLE: Final = "ENVGYM_MCP_SERVER_TOKEN"
PATH: Final = "/mcp"
_STDIO: Final = ""
"""Session of a client on standard input and output."""
_HEADER: Final = "mcp-session-id"
_VERSION_HEADER: Final = "mcp-protocol-version"
_NO_SESSION: Final = (
    "An episode needs a session, and this request has none. Connect with the initialize handshake (protocol revision "
    "2025-11-25), which opens one."
)
_MAX_SWEEP_S: Final = 30.0
_CLOSE_S: Final = 20.0
"""Within which all envs must be closed when the server ends."""


@dataclass(slots=True)
class _OpenSession:
    session: McpSession
    called: float
    """When its last call ended, in seconds of the server's clock."""
    running: set[asyncio.Future[McpAnswer]] = field(default_factory=set)
    """Its calls in threads."""


class McpEnvServer:
    """Serves one environment; `listen`, or `serve_stdio`, then `close`, in one event loop."""

    def __init__(
        self,
        env_id: str,
        settings: Mapping[str, Any],
        *,
        token: str | None = None,
        limits: SessionLimits | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Make the env once, to read its tools. Raises: InvalidInput, UnknownName: it cannot be made, or no SDK."""
        check_installed()
        self.limits, self.url = limits or SessionLimits(), ""
        self._env_id, self._make = env_id, partial(maker(env_id), **settings)
        with closing(self._make()) as env:
            self._tools = tuple(item.spec for item in env.unwrapped.toolset().values())
            self._blocks = env.blocking
        self._token, self._is_local, self._clock = token, True, clock
        self._sessions: dict[str, _OpenSession] = {}
        """By the id of the client's session."""
        self._closing: set[asyncio.Future[None]] = set()
        self._stop: asyncio.Event | None = None

    @property
    def num_sessions(self) -> int:
        """Sessions that have an env, those that are being closed included."""
        return len(self._sessions) + len(self._closing)

    async def listen(self, host: str, port: int) -> str:
        """Start to answer; return the address when the server has started.

        Raises: InvalidInput: the address cannot be used, or needs a token. ValueError: the SDK refuses a limit.
        """
        check_token(host, self._token)
        listener = listening_socket(host, port)
        self.url, self._is_local = address_url(host, listener.getsockname()[1]), is_loopback(host)
        self._stop, started = asyncio.Event(), asyncio.Event()
        self._serving = asyncio.ensure_future(self._serve_http(listener, self._stop, started))
        starting = asyncio.ensure_future(started.wait())
        try:
            await asyncio.wait((self._serving, starting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            starting.cancel()
        if self._serving.done():
            self._stop = None
            listener.close()
            await self._serving
        return self.url

    async def serve_stdio(self, stdout: TextIO) -> None:
        """Serve the client on standard input, and on a stream to standard output, until it leaves."""
        import anyio
        from mcp.server.stdio import stdio_server

        server = self.protocol_server()
        async with stdio_server(stdout=anyio.wrap_file(stdout)) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    async def close(self) -> int:
        """Stop answering, and close every env; return the number of envs that did not close in time."""
        if self._stop is not None:
            self._stop.set()
            await self._serving
        for session_id in list(self._sessions):
            self._end(session_id)
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSE_S)
        return self.num_sessions

    # ---- the protocol ------------------------------------------------------------------------------------------------

    def protocol_server(self) -> "Server[Any]":
        """Return the SDK's server, whose handlers play the sessions."""
        import mcp_types as types
        from mcp import MCPError
        from mcp.server import Server

        async def list_tools(context: Any, _: object) -> types.ListToolsResult:
            session_id = _session_of(context)
            entry = None if session_id is None else self._sessions.get(session_id)
            tools = (McpSession(self._make, self._tools) if entry is None else entry.session).tools
            return types.ListToolsResult(
                tools=[
                    types.Tool(name=item.name, description=item.description, input_schema=plain_json(item.parameters))
                    for item in tools
                ]
            )

        async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
            answer, has_new_tools = await self._answer(_session_of(context), params.name, params.arguments or {})
            if has_new_tools:
                with suppress(MCPError):  # a client that does not listen
                    await context.session.send_tool_list_changed()
            content: list[Any] = [types.TextContent(text=answer.text)]
            data = None if answer.data is None else dict(answer.data)
            return types.CallToolResult(content=content, structured_content=data, is_error=answer.is_error)

        async def discover(context: Any, params: Any) -> types.DiscoverResult:
            if context.request is not None:
                raise MCPError(types.METHOD_NOT_FOUND, _NO_SESSION)
            return await offered.handler(context, params)  # type: ignore[no-any-return]  # the SDK's own handler

        server: Server[Any] = Server(
            "envgym",
            title=self._env_id,
            instructions=INSTRUCTIONS.format(name=self._env_id),
            on_list_tools=list_tools,
            on_call_tool=call_tool,
        )
        offered: Any = server.get_request_handler("server/discover")
        server.add_request_handler("server/discover", types.RequestParams, discover)
        return server

    async def _answer(self, session_id: str | None, name: str, arguments: JsonObject) -> tuple[McpAnswer, bool]:
        """Return the answer to a call, and whether other tools are offered now."""
        if session_id is None:
            return McpAnswer(_NO_SESSION, is_error=True), False
        self._sweep()
        entry = self._sessions.get(session_id)
        needs_thread = self._blocks or entry is None or bool(entry.running)
        if entry is None:
            if self.num_sessions >= self.limits.sessions:
                text = f"{self.limits.sessions} sessions are open, and the server takes no more. Try again later."
                return McpAnswer(text, is_error=True), False
            entry = self._sessions[session_id] = _OpenSession(McpSession(self._make, self._tools), self._clock())
        before = entry.session.tools
        work = partial(entry.session.call, name, arguments)
        if not needs_thread:
            answer, entry.called = work(), self._clock()
            return answer, entry.session.tools != before
        running = asyncio.ensure_future(in_daemon_thread(work))
        entry.running.add(running)
        running.add_done_callback(partial(self._note_end, entry))
        try:
            async with asyncio.timeout(self.limits.call_s):
                answer = await asyncio.shield(running)  # a client that leaves does not end the call
        except TimeoutError:
            if self._sessions.get(session_id) is entry:
                self._end(session_id)
            text = f"The environment did not answer within {self.limits.call_s:g} s. The episode is lost."
            return McpAnswer(text, is_error=True), False
        return answer, entry.session.tools != before

    def _note_end(self, entry: _OpenSession, call: asyncio.Future[McpAnswer]) -> None:
        entry.running.discard(call)
        entry.called = self._clock()

    # ---- sessions ----------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """End the sessions that were not called for long; one with a running call is not idle."""
        oldest = self._clock() - self.limits.idle_s
        for session_id in [key for key, item in self._sessions.items() if not item.running and item.called < oldest]:
            self._end(session_id)

    def _end(self, session_id: str) -> None:
        """Close the env of a session in a thread, which waits for a call that is running."""
        entry = self._sessions.pop(session_id, None)
        if entry is not None:
            closed = asyncio.ensure_future(in_daemon_thread(entry.session.close))
            self._closing.add(closed)
            closed.add_done_callback(self._closing.discard)

    # ---- HTTP --------------------------------------------------------------------------------------------------------

    async def _serve_http(self, listener: socket.socket, stop: asyncio.Event, started: asyncio.Event) -> None:
        from mcp.server.transport_security import TransportSecuritySettings

        server = self.protocol_server()
        app = server.streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            session_idle_timeout=self.limits.idle_s,
            max_sessions=2 * self.limits.sessions,  # those that have ended here are forgotten there later
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # `refusal` does it
        )
        web = uvicorn_server(partial(self._guarded, app), started, ws="none")
        async with server.session_manager.run(), self._sweeping():
            serving = asyncio.ensure_future(web.serve(sockets=[listener]))
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            web.should_exit = web.force_exit = True
            await serving

    @asynccontextmanager
    async def _sweeping(self) -> AsyncIterator[None]:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(min(self.limits.idle_s, _MAX_SWEEP_S))
                self._sweep()

        task = asyncio.ensure_future(sweep())
        try:
            yield
        finally:
            task.cancel()

    async def _guarded(self, app: Any, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer a request that the client may make; one that ends a session ends its episode."""
        from starlette.datastructures import Headers
        from starlette.responses import JSONResponse

        headers = Headers(scope=scope)
        refused = refusal(headers, url=self.url, is_local=self._is_local, token=self._token)
        if refused is not None:
            await JSONResponse({"error": refused[1]}, refused[0])(scope, receive, send)
            return
        session_id = headers.get(_HEADER)
        if scope["method"] != "DELETE" or session_id is None:
            await app(scope, receive, send)
            return

        async def send_and_end(message: "Message") -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                self._end(session_id)
            await send(message)

        await app(scope, receive, send_and_end)


def check_installed() -> None:
    """Check that the SDK is there. Raises: InvalidInput: it is not."""
    from importlib.util import find_spec

    do = "pip install 'envgym[mcp]'"
    InvalidInput.unless(find_spec("mcp") is not None, "mcp", "be installed", "no such package", where="MCP", do=do)


def _session_of(context: Any) -> str | None:  # the SDK's context of a request
    """Return the id of the client's session; None: it has none.

    Over HTTP, the SDK checks the id only in requests of the revisions with a handshake. In others, clients choose it.
    """
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    if context.request is None:
        return _STDIO
    headers = context.request.headers
    if headers.get(_VERSION_HEADER, HANDSHAKE_PROTOCOL_VERSIONS[-1]) not in HANDSHAKE_PROTOCOL_VERSIONS:
        return None
    session_id = headers.get(_HEADER)
    return session_id if isinstance(session_id, str) and session_id else None
