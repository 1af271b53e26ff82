"""The sessions of an environment as an MCP server: who has one, when one ends, and calls that wait."""

import asyncio
import json
import threading
from typing import ClassVar

import pytest

from envgym import Action, Reply, Task
from envgym.connect.mcp_server import McpEnvServer
from envgym.errors import EnvFailure
from envgym.serving.sessions import SessionLimits
from tests.support.mcp_clients import run, serving, text_of, until
from tests.support.toys import Counter

mcp = pytest.importorskip("mcp")
COUNTER = "tests.support.toys:Counter"


class SlowlyAnswering(Counter):
    """Answers when it is let."""

    blocking = True
    let: ClassVar[threading.Event] = threading.Event()

    def respond(self, action: Action) -> Reply:
        self.let.wait()
        return super().respond(action)


def test_an_env_that_hangs_is_given_up_and_the_next_episode_plays() -> None:
    async def work() -> None:
        SlowlyAnswering.let.clear()
        server = McpEnvServer(f"{__name__}:SlowlyAnswering", {})
        async with mcp.Client(server.protocol_server()) as client:
            await client.call_tool("episode_start", {"seed": 0, "index": 0})
            server.limits = SessionLimits(call_s=0.2)
            result = await client.call_tool("episode_say", {"text": "wait"})
            assert text_of(result) == "The environment did not answer within 0.2 s. The episode is lost."
            assert result.is_error
            server.limits = SessionLimits()
            assert not (await client.call_tool("episode_start", {"seed": 0, "index": 1})).is_error
        assert server.num_sessions == 2
        SlowlyAnswering.let.set()
        assert await server.close() == 0

    run(work)


def test_sessions_are_counted_and_idle_ones_end() -> None:
    async def work() -> None:
        now = [0.0]
        limits = SessionLimits(sessions=1, idle_s=100.0)
        async with serving(COUNTER, limits=limits, clock=lambda: now[0]) as server:  # noqa: SIM117  # it has the address
            async with mcp.Client(f"{server.url}/mcp") as client, mcp.Client(f"{server.url}/mcp") as other:
                await client.call_tool("episode_start", {"seed": 0})
                refused = await other.call_tool("episode_start", {"seed": 0})
                assert text_of(refused) == "1 sessions are open, and the server takes no more. Try again later."
                now[0] = 101.0
                await client.call_tool("episode_result", {})  # it has ended, and this one has made another
                await until(lambda: server.num_sessions <= 1)
                now[0] = 202.0
                server._sweep()
                await until(lambda: not server.num_sessions)
                assert not (await other.call_tool("episode_start", {"seed": 0})).is_error

    run(work)


class Waiting(Counter):
    """Begins an episode when it is let; `entered` tells that it waits."""

    let: ClassVar[threading.Event] = threading.Event()
    entered: ClassVar[threading.Event] = threading.Event()

    def begin(self, task: Task) -> str:
        self.entered.set()
        if not self.let.wait(60):
            raise EnvFailure("nobody let it begin")
        return super().begin(task)


WAITING = f"{__name__}:Waiting"


def test_a_session_with_a_running_call_is_not_idle() -> None:
    async def work() -> None:
        Waiting.let.clear()
        Waiting.entered.clear()
        now = [0.0]
        server = McpEnvServer(WAITING, {}, limits=SessionLimits(idle_s=100.0), clock=lambda: now[0])
        async with mcp.Client(server.protocol_server()) as client:
            begun = asyncio.ensure_future(client.call_tool("episode_start", {"seed": 0, "index": 0}))
            await until(Waiting.entered.is_set)
            now[0] = 1000.0
            server._sweep()
            assert server.num_sessions == 1
            Waiting.let.set()
            assert not (await begun).is_error
            now[0] = 1100.0  # the time counts from the end of the call
            server._sweep()
            assert not (await client.call_tool("episode_result", {})).is_error
            now[0] = 1200.5
            server._sweep()
            assert (await client.call_tool("episode_result", {})).is_error
        assert await server.close() == 0

    run(work)


def test_a_call_that_waits_for_another_one_of_its_session_leaves_the_loop_free() -> None:
    async def work() -> None:
        Waiting.let.clear()
        Waiting.entered.clear()
        server = McpEnvServer(WAITING, {})
        first = asyncio.ensure_future(server._answer("a", "episode_start", {"seed": 0, "index": 0}))
        await until(Waiting.entered.is_set)
        second = asyncio.ensure_future(server._answer("a", "episode_start", {"seed": 0, "index": 0}))
        await asyncio.sleep(0)  # it has begun, and has not blocked the loop
        assert not second.done()
        Waiting.let.set()
        texts = [answer.text for answer, _ in await asyncio.gather(first, second)]
        assert texts[0] == texts[1]
        assert texts[0].startswith("Use the tool")
        assert await server.close() == 0

    run(work)


def test_a_server_that_cannot_start_raises_instead_of_answering_nobody() -> None:
    async def work() -> None:
        server = McpEnvServer(COUNTER, {}, limits=SessionLimits(idle_s=float("inf")))
        with pytest.raises(ValueError, match="finite"):
            await server.listen("127.0.0.1", 0)
        assert await server.close() == 0

    run(work)


def test_requests_need_the_token_and_a_session() -> None:
    import httpx

    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "episode_result"}}
    accepts = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

    async def work() -> None:
        async with serving(COUNTER, token="abc") as server, httpx.AsyncClient(timeout=60) as client:
            for token, status in (("", 401), ("Bearer other", 401), ("Bearer abc", 400)):
                reply = await client.post(f"{server.url}/mcp", json=call, headers={**accepts, "authorization": token})
                assert reply.status_code == status, reply.text
            headers = {**accepts, "authorization": "Bearer abc", "host": "evil.example"}
            assert (await client.post(f"{server.url}/mcp", json=call, headers=headers)).status_code == 403
            modern = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
            modern |= {"io.modelcontextprotocol/clientCapabilities": {}}  # type: ignore[dict-item]  # JSON
            modern |= {"io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"}}  # type: ignore[dict-item]  # JSON
            data = {**call, "params": {"name": "episode_result", "arguments": {}, "_meta": modern}}
            headers = {**accepts, "authorization": "Bearer abc", "mcp-protocol-version": "2026-07-28"}
            headers |= {"mcp-method": "tools/call", "mcp-name": "episode_start"}
            data["params"]["name"] = "episode_start"  # type: ignore[index]  # JSON
            for chosen in ({}, {"mcp-session-id": "mine"}, {"mcp-session-id": ""}):
                reply = await client.post(f"{server.url}/mcp", json=data, headers={**headers, **chosen})
                result = json.loads(reply.text)["result"]
                assert result["isError"]
                assert "An episode needs a session" in result["content"][0]["text"]
                assert server.num_sessions == 0

    run(work)
