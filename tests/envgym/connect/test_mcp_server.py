"""An environment as an MCP server, driven by the client of the SDK: in this process, over stdio and over HTTP."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from typing import Any, ClassVar

import pytest

import envgym
from envgym import Action, Reply, Task
from envgym.cli.main import main
from envgym.connect.mcp_server import McpEnvServer
from envgym.connect.mcp_session import McpSession
from envgym.core.turns import Scored, total
from envgym.errors import EnvFailure, InvalidInput, ToolInfraFailure, UnknownName
from envgym.parsing import parse_action
from envgym.serving.sessions import SessionLimits
from envgym.tools import tool
from tests.support.mcp_clients import started
from tests.support.toys import Counter

mcp = pytest.importorskip("mcp")
COUNTER, SUMS = "tests.support.toys:Counter", "tests.support.toys:Sums"
OWN = ["episode_start", "episode_say", "episode_result"]


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


async def play_oracle(client: Any, env_id: str, seed: int) -> None:
    """Play the oracle's episode through a client, and locally; replies and rewards must be the same."""
    with closing(envgym.make(env_id)) as env:
        first = env.reset(seed=seed, options={"split": "test"}).info["envgym"]
        begun = await client.call_tool("episode_start", {"seed": seed, "split": "test"})
        assert not begun.is_error, text_of(begun)
        assert begun.structured_content == {"task": first.task.id, "split": "test", "index": None}
        parts = [first.system_prompt, *(message.content for message in first.observation.messages)]
        assert text_of(begun) == "\n\n".join(part for part in parts if part)
        rewards = []
        paid, is_over = Scored(value=0.0), False
        while not is_over:
            action = env.oracle()
            turn = env.step(action).info["envgym"]
            rewards.append(turn.reward)
            calls = parse_action(action).tool_calls
            name, arguments = (calls[0].name, dict(calls[0].arguments)) if calls else ("episode_say", {"text": action})
            result = await client.call_tool(name, arguments)
            is_over = turn.ending is not None
            parts = [str(turn.observation), f"The episode is over: {turn.ending}." if is_over else ""]
            assert text_of(result) == "\n\n".join(part for part in parts if part)
            value = total(rewards)
            assert isinstance(turn.reward, Scored)
            assert isinstance(value, Scored)
            paid = value
            assert result.structured_content["reward"] == turn.reward.value
            assert result.structured_content["total"] == paid.value
            assert result.structured_content["ending"] == turn.ending
        final = await client.call_tool("episode_result", {})
        assert final.structured_content == {
            "reward": paid.value,
            "components": dict(paid.components),
            "ending": turn.ending,
            "num_turns": len(rewards),
        }


@pytest.mark.parametrize("env_id", [COUNTER, SUMS, "puzzles/guess_number-v0"])
def test_the_oracle_is_paid_as_in_local_play(env_id: str) -> None:
    async def work() -> None:
        async with in_process(env_id) as client:
            for seed in (0, 1):
                await play_oracle(client, env_id, seed)

    run(work)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_session_over_http_plays_its_own_episode(mode: str) -> None:
    async def work() -> None:
        async with serving(COUNTER) as server:
            url = f"{server.url}/mcp"
            async with mcp.Client(url, mode=mode) as client, mcp.Client(url, mode=mode) as other:
                assert client.session.initialize_result is not None, "an older revision, which has sessions"
                await play_oracle(client, COUNTER, 3)
                await asyncio.gather(play_oracle(client, COUNTER, 1), play_oracle(other, COUNTER, 2))
                assert server.num_sessions == 2
            await until(lambda: not server.num_sessions)  # a client that leaves says so

    run(work)


def test_the_command_serves_its_parent_over_stdio() -> None:
    words = ["serve", "--protocol", "mcp", "--stdio", COUNTER, "--set", "max_turns=3"]

    async def work() -> None:
        async with mcp.Client(started(words)) as client:
            await client.call_tool("episode_start", {"seed": 0})
            for _ in range(3):
                result = await client.call_tool("episode_say", {"text": "hello"})
            assert result.structured_content["ending"] == "TRUNCATED_TURNS"

    run(work)


def test_tools_are_those_of_the_env_with_ours() -> None:
    async def work() -> None:
        async with in_process(COUNTER) as client:
            tools = (await client.list_tools()).tools
            assert [item.name for item in tools] == [*OWN, "add"]
            (spec,) = (item.spec for item in Counter().toolset().values())
            assert (tools[-1].description, tools[-1].input_schema) == (spec.description, spec.parameters)
            assert "episode_start" in client.session.instructions

    run(work)


class Clash(Counter):
    """Has a tool of one of our names."""

    @tool
    def episode_say(self, text: str) -> str:
        """Say it to the counter.

        Args:
            text: The words.
        """
        return f"counted {text}"


def test_a_tool_of_one_of_our_names_gets_a_prefix() -> None:
    async def work() -> None:
        async with in_process(f"{__name__}:Clash") as client:
            assert [item.name for item in (await client.list_tools()).tools] == [*OWN, "add", "env_episode_say"]
            await client.call_tool("episode_start", {"seed": 0})
            assert text_of(await client.call_tool("env_episode_say", {"text": "one"})) == "counted one"
            assert "Use the tool" in text_of(await client.call_tool("episode_say", {"text": "one"}))

    run(work)


def test_calls_that_cannot_be_run_are_tool_errors_with_advice() -> None:
    async def work() -> None:
        async with in_process(COUNTER) as client:

            async def refused(name: str, **arguments: Any) -> str:
                result = await client.call_tool(name, arguments)
                assert result.is_error
                return text_of(result)

            for name, arguments in (("add", {"amount": 1}), ("episode_say", {"text": "x"}), ("episode_result", {})):
                assert await refused(name, **arguments) == "No episode is running. Call episode_start first."
            assert "split" in await refused("episode_start", split="dev")
            assert "did you mean 'split'?" in await refused("episode_start", splot="test")
            assert "index must lie in" in await refused("episode_start", index=10**6)
            assert not (await client.call_tool("episode_start", {"seed": 0, "index": 0})).is_error
            assert "argument 'amount' is missing" in await refused("add")
            assert "did you mean 'amount'?" in await refused("add", amuont=1)
            assert "There is no tool 'subtract'" in await refused("subtract")
            assert "argument 'text' is missing" in await refused("episode_say")
            await client.call_tool("episode_start", {"seed": 0, "index": 0})
            for _ in range(8):
                await client.call_tool("episode_say", {"text": "x"})
            over = "The episode is over: TRUNCATED_TURNS, reward 0. Call episode_start for another one."
            assert await refused("episode_say", text="x") == over

    run(work)


class Breaking(Counter):
    """Fails where it is told to."""

    waits: ClassVar[threading.Event] = threading.Event()

    def begin(self, task: Task) -> str:
        if task.id == "train/7":
            raise EnvFailure("the disk is full")
        return super().begin(task)

    def respond(self, action: Action) -> Reply:
        if action.content == "wait":
            self.waits.wait()
        raise ToolInfraFailure("the service is down")


class SlowlyBreaking(Breaking):
    """May wait."""

    blocking = True


BREAKING = f"{__name__}:Breaking"


def test_an_invalid_reward_is_a_tool_error_and_never_zero() -> None:
    async def work() -> None:
        async with in_process(BREAKING) as client:
            await client.call_tool("episode_start", {"seed": 0, "index": 0})
            result = await client.call_tool("episode_say", {"text": "x"})
            assert result.is_error
            assert "the service is down" in text_of(result)
            assert "reward" not in result.structured_content
            final = await client.call_tool("episode_result", {})
            assert final.is_error
            assert final.structured_content["ending"] == "ERROR_TOOL_INFRA"
            assert "reward" not in final.structured_content
            broken = await client.call_tool("episode_start", {"index": 7})
            assert text_of(broken) == "The environment could not be started: the disk is full"
            assert broken.is_error

    run(work)


def test_an_env_that_hangs_is_given_up_and_the_next_episode_plays() -> None:
    async def work() -> None:
        Breaking.waits.clear()
        server = McpEnvServer(f"{__name__}:SlowlyBreaking", {})
        async with mcp.Client(server.protocol_server()) as client:
            await client.call_tool("episode_start", {"seed": 0, "index": 0})
            server.limits = SessionLimits(call_s=0.2)
            result = await client.call_tool("episode_say", {"text": "wait"})
            assert text_of(result) == "The environment did not answer within 0.2 s. The episode is lost."
            assert result.is_error
            server.limits = SessionLimits()
            assert not (await client.call_tool("episode_start", {"seed": 0, "index": 1})).is_error
        assert server.num_sessions == 2
        Breaking.waits.set()
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
            headers |= {"mcp-method": "tools/call", "mcp-name": "episode_result"}
            reply = await client.post(f"{server.url}/mcp", json=data, headers=headers)
            result = json.loads(reply.text)["result"]
            assert result["isError"]
            assert "An episode needs a session" in result["content"][0]["text"]
            assert server.num_sessions == 0

    run(work)


@pytest.mark.parametrize(
    "words, sentence",
    [
        ([COUNTER, SUMS], "ENV must be one"),
        ([COUNTER, "--no-oracle"], "--no-oracle"),
        ([COUNTER, "--sessions", "0"], "limits must be above 0"),
        (["tests.support.toys:Nothing"], "tests.support.toys:Nothing"),
        ([COUNTER, "--set", "turns=3"], "'turns'"),
    ],
)
def test_the_command_refuses_in_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--protocol", "mcp", *words]) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error
    assert "\n" not in error


def test_stdio_is_of_this_protocol_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--stdio", COUNTER]) == 2
    assert "--stdio must come with --protocol mcp" in capsys.readouterr().err
    with pytest.raises(UnknownName):
        McpEnvServer("puzzles/guess_numbr-v0", {})

    async def listen_openly() -> None:
        with pytest.raises(InvalidInput, match="server must have a token"):
            await McpEnvServer(COUNTER, {}).listen("0.0.0.0", 0)

    run(listen_openly)


def test_a_session_that_was_closed_makes_no_env() -> None:
    session = McpSession(Counter, ())
    session.close()
    session.close()
    assert session.call("episode_start", {}).text == "No episode is running. Call episode_start first."
