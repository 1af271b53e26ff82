"""Chat completions: bodies in the shapes that libraries send, responses that the SDK reads, and what is refused."""

import json
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from envgym.agents.rollout.programs.calls import CallReply, ReplyFinish
from envgym.agents.rollout.programs.dialects.base import CallRequest, ReplyIds
from envgym.agents.rollout.programs.dialects.chat import DONE, ChatDialect
from envgym.core.messages import Message, Role, ToolCall
from envgym.errors import InvalidInput

BODIES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("chat_bodies.json").read_text())
IDS = ReplyIds("0a", 1_700_000_000)
PLAIN = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
CHAT = ChatDialect()


def read(body: dict[str, Any], *, refuses: bool = False) -> CallRequest:
    return CHAT.read(body, refuses=refuses, transcripts={})


def reply(message: Message, finish: ReplyFinish = ReplyFinish.STOP) -> CallReply:
    return CallReply(
        message=message,
        finish=finish,
        prompt_tokens=7,
        completion_tokens=2,
        cached_tokens=3,
        token_strings=("O", "slo"),
        logprobs=(-0.5, -0.25),
    )


ROLES = {"s": Role.SYSTEM, "u": Role.USER, "a": Role.ASSISTANT, "t": Role.TOOL}


@pytest.mark.parametrize(
    "name, roles, num_tools, max_tokens, stop, ignored",
    [
        ("sdk: two messages", "su", 0, None, (), ()),
        ("sdk: sampling options", "su", 0, 64000, ("END",), ()),
        ("sdk: developer message", "ssu", 0, 5, ("END",), ()),
        ("sdk: tools", "su", 1, None, (), ()),
        ("sdk: result of a tool", "suat", 1, None, (), ()),
        ("sdk: stream", "su", 0, None, (), ()),
        ("sdk: content in parts", "u", 0, None, (), ()),
        ("sdk: message as the response dumps it", "uau", 0, None, (), ()),
        ("sdk: response format", "su", 0, None, (), ("response_format",)),
        ("sdk: named tool", "u", 1, None, (), ("tool_choice",)),
        ("sdk: tools that must not be called", "u", 0, None, (), ()),
        ("langchain: first turn", "u", 1, None, (), ()),
        ("langchain: second turn", "uat", 1, None, (), ()),
        ("langchain: stream with a stop string", "u", 0, None, ("\n\n",), ()),
        ("langchain: streamed agent", "u", 1, 100, (), ()),
        ("langchain: tools of no arguments", "uatt", 1, None, (), ()),
        ("agents: first turn", "su", 1, None, (), ()),
        ("agents: second turn", "suat", 1, None, (), ()),
        ("agents: stream", "su", 1, None, (), ()),
        ("agents: handoff", "su", 1, None, (), ()),
        ("agents: after the handoff", "suat", 0, None, (), ()),
        ("smolagents: tool agent", "su", 2, None, ("Observation:", "Calling tools:"), ("tool_choice",)),
        ("smolagents: second step", "suau", 2, None, ("Observation:", "Calling tools:"), ("tool_choice",)),
        ("smolagents: code agent", "su", 0, None, ("Observation:", "Calling tools:", "</code>"), ()),
        ("smolagents: streamed code agent", "su", 0, None, ("Observation:", "Calling tools:", "</code>"), ()),
    ],
)
def test_a_body_as_a_library_sends_it_is_a_call(
    name: str, roles: str, num_tools: int, max_tokens: int | None, stop: tuple[str, ...], ignored: tuple[str, ...]
) -> None:
    body = BODIES[name]
    request = read(body)
    call = request.call
    assert [message.role for message in call.messages] == [ROLES[role] for role in roles]
    assert (len(call.tools), call.max_tokens, call.stop) == (num_tools, max_tokens, stop)
    assert (request.model, request.ignored) == ("m", ignored)
    assert request.is_streamed == body.get("stream", False)
    assert request.has_usage == ("stream_options" in body)
    assert request.has_logprobs == body.get("logprobs", False)
    if ignored:
        with pytest.raises(InvalidInput, match=f"{ignored[0]} must not be set"):
            read(body, refuses=True)


def test_every_recorded_body_is_tested() -> None:
    assert len(BODIES) == 25


def test_libraries_write_one_conversation_alike() -> None:
    by_sdk, by_langchain, by_agents = (
        read(BODIES[name]).call.messages[-3:]
        for name in ("sdk: result of a tool", "langchain: second turn", "agents: second turn")
    )
    expected = (
        Message(role=Role.USER, content="What is the capital of Norway?"),
        Message(
            role=Role.ASSISTANT, tool_calls=(ToolCall(name="look_up", arguments={"country": "Norway"}, id="call_1"),)
        ),
        Message(role=Role.TOOL, content="Oslo", tool_call_id="call_1"),
    )
    assert by_sdk == by_langchain == by_agents == expected


@pytest.mark.parametrize(
    "more, sentence",
    [
        ({"messages": []}, "messages must be a list of at least one message, got []"),
        ({"messages": None}, "messages must be a list of at least one message, got None"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "role must be one of system, user, assistant, tool, "),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role must be one of system, user, assistant, tool, "),
        ({"messages": ["hi"]}, "message must be an object, got hi (messages[0]); correct the request."),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "content must hold parts of type text, got image_url (messages[0]); correct the request.",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "content must hold parts of type text, got input_audio",
        ),
        ({"n": 2}, "n must be 1, got 2 (request); correct the request."),
        ({"logit_bias": {"5": -100}}, "logit_bias must not be set, got {'5': -100} (request); leave it out."),
        ({"guided_json": {"type": "object"}}, "guided_json must not be set"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs must not be set"),
        ({"functions": [{"name": "f"}]}, "functions must not be set"),
        ({"ignore_eos": True}, "ignore_eos must not be set"),
        ({"top_logprobs": 5}, "top_logprobs must be 0: only the sampled tokens have log-probs, got 5"),
        ({"modalities": ["text", "audio"]}, "modalities must be text"),
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1, got 0"),
        ({"max_completion_tokens": -1}, "max_completion_tokens must be a whole number of at least 1, got -1"),
        ({"max_tokens": True}, "max_tokens must be a whole number of at least 1, got True"),
        ({"max_tokens": "9"}, "max_tokens must be a whole number"),
        ({"stop": [""]}, "stop must be texts that are not empty"),
        ({"stop": 3}, "stop must be texts that are not empty, got 3"),
        ({"stream": "yes"}, "stream must be true or false, got yes"),
        ({"model": 3}, "model must be text, got 3"),
        ({"tools": [{"type": "web_search"}]}, "name of a tool must be text, got None (request); correct the request."),
        ({"tools": [TOOL, TOOL]}, "tools must have different names"),
        ({"tools": "x"}, "tools must be JSON"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read({**PLAIN, **more})
    assert str(error.value).startswith(sentence)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0, "top_p": 0.1, "top_k": 1, "seed": 1, "presence_penalty": 2, "frequency_penalty": 2},
        {"store": True, "metadata": {}, "user": "u", "parallel_tool_calls": True, "service_tier": "auto"},
        {"tools": [], "tool_choice": "required"},
        {"tools": None, "tool_choice": {"type": "function", "function": {"name": "x"}}},
        {"logit_bias": {}, "functions": [], "ignore_eos": False, "stop": None, "n": None, "logprobs": False},
        {"response_format": {"type": "text"}, "modalities": ["text"], "top_logprobs": 0},
    ],
)
def test_what_does_not_matter_is_ignored(more: dict[str, Any]) -> None:
    assert read({**PLAIN, **more}, refuses=True).call == read(PLAIN).call


CALLS = (ToolCall(name="look_up", arguments={"a": 1}, id="call_0"), ToolCall(name="look_up", arguments={}, id="call_1"))


@pytest.mark.parametrize(
    "answer, content, finish_reason",
    [
        (reply(Message(role=Role.ASSISTANT, content="Oslo")), "Oslo", "stop"),
        (reply(Message(role=Role.ASSISTANT, content="Os"), ReplyFinish.LENGTH), "Os", "length"),
        (reply(Message(role=Role.ASSISTANT)), "", "stop"),
        (reply(Message(role=Role.ASSISTANT, tool_calls=CALLS), ReplyFinish.TOOL_CALLS), None, "tool_calls"),
        (
            reply(Message(role=Role.ASSISTANT, content="so", thinking="hm", tool_calls=CALLS), ReplyFinish.TOOL_CALLS),
            "so",
            "tool_calls",
        ),
    ],
)
def test_the_sdk_reads_a_response_and_its_stream_alike(
    answer: CallReply, content: str | None, finish_reason: str
) -> None:
    request = read({**PLAIN, "logprobs": True, "stream_options": {"include_usage": True}})
    completion = ChatCompletion.model_validate(CHAT.write(request, answer, IDS))
    choice = completion.choices[0]
    assert (completion.id, completion.created, completion.model) == ("chatcmpl-0a", 1_700_000_000, "m")
    assert (choice.message.content, choice.finish_reason) == (content, finish_reason)
    assert completion.usage is not None
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 2, 9)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 3
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [(item.token, item.logprob) for item in choice.logprobs.content] == [("O", -0.5), ("slo", -0.25)]

    events = list(CHAT.write_events(request, answer, IDS))
    assert events[-1] == DONE
    assert all(line.startswith(b"data: ") and line.endswith(b"\n\n") and line.count(b"\n") == 2 for line in events)
    chunks = [ChatCompletionChunk.model_validate_json(line.removeprefix(b"data: ")) for line in events[:-1]]
    assert {chunk.id for chunk in chunks} == {"chatcmpl-0a"}
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == (content or "")
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + [finish_reason]
    assert (chunks[-1].choices, chunks[-1].usage) == ([], usage)
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.index for call in calls] == list(range(len(calls)))
    expected = [] if choice.message.tool_calls is None else [call.to_dict() for call in choice.message.tool_calls]
    assert [{key: value for key, value in call.to_dict().items() if key != "index"} for call in calls] == expected


def test_what_was_not_requested_is_not_written() -> None:
    request = read(PLAIN)
    answer = reply(Message(role=Role.ASSISTANT, content="Oslo"))
    assert CHAT.write(request, answer, IDS)["choices"][0]["logprobs"] is None  # type: ignore[index,call-overload]  # JSON
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in list(CHAT.write_events(request, answer, IDS))[:-1]]
    assert not any("usage" in chunk for chunk in chunks)
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in chunks)
    without = CallReply(message=answer.message, finish=answer.finish, prompt_tokens=1, completion_tokens=1)
    request = read({**PLAIN, "logprobs": True})
    assert CHAT.write(request, without, IDS)["choices"][0]["logprobs"] is None  # type: ignore[index,call-overload]  # JSON


@given(
    content=st.text(max_size=20),
    thinking=st.one_of(st.none(), st.text(min_size=1, max_size=20)),
    arguments=st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)), max_size=3),
)
def test_a_reply_that_is_sent_back_is_the_same_message(
    content: str, thinking: str | None, arguments: list[dict[str, int | str]]
) -> None:
    calls = tuple(ToolCall(name="look_up", arguments=item, id=f"call_{index}") for index, item in enumerate(arguments))
    message = Message(role=Role.ASSISTANT, content=content, thinking=thinking, tool_calls=calls)
    request = read(PLAIN)
    body = json.loads(json.dumps(CHAT.write(request, reply(message), IDS)))
    sent = {**PLAIN, "messages": [*PLAIN["messages"], body["choices"][0]["message"]]}
    assert read(sent).call.messages[-1] == message


def test_errors_are_those_that_libraries_know() -> None:
    full = CHAT.write_error(HTTPStatus.BAD_REQUEST, "too long", is_context_full=True)
    assert full == {
        "error": {
            "message": "too long",
            "type": "invalid_request_error",
            "param": None,
            "code": "context_length_exceeded",
        }
    }
    other = CHAT.write_error(HTTPStatus.SERVICE_UNAVAILABLE, "broken", is_context_full=False)
    assert other == {"error": {"message": "broken", "type": "server_error", "param": None, "code": None}}
