"""The endpoint policy against a real HTTP server on this machine that misbehaves as it is told to."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from envgym.agents.policies.openai import OpenAIPolicy
from envgym.agents.protocols import FinishReason, Sampling
from envgym.agents.rollout.messages import MessageReply, MessageRequest
from envgym.agents.settings import EndpointSettings
from envgym.core.messages import Message, Role, ToolCall
from envgym.errors import InvalidInput, PolicyFailure
from envgym.tools import ToolSpec
from tests.agents.policies.fake_server import HANG, Json, Pauses, Server

T = TypeVar("T")


def says(content: str | None, finish_reason: str = "stop", **message: Any) -> Json:  # further fields of the message
    return {
        "choices": [{"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}},
    }


def ask(
    server: Server,
    use: Callable[[OpenAIPolicy], Awaitable[T]],
    pauses: Pauses | None = None,
    **settings: Any,  # of EndpointSettings
) -> T:
    async def go() -> T:
        merged = EndpointSettings.model_validate({"base_url": server.url, "model": "m", **settings})
        async with OpenAIPolicy(merged, sleep=pauses or Pauses(), jitter=lambda: 0.5) as policy:
            return await use(policy)

    return asyncio.run(go())


HELLO = MessageRequest(
    messages=(Message(role=Role.USER, content="hello"),), tools=(), sampling=Sampling(max_new_tokens=9), seed=2**40 + 5
)


def hello(policy: OpenAIPolicy) -> Awaitable[MessageReply]:
    return policy.reply(HELLO)


# ---- what is said on the wire ---------------------------------------------------------------------------------------


def test_a_reply_is_read_with_its_costs(server: Server) -> None:
    server.script = [says("hi", reasoning_content="thought")]
    reply = ask(server, hello)
    assert (reply.action, reply.action.thinking) == ("hi", "thought")
    assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (20, 16, 3)
    assert reply.finish_reason is FinishReason.STOP
    assert server.paths == ["/v1/chat/completions"]
    assert server.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 9,
            "temperature": 1.0,
            "seed": 5,  # the low 31 bits
        }
    ]


def test_fields_can_be_renamed_added_and_left_out(server: Server) -> None:
    server.script = [says("hi")]
    extra: Json = {"max_tokens_field": "max_completion_tokens", "extra_body": {"temperature": 1}, "omit": ["seed"]}
    ask(server, hello, **extra)
    assert set(server.bodies[0]) == {"model", "messages", "max_completion_tokens", "temperature"}


def test_the_key_comes_from_the_environment_and_is_never_in_the_settings(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script = [says("hi")]
    monkeypatch.setenv("SOME_KEY", "secret")
    ask(server, hello, api_key_env="SOME_KEY")
    assert server.headers[0]["Authorization"] == "Bearer secret"
    monkeypatch.delenv("SOME_KEY")
    with pytest.raises(InvalidInput, match="environment variable must hold a key, got SOME_KEY"):
        ask(server, hello, api_key_env="SOME_KEY")


LOOK = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})


def test_tools_and_their_results_travel_in_the_protocols_own_form(server: Server) -> None:
    server.script = [says("bye")]
    call = ToolCall(name="look", arguments={"at": "ü"}, id="c1")
    messages = (
        Message(role=Role.SYSTEM, content="S"),
        Message(role=Role.USER, content="Q"),
        Message(role=Role.ASSISTANT, content="", tool_calls=(call,)),
        Message(role=Role.TOOL, content="a cat", tool_call_id="c1", name="look"),
        Message(role=Role.TOOL, content="one call could not be read"),
    )
    ask(
        server,
        lambda policy: policy.reply(MessageRequest(messages=messages, tools=(LOOK,), sampling=Sampling(), seed=0)),
    )
    (body,) = server.bodies
    function = {"name": "look", "arguments": '{"at": "ü"}'}
    assert body["messages"][2:] == [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "content": "a cat", "tool_call_id": "c1"},
        {"role": "user", "content": "one call could not be read"},
    ]
    assert body["tools"][0]["function"]["name"] == "look"


def test_calls_are_read_and_one_that_cannot_be_read_is_a_reason(server: Server) -> None:
    good = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "cat"}'}}
    bad = {"id": "c2", "type": "function", "function": {"name": "look", "arguments": '{"at": '}}
    server.script = [says(None, "tool_calls", tool_calls=[good, bad])]
    action = ask(server, hello).action
    assert action.tool_calls == (ToolCall(name="look", arguments={"at": "cat"}, id="c1"),)
    assert len(action.malformed) == 1
    assert "The arguments of a call of look could not be read" in action.malformed[0]
    assert action.content == 'look({"at": )', "so that the model sees in later turns what it did wrong"


def test_a_reply_cut_by_its_limit_says_so(server: Server) -> None:
    server.script = [says("hal", "length")]
    assert ask(server, hello).finish_reason is FinishReason.LENGTH


# ---- an endpoint that misbehaves ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [
        (429, {"error": {"message": "slow down"}}, {}),
        (500, "internal error", {}),
        (503, "", {}),
        "{not json",
        {"choices": []},
        {"no": "choices"},
    ],
    ids=["429", "500", "503", "malformed JSON", "no choice", "another protocol"],
)
def test_what_may_pass_is_tried_again(server: Server, trouble: object) -> None:
    server.script = [trouble, trouble, says("hi")]
    pauses = Pauses()
    assert ask(server, hello, pauses, backoff_s=1.0).action == "hi"
    # 1 s and 2 s, each shortened by half of the jitter 0.5.
    assert pauses.seen == [0.75, 1.5]


def test_an_answer_that_does_not_come_in_time_is_tried_again(server: Server) -> None:
    server.script = [HANG, says("hi")]
    assert ask(server, hello, timeout_s=0.3).action == "hi"


def test_a_server_that_is_gone_is_a_failure_with_the_reason(server: Server) -> None:
    with pytest.raises(PolicyFailure, match=r"did not answer in 3 attempts; the last error: ConnectError"):
        ask(server, hello, base_url="http://127.0.0.1:9/v1", max_retries=2)


def test_attempts_end(server: Server) -> None:
    server.script = [(500, {"error": {"message": "broken"}}, {})]
    pauses = Pauses()
    with pytest.raises(PolicyFailure, match="in 4 attempts; the last error: 500 broken"):
        ask(server, hello, pauses, max_retries=3, backoff_s=8.0, max_backoff_s=20.0)
    assert pauses.seen == [6.0, 12.0, 15.0]  # 8, 16 and 20 (not 32), less a quarter


def test_the_endpoints_own_pause_is_kept_up_to_the_longest(server: Server) -> None:
    server.script = [(429, {}, {"Retry-After": "7"}), (429, {}, {"Retry-After": "900"}), says("hi")]
    pauses = Pauses()
    ask(server, hello, pauses, max_backoff_s=30.0)
    assert pauses.seen == [7.0, 30.0]


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_what_will_not_pass_fails_at_once(server: Server, status: int) -> None:
    server.script = [(status, {"error": {"message": "no such model"}}, {})]
    with pytest.raises(PolicyFailure, match=f"refused the request: {status} no such model"):
        ask(server, hello)
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "message": "too long"},
        {"message": "This model's maximum context length is 4096 tokens."},
    ],
)
def test_a_conversation_that_is_too_long_is_no_failure(server: Server, error: Json) -> None:
    server.script = [(400, {"error": error}, {})]
    reply = ask(server, hello)
    assert reply.context_is_full
    assert reply.action == ""


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_no_more_requests_than_allowed_are_under_way(server: Server) -> None:
    server.script = [says("hi")]

    async def twelve(policy: OpenAIPolicy) -> list[MessageReply]:
        return list(await asyncio.gather(*[policy.reply(HELLO) for _ in range(12)]))

    assert len(ask(server, twelve, max_concurrency=3)) == 12
    assert server.most <= 3


def test_requests_are_spaced_to_keep_the_rate(server: Server) -> None:
    server.script = [says("hi")]
    pauses = Pauses()

    async def four(policy: OpenAIPolicy) -> list[MessageReply]:
        return list(await asyncio.gather(*[policy.reply(HELLO) for _ in range(4)]))

    ask(server, four, pauses, requests_per_minute=6.0)
    # One every 10 s; the first at once. Time itself passes between them, but less than a second.
    assert [round(pause, -1) for pause in sorted(pauses.seen)] == [10.0, 20.0, 30.0]
