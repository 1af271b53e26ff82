"""The SDK's client with an environment as a server: in this process, over HTTP, or as a command that it starts."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from envgym.connect.mcp_server import McpEnvServer
from tests.support.sources import ROOT


def started(words: Sequence[str]) -> Any:  # a transport of the SDK
    """Return what the SDK's client takes to start `envgym WORDS`.

    The server writes its errors where the process does. The SDK would take what `sys.stderr` was when it was imported,
    which may be the closed file of a test that captures output.
    """
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    parameters = StdioServerParameters(command=sys.executable, args=["-m", "envgym", *words], cwd=ROOT)
    assert sys.__stderr__ is not None
    return stdio_client(parameters, errlog=sys.__stderr__)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await work()

    asyncio.run(bounded())


@asynccontextmanager
async def serving(env_id: str, **options: Any) -> AsyncIterator[McpEnvServer]:
    server = McpEnvServer(env_id, options.pop("settings", {}), **options)
    url = await server.listen("127.0.0.1", 0)
    assert url == server.url
    try:
        yield server
    finally:
        assert await server.close() == 0


@asynccontextmanager
async def in_process(env_id: str, **options: Any) -> AsyncIterator[Any]:  # the SDK's client
    import mcp

    server = McpEnvServer(env_id, options.pop("settings", {}), **options)
    try:
        async with mcp.Client(server.protocol_server()) as client:
            yield client
    finally:
        assert await server.close() == 0


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # what another program does sets no event
        await asyncio.sleep(0.01)


def text_of(result: Any) -> str:
    (part,) = result.content
    return str(part.text)
