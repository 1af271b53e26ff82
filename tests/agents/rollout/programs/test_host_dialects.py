"""Responses and Anthropic's Messages over HTTP."""

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import openai
import pytest

from envgym.agents.rollout.programs.calls import CallRefused, RefusalKind
from envgym.agents.rollout.programs.dialects.chat import ChatDialect
from envgym.agents.rollout.programs.dialects.messages import MessagesDialect
from envgym.agents.rollout.programs.dialects.responses import ResponsesDialect
from tests.support.env_server import wait_until
from tests.support.program_calls import FakeMatcher, RunningHost, calling, last_text, post, running_host, sdk

RESPONSES, MESSAGES = ResponsesDialect(), MessagesDialect()
ITEM_TOOL: Any = {
    "type": "function",
    "name": "look_up",
    "description": "Find.",
    "parameters": {"type": "object", "properties": {"country": {"type": "string"}}},
    "strict": True,
}


@pytest.fixture
def server() -> Iterator[RunningHost]:
    with running_host([ChatDialect(), RESPONSES, MESSAGES]) as running:
        yield running


def test_the_sdk_names_earlier_responses_and_streams(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher())
    with sdk(server, session) as client:
        first = client.responses.create(model="m", input="one", instructions="Be brief.")
        second = client.responses.create(model="m", input="two", instructions="Be kind.", previous_response_id=first.id)
        with client.responses.create(model="m", input="three", previous_response_id=second.id, stream=True) as events:
            *_, last = events
        assert last.type == "response.completed"
        assert last.response.output_text == "re: three"
        with pytest.raises(openai.BadRequestError, match="previous_response_id must name a response of this session"):
            client.responses.create(model="m", input="x", previous_response_id="resp_other")
    wait_until(lambda: len(matcher.recorded) == 3)
    texts = [[message.content for message in call.messages] for call in matcher.calls]
    assert texts == [
        ["Be brief.", "one"],
        ["Be kind.", "one", "re: one", "two"],
        ["one", "re: one", "two", "re: two", "three"],
    ]


def test_the_sdk_reads_calls_of_a_streamed_response(server: RunningHost) -> None:
    session = server.begin(FakeMatcher(respond=lambda call: calling("look_up", {"country": "Norway"})))
    with sdk(server, session) as client, client.responses.stream(model="m", input="x", tools=[ITEM_TOOL]) as stream:
        (item,) = stream.get_final_response().output
    assert item.type == "function_call"
    assert (item.name, item.arguments, item.call_id) == ("look_up", '{"country": "Norway"}', "call_0")


def test_anthropic_requests_and_errors_have_its_form(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher())
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    assert post(server, session, body, "/v1/messages").json()["content"] == [{"type": "text", "text": "re: hi"}]
    streamed = post(server, session, {**body, "stream": True}, "/v1/messages")
    assert streamed.headers["content-type"] == "text/event-stream"
    assert streamed.text.startswith("event: message_start\ndata: ")
    wait_until(lambda: [last_text(call) for call in matcher.recorded] == ["hi", "hi"])
    wrong = post(server, session, {**body, "messages": []}, "/v1/messages")
    assert wrong.status_code == HTTPStatus.BAD_REQUEST
    assert (wrong.json()["type"], wrong.json()["error"]["type"]) == ("error", "invalid_request_error")
    matcher.refusal = CallRefused(kind=RefusalKind.CONTEXT_FULL, reason="No room.")
    full = post(server, session, body, "/v1/messages")
    assert (full.status_code, full.json()["error"]["message"]) == (400, "prompt is too long: No room.")
    server.end(session)
    late = post(server, session, body, "/v1/messages")
    assert (late.status_code, late.json()["error"]["type"]) == (409, "invalid_request_error")


def test_tokens_are_counted_without_a_turn(server: RunningHost) -> None:
    session = server.begin(matcher := FakeMatcher())
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    path = "/v1/messages/count_tokens"
    assert post(server, session, body, path).status_code == HTTPStatus.NOT_IMPLEMENTED
    session.count_tokens = lambda call: 10 + len(last_text(call))
    assert post(server, session, body, path).json() == {"input_tokens": 12}
    assert matcher.calls == []
