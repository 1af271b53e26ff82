"""Requests that the host refuses, rewards that programs post, and calls without HTTP."""

import asyncio
import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest

from envgym.agents.rollout.programs.calls import Call, RefusalKind
from envgym.agents.rollout.programs.dialects.chat import ChatDialect
from envgym.agents.rollout.programs.host import ProgramHost, shared_host
from envgym.agents.rollout.programs.sessions import CallFailed, ProgramSession
from envgym.core.messages import Message, Role
from envgym.core.turns import Scored
from envgym.errors import InvalidInput
from envgym.runtime.processes.log import close_log, open_log
from tests.support.env_server import wait_until
from tests.support.program_calls import (
    PATIENCE_S,
    TLS,
    TOOLS,
    FakeMatcher,
    Gate,
    RunningHost,
    last_text,
    post,
    running_host,
    say,
)


@pytest.fixture
def server() -> Iterator[RunningHost]:
    with running_host() as running:
        yield running


# ---- requests that are wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, sentence",
    [
        (b"{", "body must be JSON, got "),
        (b"\xff", "body must be JSON, got "),
        (b"[1]", "body must be a JSON object, got [1] (request); send a JSON object."),
        (b"[" * 100_000, "body must be JSON, got "),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "body must be JSON, got "),
        ({"model": "m"}, "messages must be a list of at least one message, got None"),
        ({**say("x"), "n": 2}, "n must be 1, got 2 (request); correct the request."),
        ({**say("x"), "logit_bias": {"1": 5}}, "logit_bias must not be set"),
    ],
)
def test_a_body_that_cannot_be_read_is_one_sentence(server: RunningHost, body: object, sentence: str) -> None:
    session = server.begin(matcher := FakeMatcher())
    response = post(server, session, body)
    assert response.status_code == HTTPStatus.BAD_REQUEST
    error = response.json()["error"]
    assert error["message"].startswith(sentence)
    assert (error["type"], error["code"]) == ("invalid_request_error", None)
    assert matcher.calls == []
    assert post(server, session, b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00"}]}').status_code == 200
    assert last_text(matcher.calls[0]) == "\U0001f600"


def test_a_path_that_is_not_there_is_404(server: RunningHost) -> None:
    session = server.begin(FakeMatcher())
    for path in ("/v1/embeddings", "/v1/responses", "/v1/chat/completions/x", ""):
        response = post(server, session, {}, path)
        assert response.status_code == HTTPStatus.NOT_FOUND
        assert "use one of /models, /reward, /chat/completions" in response.json()["error"]["message"]
    with httpx.Client(verify=TLS, trust_env=False) as client:
        assert client.get(f"{server.url(session)}/v1/models/other").status_code == HTTPStatus.NOT_FOUND
        assert client.get(f"{server.url(session)}/v1/models", headers={"Host": "evil.example"}).status_code == 403


def test_options_without_effect_are_counted_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    body = {**say("x"), "tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}
    with running_host() as server:
        session = server.begin(FakeMatcher())
        assert [post(server, session, body).status_code for _ in "ab"] == [200, 200]
        assert session.counts.ignored_options == {"tool_choice": 2, "response_format": 2}
    assert sorted(caplog.messages) == [
        f"{name} must be left out, got a value that has no effect (request); leave it out, or set "
        "agent.program.unsupported: refuse."
        for name in ("response_format", "tool_choice")
    ]
    with running_host(refuses=True) as server:
        response = post(server, server.begin(FakeMatcher()), body)
        assert response.status_code == HTTPStatus.BAD_REQUEST
        assert "set agent.program.unsupported: ignore" in response.json()["error"]["message"]


def test_the_log_has_what_happened_to_the_calls_of_a_program(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    open_log(file, run="r", role="test")
    try:
        with running_host() as server:
            session = server.begin(matcher := FakeMatcher(turns=1))
            for _ in range(2):
                post(server, session, {**say("x"), "response_format": {"type": "json_object"}})
            wait_until(lambda: len(matcher.recorded) == 1)
            server.end(session)
    finally:
        close_log()
    (entry,) = [line for line in map(json.loads, file.read_text().splitlines()) if line.get("event") == "program"]
    assert {key: entry[key] for key in ("delivered", "beyond_limit", "dropped", "ignored_options")} == {
        "delivered": 1,
        "beyond_limit": 1,
        "dropped": 0,
        "ignored_options": {"response_format": 2},
    }


# ---- rewards ---------------------------------------------------------------------------------------------------------


def test_a_reward_is_posted_once_during_the_episode(server: RunningHost) -> None:
    session = server.begin(FakeMatcher())
    for body, sentence in [
        ({}, "reward must be a finite number, got None"),
        ({"reward": None}, "reward must be a finite number, got None"),
        (b'{"reward": NaN}', "reward must be a finite number, got nan"),
        ({"reward": True}, "reward must be a finite number, got True"),
        ({"reward": "1"}, "reward must be a finite number, got 1"),
        ({"reward": 1, "components": [1]}, "components must be a mapping"),
        ({"reward": 1, "components": {"a": None}}, "component a must be a finite number, got None"),
    ]:
        response = post(server, session, body, "/reward")
        assert response.status_code == HTTPStatus.BAD_REQUEST
        assert response.json()["error"]["message"].startswith(sentence)
    assert [session.reward] == [None]
    assert post(server, session, {"reward": 0.5, "components": {"a": 1}}, "/v1/reward").status_code == HTTPStatus.OK
    again = post(server, session, {"reward": 1}, "/reward")
    assert again.status_code == HTTPStatus.CONFLICT
    assert "reward must be posted once, during the episode, got 1.0" in again.json()["error"]["message"]
    assert session.reward == Scored(value=0.5, components={"a": 1.0})
    late = server.begin(FakeMatcher())
    server.end(late)
    assert post(server, late, {"reward": 1}, "/reward").status_code == HTTPStatus.CONFLICT
    assert late.reward is None
    other = ProgramSession(FakeMatcher(), Gate().generate, takes_reward=False)
    with pytest.raises(
        InvalidInput, match=r"must come from its source, got a post .*set agent\.program\.reward=posted"
    ):
        other.post_reward(Scored(value=1.0))


# ---- one host for all programs ---------------------------------------------------------------------------------------


def test_programs_of_one_event_loop_share_a_host_until_the_last_has_ended() -> None:
    urls = list[str]()

    async def use(started: asyncio.Event, go_on: asyncio.Event, *, refuses: bool = False) -> ProgramHost:
        async with shared_host([ChatDialect()], refuses=refuses) as host:
            urls.append(host.http.url)
            started.set()
            await go_on.wait()
        return host

    async def work() -> None:
        events = [asyncio.Event() for _ in range(5)]
        first, second, other, released, never = events
        released.set()
        users = [
            asyncio.create_task(use(first, never)),
            asyncio.create_task(use(second, released)),
            asyncio.create_task(use(other, never, refuses=True)),
        ]
        cancelled = asyncio.create_task(use(asyncio.Event(), never))
        await asyncio.gather(first.wait(), second.wait(), other.wait())
        assert await users[1] is not None
        assert (len(set(urls[:2])), len(set(urls))) == (1, 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(urls[0].rpartition(":")[2]))
        cancelled.cancel()
        never.set()
        hosts = await asyncio.gather(users[0], users[2])
        assert not any(host.http.connections for host in hosts)
        assert await reader.read() == b""  # the host has closed it
        writer.close()
        assert (await use(asyncio.Event(), released)) not in hosts

    asyncio.run(work())


# ---- calls without HTTP ----------------------------------------------------------------------------------------------


def test_a_call_of_this_process_is_a_turn_or_raises(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher(turns=1))
    call = Call(messages=(Message(role=Role.USER, content="hi"),))
    assert server.thread.run(session.chat(call)).message.content == "re: hi"
    assert len(matcher.recorded) == 1
    assert server.thread.run(session.chat(call)).message.content.startswith("All 1 turns")
    server.end(session)
    with pytest.raises(CallFailed, match="The episode is over") as error:
        server.thread.run(session.chat(call))
    assert error.value.kind is RefusalKind.CLOSED


def test_a_call_of_this_process_ends_with_the_session(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher(), (gate := Gate()).generate)
    pending = server.thread.begin(session.chat(Call(messages=(Message(role=Role.USER, content="hi"),))))
    wait_until(lambda: gate.num_waiting == 1)
    server.end(session)
    with pytest.raises(CallFailed):
        pending.result(PATIENCE_S)
    assert (len(matcher.lost), matcher.recorded) == (1, [])
