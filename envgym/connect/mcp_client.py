"""Any MCP server as tools: a command that is started here, or an address. The client is the official SDK.

The SDK is asynchronous; its sessions live in the event loop of one thread of this process, and callers wait for it.
"""

import asyncio
import atexit
import json
import os
import tempfile
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from shutil import which
from threading import Lock
from typing import IO, Any, Final, TypeVar

from pydantic import Field, field_validator, model_validator

from envgym.config.settings import Settings, build_settings
from envgym.connect.mcp_server import check_installed
from envgym.core.json_types import JsonObject, canonical, well_formed
from envgym.errors import InfrastructureError, InvalidInput, ToolError, ToolInfraFailure, check_known
from envgym.runtime.event_loop import shared_loop
from envgym.tools import ToolSpec

ResultT = TypeVar("ResultT")

MAX_TOOLS: Final = 128
"""Tools of one server; with more, settings must choose."""
_CONNECT_S: Final = 30.0
_READ_S: Final = 300.0
"""Longest silence of a stream over which a server sends notifications."""
_CLOSE_S: Final = 15.0
_SHOWN_CHARS: Final = 300
"""Of what a server wrote to standard error, in the error that reports its end."""


class McpServerSettings(Settings):
    """One server: a command, or a URL."""

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=40)
    """Comes before the names of its tools: `files__read`."""
    command: tuple[str, ...] = ()
    """Program and arguments; it runs as the user, without a sandbox."""
    env: Mapping[str, str] = Field(default_factory=dict)
    """Environment variables of the command, besides PATH, HOME and the like."""
    cwd: str | None = None
    """Folder in which the command runs; null: this one."""
    url: str | None = None
    """Address of a server over streamable HTTP, in place of a command."""
    token_env: str | None = None
    """Name of the environment variable with the bearer token of the url; null: no token is sent."""
    tools: tuple[str, ...] | None = None
    """Names of its tools that are offered; null: all."""
    shared: bool = False
    """Whether the episodes of a process share one connection, for servers that no call changes."""
    start_s: float = Field(default=60.0, gt=0)
    """Seconds until the server must have answered for the first time."""
    answer_s: float = Field(default=60.0, gt=0)
    """Seconds that a call may take."""

    @field_validator("command", mode="before")
    @classmethod
    def _check_words(cls, value: object) -> object:
        words = value if isinstance(value, list | tuple) else []
        if other := [word for word in words if not isinstance(word, str)]:
            raise ValueError(f"a list of texts: put {other[0]!r} in quotes")
        return value

    @model_validator(mode="after")
    def _check_one(self) -> "McpServerSettings":
        if bool(self.command) == bool(self.url):
            raise ValueError(f"given with one of command and url (got command={list(self.command)}, url={self.url})")
        if not self.command and (self.env or self.cwd):
            raise ValueError("given env and cwd with a command only")
        if not self.url and self.token_env is not None:
            raise ValueError("given token_env with a url only")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"given with a url that begins with http:// or https:// (got {self.url})")
        return self


def read_servers(servers: object, *, where: str) -> tuple[McpServerSettings, ...]:
    """Read the servers that settings name. Raises: SettingsError, InvalidInput: a fault, in one sentence."""
    check_installed()
    if not isinstance(servers, Sequence) or isinstance(servers, str) or not servers:
        do = "write e.g. mcp=[{name: files, command: [my-server]}]"
        raise InvalidInput.of("mcp", "be a list of servers", repr(servers), where=where, do=do)
    read: list[McpServerSettings] = []
    for number, item in enumerate(servers):
        if not isinstance(item, Mapping):
            do = "write its name, and its command or url"
            raise InvalidInput.of(f"mcp.{number}", "be a mapping", repr(item), where=where, do=do)
        settings = build_settings(McpServerSettings, item, where=f"{where}, mcp.{number}")
        if any(other.name == settings.name for other in read):
            must, do = "have different names", "rename one of them"
            raise InvalidInput.of("servers", must, settings.name, where=where, do=do)
        if settings.command and which(settings.command[0]) is None:
            do = "install it, or write its path"
            raise InvalidInput.of("command", "name a program", settings.command[0], where=settings.name, do=do)
        _token_of(settings)
        read.append(settings)
    return tuple(read)


def _token_of(settings: McpServerSettings) -> str | None:
    """Return the token that is sent. Raises: InvalidInput: its variable has none."""
    name = settings.token_env
    if name is None:
        return None
    token = os.environ.get(name, "")
    is_header = token != "" and token.isascii() and token.isprintable() and " " not in token
    must, do = "name an environment variable with a token of printable characters", "export the token under this name"
    InvalidInput.unless(is_header, "token_env", must, name, where=f"MCP server {settings.name}", do=do)
    return token


class McpConnection:
    """A session with one server; calls come from one thread, or of several where the server allows it."""

    def __init__(self, settings: McpServerSettings) -> None:
        """Connect, and read the tools. Raises: ToolInfraFailure: no answer. InvalidInput: it lists too many tools."""
        self.settings = settings
        self.is_lost = False
        self._has_new_tools = False
        self._errors: IO[str] | None = _text_file()
        self._loop = shared_loop("envgym-mcp-client")
        self._task: asyncio.Task[None] | None = None
        try:
            self._client, self._ending = self._wait(self._open(), settings.start_s, "start")
            self.tools = self._list_tools()
        except BaseException:
            self.close()
            raise

    def call(self, name: str, arguments: JsonObject) -> str:
        """Call a tool; `tools` follow if the server changes its list.

        Raises: ToolError: the server refuses. ToolInfraFailure: it has ended, or does not answer in time.
        """
        plain = json.loads(well_formed(canonical(arguments)))
        result = self._wait(self._call_tool(name, plain), self.settings.answer_s, "answer")
        if self._has_new_tools:
            self._has_new_tools = False
            self.tools = self._list_tools()
        text = result_text(result)
        if result.is_error:
            raise ToolError(text)
        return text

    def close(self) -> None:
        """End session and process; may be called twice."""
        self.is_lost = True
        with suppress(TimeoutError):
            self._loop.begin(self._finish()).result(timeout=_CLOSE_S)
        errors, self._errors = self._errors, None
        if errors is not None:
            errors.close()

    def _list_tools(self) -> tuple[ToolSpec, ...]:
        listed = self._wait(self._all_tools(), self.settings.answer_s, "list its tools")
        offered = self.settings.tools
        names = [tool.name for tool in listed]
        for name in offered or ():
            check_known("tool", name, names, where=f"MCP server {self.settings.name}")
        specs = tuple(
            ToolSpec(name=tool.name, description=tool.description or "", parameters=tool.input_schema)
            for tool in listed
            if offered is None or tool.name in offered
        )
        if len(specs) > MAX_TOOLS:
            must, do = f"offer at most {MAX_TOOLS} tools", "name the ones that are needed in tools: [...]"
            raise InvalidInput.of(f"MCP server {self.settings.name}", must, str(len(specs)), where="mcp", do=do)
        return specs

    # ---- in the thread of the loop -----------------------------------------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, ResultT], limit_s: float, what: str) -> ResultT:
        """Wait for work in the loop. Raises: ToolError: the work's own. ToolInfraFailure: any other failure."""
        from mcp import MCPError

        async def bounded() -> ResultT:
            async with asyncio.timeout(limit_s):
                return await work

        future = self._loop.begin(bounded())
        try:
            return future.result()
        except TimeoutError:
            raise self._loss(what, f"no answer within {limit_s:g} s") from None
        except (ToolError, InfrastructureError):
            raise
        except MCPError as error:
            raise self._loss(what, str(error)) from None
        except Exception as error:
            raise self._loss(what, f"{type(error).__name__}: {error}") from error
        except BaseException:
            future.cancel()
            raise

    def _loss(self, what: str, reason: str) -> ToolInfraFailure:
        """Return the error of a server that failed, with the end of what it wrote to standard error."""
        self.is_lost = self.is_lost or not (self.settings.shared and self._answers())
        last = ""
        if self._errors is not None:
            self._errors.seek(0)
            last = " ".join(self._errors.read().split())[-_SHOWN_CHARS:]
        got = f"{reason}; it wrote: {last}" if last else reason
        where = " ".join(self.settings.command) or str(self.settings.url)
        do = "start it, check the address, and that token_env names its token if it has one"
        do = "try this command in a shell" if self.settings.command else do
        return ToolInfraFailure.of(f"MCP server {self.settings.name}", f"be able to {what}", got, where=where, do=do)

    def _answers(self) -> bool:
        """Return whether the server answers a request; if it does, calls of other episodes may be running."""

        async def ask() -> None:
            async with asyncio.timeout(self.settings.answer_s):
                await self._client.list_tools()

        try:
            self._loop.begin(ask()).result()
        except Exception:  # noqa: BLE001  # whatever fails, it does not answer
            return False
        return True

    async def _call_tool(self, name: str, arguments: JsonObject) -> Any:  # the SDK's CallToolResult
        """Call a tool. Raises: ToolError: the server refuses. MCPError: the server, or the way to it, fails."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, REQUEST_TIMEOUT

        try:
            return await self._client.call_tool(name, arguments)
        except MCPError as error:
            if error.code in (CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, REQUEST_TIMEOUT):
                raise
            raise ToolError(error.error.message) from None

    async def _open(self) -> tuple[Any, asyncio.Event]:
        """Enter the client in a task of its own, which leaves it in the end."""
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ending = asyncio.Event()
        self._task = asyncio.ensure_future(self._hold(opened, ending))
        return await opened, ending

    async def _hold(self, opened: asyncio.Future[Any], ending: asyncio.Event) -> None:
        from mcp import Client

        try:
            async with Client(self._transport(), cache=None, message_handler=self._note) as client:
                opened.set_result(client)
                await ending.wait()
        except Exception as error:  # noqa: BLE001  # whoever waits for the client gets it
            if not opened.done():
                opened.set_exception(_cause(error))

    def _transport(self) -> Any:  # what the SDK's client takes
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        settings = self.settings
        if settings.url is not None:
            return _over_http(settings.url, _token_of(settings), settings.answer_s)
        program, *arguments = settings.command
        parameters = StdioServerParameters(command=program, args=arguments, env=dict(settings.env), cwd=settings.cwd)
        assert self._errors is not None, "not closed yet"
        return stdio_client(parameters, errlog=self._errors)  # type: ignore[arg-type]  # a text file

    async def _note(self, message: object) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._has_new_tools = True

    async def _all_tools(self) -> list[Any]:
        tools: list[Any] = []
        cursor = None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor or len(tools) > 100 * MAX_TOOLS:
                return tools

    async def _finish(self) -> None:
        """Leave the client; a server that does not end is killed by the SDK."""
        task = self._task
        if task is None:
            return
        if hasattr(self, "_ending"):
            self._ending.set()
        else:
            task.cancel()
        await asyncio.wait((task,))


@asynccontextmanager
async def _over_http(url: str, token: str | None, answer_s: float) -> AsyncIterator[Any]:  # the SDK's streams
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {token}"} if token else None
    timeout = httpx2.Timeout(_CONNECT_S, read=max(answer_s, _READ_S))
    client = httpx2.AsyncClient(headers=headers, timeout=timeout)
    async with client, streamable_http_client(url, http_client=client) as streams:
        yield streams


def _text_file() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


def result_text(result: Any) -> str:  # the SDK's CallToolResult
    """Return the text of a result: its text parts, or else its structured content as JSON; other parts are named."""
    parts = [part.text if part.type == "text" else f"[{part.type}: it cannot be shown]" for part in result.content]
    if not any(part.type == "text" for part in result.content) and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False), *parts]
    return "\n".join(parts)


def _cause(error: BaseException) -> BaseException:
    """Return the error inside groups that task groups make."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# ---- connections that episodes share ---------------------------------------------------------------------------------

_shared: dict[str, McpConnection] = {}
_shared_lock = Lock()


def shared_connection(settings: McpServerSettings) -> McpConnection:
    """Return this process' connection to a server, a new one where the last was lost. Raises: as `McpConnection`."""
    key = f"{os.getpid()} {settings.model_dump_json()}"
    with _shared_lock:
        connection = _shared.get(key)
        if connection is None or connection.is_lost:
            if connection is not None:
                connection.close()
            connection = _shared[key] = McpConnection(settings)
        return connection


def close_shared() -> None:
    """Close the connections that episodes of this process share."""
    with _shared_lock:
        own = [key for key in _shared if key.startswith(f"{os.getpid()} ")]
        for key in own:
            _shared.pop(key).close()


atexit.register(close_shared)
