"""The tools of the env for a program: by MCP and as a function, as the settings say."""

import asyncio
import json
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any

import pytest

from envgym import Ending, Invalid, Observation, Reply, Scored
from envgym.agents.rollout.programs.env_tools import EnvTools, ToolReply, answer_mcp
from envgym.core.json_types import JsonObject
from envgym.errors import ResetNeeded
from envgym.runtime.http.server import AnyReply, HttpReply, HttpRequest
from envgym.tools import ToolSpec
from tests.agents.rollout.programs import sample_programs
from tests.agents.rollout.programs.playing import play
from tests.support.parrots import Parrot, parrot_job

ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})


async def call(name: str, arguments: JsonObject) -> ToolReply:
    if name == "late":
        raise ResetNeeded("The env is closed.")
    return ToolReply(f"{name} {json.dumps(arguments)}", is_error=name != "add")


def answer(body: object, method: str = "POST") -> tuple[HTTPStatus, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = HttpRequest(method, "/mcp", "", {}, content)

    async def reply() -> AnyReply:
        answered = answer_mcp(EnvTools((ADD,), call), request)
        return await answered if isinstance(answered, Awaitable) else answered

    replied = asyncio.run(reply())
    assert isinstance(replied, HttpReply)
    return replied.status, json.loads(replied.body) if replied.body else None


def result(method: str, params: object = None) -> Any:
    status, message = answer({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    assert (status, message["jsonrpc"], message["id"]) == (HTTPStatus.OK, "2.0", 7)
    return message["result"] if "result" in message else message["error"]["code"]


# ---- the protocol ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted,offered", [("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25"), ([], "2025-11-25")]
)
def test_a_known_revision_is_spoken_and_for_another_one_the_newest_is_offered(wanted: object, offered: str) -> None:
    greeting = result("initialize", {"protocolVersion": wanted, "capabilities": {}})
    assert (greeting["protocolVersion"], greeting["capabilities"]) == (offered, {"tools": {}})


def test_tools_are_listed_and_called() -> None:
    assert result("ping") == {}
    (listed,) = result("tools/list")["tools"]
    assert listed == {"name": "add", "description": "Add.", "inputSchema": ADD.parameters}
    assert result("tools/call", {"name": "add", "arguments": {"a": 1}}) == {
        "content": [{"type": "text", "text": 'add {"a": 1}'}],
        "isError": False,
    }
    assert result("tools/call", {"name": "add"})["content"][0]["text"] == "add {}"
    for name, text in (("other", "other {}"), ("late", "The env is closed.")):
        assert result("tools/call", {"name": name}) == {"content": [{"type": "text", "text": text}], "isError": True}


def test_what_cannot_be_answered_has_the_error_of_the_protocol() -> None:
    assert result("resources/list") == -32601
    wrong: list[object] = [None, [], {"name": 1}, {"name": "add", "arguments": [1]}]
    assert [result("tools/call", params) for params in wrong] == [-32602] * 4
    for body, code in ((b"{", -32700), (b"\xff", -32700), ([], -32600), ({"method": 1, "id": 1}, -32600)):
        status, message = answer(body)
        assert (status, message["id"], message["error"]["code"]) == (HTTPStatus.BAD_REQUEST, None, code)


def test_notifications_are_accepted_and_there_is_no_stream_and_no_session() -> None:
    assert answer({"jsonrpc": "2.0", "method": "notifications/initialized"}) == (HTTPStatus.ACCEPTED, None)
    assert answer({"jsonrpc": "2.0", "id": 1, "result": {}}) == (HTTPStatus.ACCEPTED, None)
    assert [answer(b"", method)[0] for method in ("GET", "DELETE")] == [HTTPStatus.METHOD_NOT_ALLOWED] * 2


# ---- programs --------------------------------------------------------------------------------------------------------


def test_the_client_of_the_sdk_calls_the_tools_of_the_env() -> None:
    pytest.importorskip("mcp")
    trajectory = play("play_by_mcp")
    listed, good, bad = sample_programs.LAST_TEXTS
    assert listed == "look: Look at something. ['at']"
    assert good == "False a cat"
    assert bad.startswith("True ")
    # a turn of the model, paid by the answer of the program; calls of tools pay nothing here
    assert (trajectory.ending, trajectory.reward, len(trajectory.turns)) == (Ending.TERMINATED, Scored(value=0.25), 1)


@pytest.mark.parametrize(
    "ways,tools,has_url,is_called",
    [
        (["mcp", "call"], ["look"], True, True),
        (["mcp"], ["look"], True, False),
        (["call"], ["look"], False, True),
        ([], [], False, False),
    ],
)
def test_the_settings_say_how_tools_are_offered(
    ways: list[str], tools: list[str], has_url: bool, is_called: bool
) -> None:
    trajectory = play("note_the_tools", env_tools=ways)
    assert sample_programs.LAST_TEXTS[:-1] == tools
    url = sample_programs.LAST_TEXTS[-1]
    assert (url.startswith("http://127.0.0.1:"), url.endswith("/mcp")) == (has_url, has_url)
    assert isinstance(trajectory.reward, Invalid)
    assert ("tool of the env must be offered" in trajectory.reward.reason) is not is_called


class Broken(Parrot):
    """Fails after its tools have run."""

    def after_tools(self, observation: Observation) -> Reply:
        raise RuntimeError("the perch broke")


def test_an_env_that_fails_in_a_call_makes_the_episode_invalid_whatever_a_crash_is_paid() -> None:
    for program in ("call_once", "play_by_mcp"):
        trajectory = play(program, job=parrot_job(Broken), on_crash=1.0)
        assert trajectory.ending is Ending.ERROR_ENV
        assert isinstance(trajectory.reward, Invalid)
        assert trajectory.reward.reason == "step of Broken failed: RuntimeError: the perch broke"
