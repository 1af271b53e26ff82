"""A server written with FastMCP becomes tools of an environment, over stdio and over HTTP."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import envgym
from envgym.core.turns import Scored
from envgym.parsing import tool_call_action

pytest.importorskip("fastmcp")
pytestmark = pytest.mark.connect
SERVER = '''
import socket
import sys

from fastmcp import FastMCP

server = FastMCP("sums")


@server.tool
def add(first: int, second: int = 5) -> int:
    """Add two numbers."""
    return first + second


@server.tool
def refuse() -> str:
    """Refuse."""
    raise ValueError("no, thanks")


if len(sys.argv) > 1:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(server.http_app(), log_level="error")).run([listener])
else:
    server.run(show_banner=False)
'''


@pytest.fixture
def rows(tmp_path: Path) -> str:
    (tmp_path / "server.py").write_text(SERVER)
    path = tmp_path / "rows.jsonl"
    numbers = [{"prompt": f"What is {a} plus 5?", "answer": str(a + 5)} for a in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in numbers), encoding="utf-8")
    return str(path)


@contextmanager
def served(script: Path) -> Iterator[str]:
    """Run the server over HTTP at a port that it chooses and prints, and yield its address."""
    command = [sys.executable, str(script), "http"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.terminate()
            process.wait(60)


def play(rows: str, server: dict[str, Any]) -> None:
    settings = {"mcp": [{"name": "sums", **server}], "data": rows, "verifier": "numeric"}
    with closing(envgym.make("tools/mcp_tasks-v0", **settings)) as env:
        first = env.reset(seed=0).info["envgym"]
        assert [spec.name for spec in first.tools] == ["sums__add", "sums__refuse"]
        assert first.tools[0].parameters["required"] == ["first"]
        number = int(str(first.observation).split()[2])
        turn = env.step(tool_call_action("sums__add", first=number)).info["envgym"]
        assert (turn.observation, turn.tool_errors) == (str(number + 5), 0)
        wrong = env.step(tool_call_action("sums__add", first="many")).info["envgym"]
        assert wrong.tool_errors == 1
        refused = env.step(tool_call_action("sums__refuse")).info["envgym"]
        assert "no, thanks" in refused.observation
        result = env.step(str(number + 5)).info["envgym"]
        assert isinstance(result.reward, Scored)
        assert result.reward.value == 1.0


def test_a_server_that_is_started_gives_its_tools(rows: str, tmp_path: Path) -> None:
    play(rows, {"command": [sys.executable, str(tmp_path / "server.py")]})


def test_a_server_with_an_address_gives_its_tools(rows: str, tmp_path: Path) -> None:
    with served(tmp_path / "server.py") as url:
        play(rows, {"url": url})
