"""The host over HTTP with OpenAI's SDK: sessions, retries, programs that leave, parallel calls, limits, and errors."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import httpx
import httpx2
import openai
import pytest
from openai import OpenAI

from envgym.agents.protocols import GenerateRequest, Generation
from envgym.agents.rollout.programs import host as host_module
from envgym.agents.rollout.programs.calls import CallRefused, RefusalKind
from envgym.agents.rollout.programs.sessions import ProgramSession
from envgym.core.messages import Message, Role
from envgym.core.turns import Ending
from tests.support.env_server import wait_until
from tests.support.program_calls import (
    HI,
    PATIENCE_S,
    TLS,
    TOOLS,
    BrokenOnce,
    FakeMatcher,
    Gate,
    RunningHost,
    calling,
    last_text,
    post,
    running_host,
    say,
    sdk,
)


@pytest.fixture
def server() -> Iterator[RunningHost]:
    with running_host() as running:
        yield running


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_the_sdk_is_answered_in_the_form_that_it_requests(server: RunningHost) -> None:
    yes = Message(role=Role.ASSISTANT, content="yes")
    matcher = FakeMatcher(respond=lambda call: calling("add", {"a": "1"}) if call.tools else yes)
    session = server.begin(matcher)
    with sdk(server, session) as client:
        plain = client.chat.completions.create(model="any", messages=HI)
        assert (plain.choices[0].message.content, plain.choices[0].finish_reason, plain.model) == ("yes", "stop", "any")
        called = client.chat.completions.create(model="any", messages=HI, tools=TOOLS)
        assert called.choices[0].message.tool_calls is not None
        assert called.choices[0].message.tool_calls[0].to_dict() == {
            "id": "call_0",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a": "1"}'},
        }
        with client.chat.completions.create(model="any", messages=HI, stream=True) as events:
            assert "".join(event.choices[0].delta.content or "" for event in events) == "yes"
        with client.chat.completions.stream(model="any", messages=HI, tools=TOOLS) as stream:
            assert stream.get_final_completion().choices[0].message.tool_calls is not None
        assert [model.id for model in client.models.list()] == ["policy"]
        assert client.models.retrieve("policy").object == "model"
    wait_until(lambda: len(matcher.recorded) == 4)
    assert session.counts.delivered == 4, "the lists of models are no calls"


def test_a_session_is_named_by_its_path_or_its_key_and_the_path_comes_first(server: RunningHost) -> None:
    one, two = server.begin(first := FakeMatcher()), server.begin(second := FakeMatcher())
    root = server.host.http.url
    with httpx.Client(verify=TLS, trust_env=False, timeout=PATIENCE_S) as client:
        paths = [
            (f"/s/{one.secret}/v1/chat/completions", {}),
            (f"/s/{one.secret}/chat/completions", {}),
            (f"/s/{one.secret}/v1/chat/completions", {"Authorization": f"Bearer {two.secret}"}),
            (f"/s/{one.secret}/v1/v1/chat/completions/", {"x-api-key": two.secret}),
            ("/v1/chat/completions", {"Authorization": f"Bearer {two.secret}"}),
            ("/chat/completions", {"x-api-key": two.secret, "Authorization": "Bearer other"}),
        ]
        for path, headers in paths:
            assert client.post(root + path, json=say("x"), headers=headers).status_code == HTTPStatus.OK
        wait_until(lambda: (len(first.recorded), len(second.recorded)) == (4, 2))
        for path, headers in [
            ("/s/wrong/v1/chat/completions", {"Authorization": f"Bearer {two.secret}"}),
            ("/v1/chat/completions", {}),
            ("/v1/chat/completions", {"Authorization": "Bearer wrong"}),
            ("/v1/models", {}),
        ]:
            response = client.post(root + path, json=say("x"), headers=headers)
            assert response.status_code == HTTPStatus.UNAUTHORIZED
            assert response.json()["error"]["message"].startswith("API key or path must name a session, got another")
    assert (len(first.calls), len(second.calls)) == (4, 2)


def test_secrets_have_128_bits_and_differ(server: RunningHost) -> None:
    secrets = {server.begin(FakeMatcher()).secret for _ in range(20)}
    assert len(secrets) == 20
    assert {len(bytes.fromhex(secret)) for secret in secrets} == {16}


def test_64_programs_call_side_by_side(server: RunningHost) -> None:
    matchers = [FakeMatcher() for _ in range(64)]
    sessions = [server.begin(matcher) for matcher in matchers]

    def play(index: int) -> list[str]:
        texts = []
        with httpx.Client(
            verify=TLS, trust_env=False, timeout=PATIENCE_S, base_url=server.url(sessions[index])
        ) as client:
            for turn in range(3):
                data = client.post("/v1/chat/completions", json=say(f"{index}/{turn}")).json()
                texts.append(data["choices"][0]["message"]["content"])
        return texts

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(play, range(64))) == [[f"re: {index}/{turn}" for turn in range(3)] for index in range(64)]
    wait_until(lambda: all(len(matcher.recorded) == 3 for matcher in matchers))


def test_calls_after_the_end_of_a_session_get_409_and_are_not_repeated(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher())
    server.end(session)
    error_kind = openai.ConflictError
    with sdk(server, session, retries=3) as client, pytest.raises(error_kind, match="The episode is over") as error:
        client.chat.completions.create(model="m", messages=HI)
    assert error.value.response.headers["x-should-retry"] == "false"
    assert matcher.calls == []


def test_a_call_under_way_when_the_session_ends_gets_409_and_is_dropped(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher(), (gate := Gate()).generate)
    with ThreadPoolExecutor(1) as pool:
        response = pool.submit(post, server, session, say("x"))
        wait_until(lambda: gate.num_waiting == 1)
        server.end(session)
        assert response.result(PATIENCE_S).status_code == HTTPStatus.CONFLICT
    assert (len(matcher.lost), matcher.recorded, gate.num_cancelled) == (1, [], 1)


# ---- retries ---------------------------------------------------------------------------------------------------------


def test_an_identical_body_that_is_no_retry_is_another_call(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher())
    for headers in ({}, {}, {"x_stainless_retry_count": "0"}, {"idempotency_key": "a"}, {"idempotency_key": "b"}):
        assert post(server, session, say("x"), **headers).status_code == HTTPStatus.OK
    wait_until(lambda: len(matcher.recorded) == 5)
    assert session.counts.retries == 0


@pytest.mark.parametrize(
    "first, second",
    [({"idempotency_key": "a"}, {"idempotency_key": "a"}), ({}, {"x_stainless_retry_count": "1"})],
    ids=["key", "count"],
)
def test_a_retry_gets_the_same_reply_and_is_one_turn(
    server: RunningHost, first: dict[str, str], second: dict[str, str]
) -> None:
    session = server.begin(matcher := FakeMatcher())
    one, two = post(server, session, say("x"), **first), post(server, session, say("x"), **second)
    assert one.json() == two.json()
    other = post(server, session, say("y"), **second)
    assert other.json()["choices"] != one.json()["choices"], "another body is no retry"
    wait_until(lambda: len(matcher.recorded) == 2)
    assert (len(matcher.calls), session.counts.retries) == (2, 1)


def test_a_retry_of_a_call_under_way_waits_for_it(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher(), (gate := Gate()).generate)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, server, session, say("x"))
        wait_until(lambda: gate.num_waiting == 1)
        second = pool.submit(post, server, session, say("x"), x_stainless_retry_count="1")
        wait_until(lambda: session.counts.retries == 1)
        gate.open()
        assert first.result(PATIENCE_S).json() == second.result(PATIENCE_S).json()
    wait_until(lambda: len(matcher.recorded) == 1)
    assert (len(matcher.calls), matcher.lost) == (1, [])


@pytest.mark.parametrize("is_done", [False, True])
def test_a_program_that_gave_up_waiting_gets_the_reply_by_its_retry(server: RunningHost, *, is_done: bool) -> None:
    session = server.begin(matcher := FakeMatcher(), (gate := Gate()).generate)
    leave(server, session, say("x"), lambda: gate.num_waiting == 1)
    wait_until(lambda: not server.host.http.connections)
    if is_done:
        gate.open()
        wait_until(lambda: gate.num_waiting == 0)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, server, session, say("x"), x_stainless_retry_count="1")
        wait_until(lambda: session.counts.retries == 1)
        gate.open()
        assert answer.result(PATIENCE_S).json()["choices"][0]["message"]["content"] == "re: x"
    wait_until(lambda: len(matcher.recorded) == 1)
    assert (len(matcher.calls), matcher.lost) == (1, [])


def test_the_sdk_repeats_a_request_whose_connection_broke_and_it_is_one_turn(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher())
    transport = BrokenOnce(httpx2.HTTPTransport(verify=TLS))
    with httpx2.Client(transport=transport) as http:
        client = OpenAI(base_url=f"{server.url(session)}/v1", api_key="unused", max_retries=2, http_client=http)
        assert client.chat.completions.create(model="m", messages=HI).choices[0].message.content == "re: hi"
    wait_until(lambda: len(matcher.recorded) == 1)
    assert (len(matcher.calls), session.counts.retries) == (1, 1)


# ---- programs that leave ---------------------------------------------------------------------------------------------


def leave(server: RunningHost, session: ProgramSession, body: dict[str, Any], until: Any) -> None:
    """Send a request, and close the connection when `until` returns true."""
    content = json.dumps(body).encode()
    url = httpx.URL(server.url(session))
    with socket.create_connection(("127.0.0.1", url.port or 0), PATIENCE_S) as client:
        head = f"POST {url.path}/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        wait_until(until)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_reply_that_nobody_took_is_dropped_at_the_end(server: RunningHost, *, is_streamed: bool) -> None:
    session = server.begin(matcher := FakeMatcher(), (gate := Gate()).generate)
    leave(server, session, {**say("x"), "stream": is_streamed}, lambda: gate.num_waiting == 1)
    wait_until(lambda: not server.host.http.connections)
    gate.open()
    wait_until(lambda: gate.num_waiting == 0)
    assert post(server, session, say("y")).status_code == HTTPStatus.OK
    wait_until(lambda: len(matcher.recorded) == 1)
    server.end(session)
    assert [[last_text(call) for call in calls] for calls in (matcher.recorded, matcher.lost)] == [["y"], ["x"]]
    assert (session.counts.delivered, session.counts.dropped) == (1, 1)


def test_replies_that_nobody_took_do_not_use_up_the_turns(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher(turns=2), (gate := Gate()).generate)
    leave(server, session, say("x"), lambda: gate.num_waiting == 1)
    leave(server, session, say("y"), lambda: gate.num_waiting == 2)
    wait_until(lambda: not server.host.http.connections)
    assert "turns of the episode are used" in post(server, session, say("z")).text, "both are still under way"
    gate.open()
    wait_until(lambda: gate.num_waiting == 0)
    assert [post(server, session, say(text)).json()["choices"][0]["message"]["content"] for text in "ab"] == [
        "re: a",
        "re: b",
    ]
    assert sorted(last_text(call) for call in matcher.lost) == ["x", "y"]


def test_a_stream_shows_signs_of_life_and_ends_when_the_session_does(
    server: RunningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "KEEP_ALIVE_S", 0.01)
    session = server.begin(matcher := FakeMatcher(), (gate := Gate()).generate)
    with sdk(server, session) as client:
        with client.chat.completions.create(model="m", messages=HI, stream=True) as events:
            gate.open()
            assert "".join(event.choices[0].delta.content or "" for event in events) == "re: hi"
        wait_until(lambda: len(matcher.recorded) == 1)
        again = server.begin(other := FakeMatcher(), (closed := Gate()).generate)
        with sdk(server, again) as second:
            raw = second.chat.completions.with_streaming_response
            with raw.create(model="m", messages=HI, stream=True) as response:
                lines = response.iter_lines()
                assert next(lines) == ": keep-alive"
                wait_until(lambda: closed.num_waiting == 1)
                server.end(again)
                rest = [line for line in lines if line.startswith("data")]
    assert [json.loads(line.removeprefix("data: "))["error"]["type"] for line in rest] == ["invalid_request_error"]
    assert (len(other.lost), other.recorded) == (1, [])


# ---- parallel calls and limits ---------------------------------------------------------------------------------------


def test_calls_side_by_side_are_sampled_side_by_side(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher(), (gate := Gate()).generate)
    with ThreadPoolExecutor(8) as pool:
        responses = [pool.submit(post, server, session, say("x")) for _ in range(8)]
        wait_until(lambda: gate.num_waiting == 8)
        gate.open()
        assert {response.result(PATIENCE_S).status_code for response in responses} == {200}
    wait_until(lambda: len(matcher.recorded) == 8)


def test_a_flood_of_calls_samples_no_more_than_the_turns(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher(turns=4), (gate := Gate()).generate)
    with ThreadPoolExecutor(40) as pool:
        responses = [pool.submit(post, server, session, say("x")) for _ in range(40)]
        wait_until(lambda: gate.num_waiting == 4 and session.counts.beyond_limit == 36)
        gate.open()
        texts = [response.result(PATIENCE_S).json()["choices"][0]["message"]["content"] for response in responses]
    assert sorted(text == "re: x" for text in texts) == [False] * 36 + [True] * 4
    wait_until(lambda: len(matcher.recorded) == 4)
    assert len(matcher.calls) == 4


def test_calls_beyond_the_limit_get_a_polite_reply_that_is_not_recorded(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher(respond=lambda call: calling("add", {}), turns=8))
    with sdk(server, session) as client:
        replies = [client.chat.completions.create(model="m", messages=HI, tools=TOOLS) for _ in range(70)]
        with client.chat.completions.create(model="m", messages=HI, stream=True) as events:
            streamed = "".join(event.choices[0].delta.content or "" for event in events)
    last = replies[-1].choices[0]
    assert [bool(reply.choices[0].message.tool_calls) for reply in replies] == [True] * 8 + [False] * 62
    assert (last.finish_reason, last.message.content) == ("stop", streamed)
    assert streamed == "All 8 turns of the episode are used. Please finish now. Thank you."
    assert (len(matcher.recorded), session.counts.beyond_limit) == (8, 63)
    assert session.at_limit.is_set()


def test_a_full_context_is_an_error_that_agents_know(server: RunningHost) -> None:
    matcher = FakeMatcher(refusal=CallRefused(kind=RefusalKind.CONTEXT_FULL, reason="The conversation is too long."))
    session = server.begin(matcher)
    with sdk(server, session, retries=3) as client:
        for is_streamed in (False, True):
            with pytest.raises(openai.BadRequestError) as error:
                client.chat.completions.create(model="m", messages=HI, stream=is_streamed)
            assert (error.value.code, error.value.status_code) == ("context_length_exceeded", 400)


def test_a_policy_that_fails_is_a_503_that_is_not_repeated(server: RunningHost) -> None:
    async def fail(request: GenerateRequest) -> Generation:
        raise RuntimeError("out of memory")

    session = server.begin(matcher := FakeMatcher(), fail)
    with sdk(server, session, retries=3) as client:
        with pytest.raises(openai.InternalServerError, match="The model failed") as error:
            client.chat.completions.create(model="m", messages=HI)
        assert error.value.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        assert "retry-after" not in error.value.response.headers
        with pytest.raises(openai.ConflictError):
            client.chat.completions.create(model="m", messages=HI)
    assert [failure.ending for failure in matcher.failures] == [Ending.ERROR_POLICY]
    assert session.failed.is_set()
    assert (len(matcher.lost), matcher.recorded, len(matcher.calls)) == (1, [], 1)
