"""Any MCP server as tools: what it answers, and what happens if it dies, hangs, lists too much or returns too much."""

import asyncio
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from envgym.connect.mcp_client import McpConnection, McpServerSettings, close_shared, read_servers, shared_connection
from envgym.connect.mcp_server import McpEnvServer
from envgym.errors import InvalidInput, ToolError, ToolInfraFailure
from envgym.runtime.event_loop import LoopThread
from tests.support.mcp_http import McpHttpServer, mcp_over_http
from tests.support.sources import ROOT

pytest.importorskip("mcp")
PROGRAM = str(ROOT / "tests/support/mcp_program.py")


def settings(*words: str, **changes: Any) -> McpServerSettings:
    return McpServerSettings(**{"name": "program", "command": (sys.executable, PROGRAM, *words), **changes})


@contextmanager
def connected(*words: str, **changes: Any) -> Iterator[McpConnection]:
    with closing(McpConnection(settings(*words, **changes))) as connection:
        yield connection
    connection.close()


def test_tools_are_called_and_refusals_are_answers() -> None:
    with connected() as connection:
        names = [spec.name for spec in connection.tools]
        assert names[:2] == ["add", "fail"]
        assert connection.tools[0].description == "Add two numbers."
        assert connection.tools[0].parameters["required"] == ["a", "b"]
        assert connection.call("add", {"a": 2, "b": 3}) == "5"
        with pytest.raises(ToolError, match=r"^no, thanks$"):
            connection.call("fail", {})
        with pytest.raises(ToolError, match="no tools/call"):
            connection.call("no_such_tool", {})
        assert connection.call("picture", {}) == "[image: it cannot be shown]"
        assert connection.call("data", {}) == '{"answer": [1, 2]}'
        assert len(connection.call("big", {})) == 5_000_000
        assert not connection.is_lost


def test_a_changed_list_is_read_again() -> None:
    with connected() as connection:
        assert "late" not in [spec.name for spec in connection.tools]
        assert connection.call("grow", {}) == "grow"
        for _ in range(100):  # the notification may be read after the result of the call
            assert connection.call("add", {"a": 1, "b": 1}) == "2"
            if "late" in [spec.name for spec in connection.tools]:
                return
    raise AssertionError("the new tool was never listed")


def test_a_server_that_ends_is_a_failure_with_its_last_words() -> None:
    with connected() as connection:
        with pytest.raises(ToolInfraFailure, match=r"MCP server program must be able to answer.*the disk is full"):
            connection.call("die", {})
        assert connection.is_lost


def test_a_server_that_hangs_is_a_failure() -> None:
    with connected() as connection:
        connection.settings = settings(answer_s=0.2)
        with pytest.raises(ToolInfraFailure, match=r"no answer within 0\.2 s"):
            connection.call("hang", {})


@pytest.mark.parametrize(
    "mode, changes, reason",
    [
        ("refuse-start", {}, "MCP server program must be able to start.*no licence.*try this command in a shell"),
        ("silent", {"start_s": 0.5}, "MCP server program must be able to start, got no answer within 0.5 s"),
    ],
)
def test_a_server_that_does_not_start_is_a_failure(mode: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ToolInfraFailure, match=reason):
        McpConnection(settings(mode, **changes))


def test_a_server_with_too_many_tools_needs_a_choice() -> None:
    with pytest.raises(InvalidInput, match=r"must offer at most 128 tools, got 209 \(mcp\); name the ones"):
        McpConnection(settings("many"))
    with connected("many", tools=("tool_7", "add")) as connection:
        assert [spec.name for spec in connection.tools] == ["add", "tool_7"]
    with pytest.raises(InvalidInput, match=r"tool must be a known name, got 'ad' .*did you mean add"):
        McpConnection(settings(tools=("ad",)))


def test_a_shared_connection_is_one_until_it_is_lost() -> None:
    try:
        first = shared_connection(settings(shared=True))
        assert shared_connection(settings(shared=True)) is first
        with pytest.raises(ToolInfraFailure):
            first.call("die", {})
        second = shared_connection(settings(shared=True))
        assert second is not first
        assert second.call("add", {"a": 1, "b": 2}) == "3"
    finally:
        close_shared()
    assert second.is_lost


@contextmanager
def shared_by(server: McpHttpServer) -> Iterator[McpServerSettings]:
    try:
        yield McpServerSettings(name="http", url=server.url, shared=True)
    finally:
        close_shared()


@pytest.mark.parametrize(
    "status, code, is_refusal",
    [
        (200, -32601, True),
        (200, -32602, True),
        (400, -32602, True),
        (200, 7, True),
        (404, -32600, False),
        (200, -32603, False),
        (200, -32700, False),
        (503, None, False),
        (404, None, False),
    ],
)
def test_an_error_of_the_protocol_is_a_refusal_only_if_it_is_about_the_call(
    status: int, code: int | None, is_refusal: bool
) -> None:
    with (
        mcp_over_http() as server,
        closing(McpConnection(McpServerSettings(name="http", url=server.url))) as connection,
    ):
        assert connection.call("find", {}) == "find: done"
        server.faults["find"] = (status, None if code is None else {"code": code, "message": "no, thanks"})
        if is_refusal:
            with pytest.raises(ToolError, match=r"^no, thanks$"):
                connection.call("find", {})
        else:
            with pytest.raises(ToolInfraFailure, match="MCP server http must be able to answer"):
                connection.call("find", {})


def test_a_shared_connection_with_a_failed_call_stays_for_the_others_while_its_server_answers() -> None:
    with mcp_over_http() as server, shared_by(server) as shared, ThreadPoolExecutor(1) as others:
        connection = shared_connection(shared)
        waiting = others.submit(connection.call, "wait", {})
        assert server.entered.wait(60)
        with pytest.raises(ToolInfraFailure, match=r"no answer within 0\.1 s"):
            connection._wait(connection._call_tool("wait", {}), 0.1, "answer")
        server.faults["find"] = (503, None)
        with pytest.raises(ToolInfraFailure, match="error response"):
            connection.call("find", {})
        assert not connection.is_lost
        assert shared_connection(shared) is connection
        server.let.set()
        assert waiting.result() == "wait: done"


def test_a_shared_connection_whose_session_is_forgotten_is_replaced() -> None:
    with mcp_over_http() as server, shared_by(server) as shared:
        connection = shared_connection(shared)
        forgotten = (404, {"code": -32600, "message": "Session not found"})
        server.faults = {"tools/call": forgotten, "tools/list": forgotten}
        with pytest.raises(ToolInfraFailure, match="Session not found"):
            connection.call("find", {})
        assert connection.is_lost
        server.faults = {}
        second = shared_connection(shared)
        assert second is not connection
        assert second.call("find", {}) == "find: done"


def test_the_token_of_a_server_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_TOKEN", "abc")
    monkeypatch.setenv("BAD_TOKEN", "a\nb")
    with mcp_over_http(token="abc") as server:
        item = {"name": "search", "url": server.url}
        with pytest.raises(
            ToolInfraFailure, match=r"MCP server search must be able to start.*token_env names its token"
        ):
            McpConnection(McpServerSettings(**item))  # type: ignore[arg-type]  # strings
        (settings,) = read_servers([{**item, "token_env": "SEARCH_TOKEN"}], where="here")
        with closing(McpConnection(settings)) as connection:
            assert connection.call("find", {}) == "find: done"
        for name in ("NO_SUCH_TOKEN", "BAD_TOKEN", "a=b", ""):
            with pytest.raises(InvalidInput, match=r"\Atoken_env must name an environment variable[^\n]*\Z") as caught:
                read_servers([{**item, "token_env": name}], where="here")
            assert "a\nb" not in str(caught.value)
        with pytest.raises(InvalidInput, match="token_env with a url only"):
            read_servers([{"name": "a", "command": ["true"], "token_env": "SEARCH_TOKEN"}], where="here")


def test_the_process_of_a_server_has_ended_when_its_connection_is_closed(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    note = f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))"
    script.write_text(f"import os, pathlib, runpy\n{note}\nrunpy.run_path({PROGRAM!r}, run_name='__main__')\n")
    with closing(McpConnection(settings(command=(sys.executable, str(script))))):
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_environment_of_ours_over_http_is_a_server_too() -> None:
    loop = LoopThread("mcp-test")

    async def start() -> McpEnvServer:
        server = McpEnvServer("tests.support.toys:Counter", {})
        await server.listen("127.0.0.1", 0)
        return server

    async def nothing() -> None:
        await asyncio.sleep(0)

    server = loop.run(start())
    try:
        url = McpServerSettings(name="game", url=f"{server.url}/mcp")
        with closing(McpConnection(url)) as connection:
            assert [spec.name for spec in connection.tools][-1] == "add"
            assert connection.call("episode_start", {"seed": 0}).startswith("Use the tool")
            assert "stands at 1" in connection.call("add", {"amount": 1})
        assert loop.run(server.close()) == 0
        with pytest.raises(ToolInfraFailure, match="MCP server game must be able to start"):
            McpConnection(url)
    finally:
        loop.close(nothing())


@pytest.mark.parametrize(
    "servers, sentence",
    [
        (None, "mcp must be a list of servers, got None"),
        ([], "mcp must be a list of servers"),
        ("files", "mcp must be a list of servers, got 'files'"),
        (["files"], "mcp.0 must be a mapping, got 'files'"),
        ([{"name": "a"}], "one of command and url"),
        ([{"name": "a", "command": ["true"], "url": "http://x"}], "one of command and url"),
        ([{"name": "a", "url": "ftp://x"}], "begins with http:// or https://"),
        ([{"name": "a", "url": "http://x", "cwd": "/"}], "env and cwd with a command only"),
        ([{"name": "a b", "command": ["true"]}], "name"),
        ([{"name": "a", "command": ["true"], "comand": 1}], "comand"),
        ([{"name": "a", "command": ["true", 9000]}], "command must be a list of texts: put 9000 in quotes"),
        ([{"name": "a", "command": ["no-such-program-here"]}], "command must name a program, got no-such-program-here"),
        ([{"name": "a", "command": ["true"]}, {"name": "a", "command": ["true"]}], "servers must have different names"),
    ],
)
def test_settings_that_name_no_server_are_refused_in_one_sentence(servers: object, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=r"\A[^\n]*\Z") as caught:
        read_servers(servers, where="tools/mcp_tasks-v0")
    assert sentence in str(caught.value)
