"""Responses and Anthropic's Messages: requests as libraries send them, responses, streams, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import Response

from envgym.agents.rollout.programs.calls import Call, CallReply, ReplyFinish
from envgym.agents.rollout.programs.dialects.base import CallDialect, ReplyIds
from envgym.agents.rollout.programs.dialects.chat import ChatDialect
from envgym.agents.rollout.programs.dialects.messages import MessagesDialect
from envgym.agents.rollout.programs.dialects.responses import ResponsesDialect
from envgym.core.messages import Message, Role, ToolCall
from envgym.errors import InvalidInput

RESPONSES, MESSAGES = ResponsesDialect(), MessagesDialect()
IDS = ReplyIds("0a", 1_700_000_000)
SCHEMA = {"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]}
ITEM_TOOL: Any = {"type": "function", "name": "look_up", "description": "Find.", "parameters": SCHEMA, "strict": True}
BLOCK_TOOL = {"name": "look_up", "description": "Find.", "input_schema": SCHEMA}
CALL = ToolCall(name="look_up", arguments={"country": "Norway"}, id="call_1")
SAY = {"messages": [{"role": "user", "content": "x"}]}
ASKED = (Message(role=Role.SYSTEM, content="Be brief."), Message(role=Role.USER, content="Capital?"))
CALLED = (
    *ASKED,
    Message(role=Role.ASSISTANT, tool_calls=(CALL,)),
    Message(role=Role.TOOL, content="Oslo", tool_call_id="call_1"),
)
REPLIES = [
    CallReply(message=message, finish=finish, prompt_tokens=7, completion_tokens=2, cached_tokens=3)
    for message, finish in (
        (Message(role=Role.ASSISTANT, content="Oslo"), ReplyFinish.STOP),
        (Message(role=Role.ASSISTANT, content="Os"), ReplyFinish.LENGTH),
        (Message(role=Role.ASSISTANT), ReplyFinish.STOP),
        (Message(role=Role.ASSISTANT, tool_calls=(CALL, CALL)), ReplyFinish.TOOL_CALLS),
        (Message(role=Role.ASSISTANT, content="so", thinking="hm", tool_calls=(CALL,)), ReplyFinish.TOOL_CALLS),
    )
]


def read(dialect: CallDialect, body: dict[str, Any], **transcripts: tuple[Message, ...]) -> Call:
    return dialect.read(body, refuses=False, transcripts=transcripts).call


def events_of(lines: Iterator[bytes] | Any) -> list[dict[str, Any]]:
    parts = [line.decode().split("\n", 1) for line in lines]
    events = [json.loads(rest.removeprefix("data: ")) for _, rest in parts]
    assert [name for name, _ in parts] == [f"event: {event['type']}" for event in events]
    return events


# ---- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, messages",
    [
        ({"input": "Capital?", "instructions": "Be brief."}, ASKED),
        ({"include": [], "input": [{"content": "Capital?", "role": "user"}], "instructions": "Be brief."}, ASKED),
        (
            {
                "input": [
                    {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Capital?"}]},
                ]
            },
            ASKED,
        ),
        (
            {
                "instructions": "Be brief.",
                "tools": [ITEM_TOOL],
                "input": [
                    {"content": "Capital?", "role": "user"},
                    {
                        "arguments": '{"country": "Norway"}',
                        "call_id": "call_1",
                        "name": "look_up",
                        "type": "function_call",
                        "id": "fc_1",
                        "status": "completed",
                    },
                    {"call_id": "call_1", "output": "Oslo", "type": "function_call_output"},
                ],
            },
            CALLED,
        ),
        (
            {"previous_response_id": "resp_1", "instructions": "Be brief.", "input": "Capital?"},
            (ASKED[0], Message(role=Role.USER, content="before"), ASKED[1]),
        ),
        ({"previous_response_id": "resp_1", "input": []}, (Message(role=Role.USER, content="before"),)),
    ],
)
def test_responses_are_read_as_messages(body: dict[str, Any], messages: tuple[Message, ...]) -> None:
    call = read(RESPONSES, {"model": "m", **body}, resp_1=(Message(role=Role.USER, content="before"),))
    assert call.messages == messages
    assert len(call.tools) == len(body.get("tools", []))


@pytest.mark.parametrize(
    "body, messages",
    [
        ({"system": "Be brief.", "messages": [{"role": "user", "content": "Capital?"}]}, ASKED),
        (
            {
                "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": "Capital?"}]}],
                "metadata": {"user_id": "u"},
            },
            ASKED,
        ),
        (
            {
                "system": "Be brief.",
                "tools": [BLOCK_TOOL],
                "tool_choice": {"type": "auto"},
                "messages": [
                    {"role": "user", "content": "Capital?"},
                    {
                        "role": "assistant",
                        "content": [
                            {"id": "call_1", "input": {"country": "Norway"}, "name": "look_up", "type": "tool_use"}
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "call_1", "content": "Oslo", "is_error": False}
                        ],
                    },
                ],
            },
            CALLED,
        ),
        (
            {
                "thinking": {"type": "enabled", "budget_tokens": 1024},
                "messages": [
                    {"role": "user", "content": "Hi"},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm", "signature": "x"},
                            {"type": "redacted_thinking", "data": "x"},
                            {"type": "text", "text": "Hello"},
                        ],
                    },
                ],
            },
            (
                Message(role=Role.USER, content="Hi"),
                Message(role=Role.ASSISTANT, content="Hello", thinking="hm"),
            ),
        ),
    ],
)
def test_anthropic_requests_are_read_as_messages(body: dict[str, Any], messages: tuple[Message, ...]) -> None:
    call = read(MESSAGES, {"model": "m", "max_tokens": 9, "stop_sequences": ["END"], **body})
    assert (call.messages, call.max_tokens, call.stop) == (messages, 9, ("END",))
    assert [tool.name for tool in call.tools] == [tool["name"] for tool in body.get("tools", [])]


def test_three_formats_write_one_conversation_alike() -> None:
    capital = {"role": "user", "content": "Capital?"}
    function = {"name": "look_up", "arguments": '{"country": "Norway"}'}
    use = {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {"country": "Norway"}}
    chat = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            capital,
            {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "function": function}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Oslo"},
        ],
        "tools": [{"type": "function", "function": {**ITEM_TOOL, "type": None}}],
    }
    items = {
        "instructions": "Be brief.",
        "tools": [ITEM_TOOL],
        "input": [
            capital,
            {"type": "function_call", "call_id": "call_1", **function},
            {"type": "function_call_output", "call_id": "call_1", "output": "Oslo"},
        ],
    }
    blocks = {
        "system": "Be brief.",
        "tools": [BLOCK_TOOL],
        "messages": [
            capital,
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "Oslo"}]},
        ],
    }
    assert read(ChatDialect(), chat) == read(RESPONSES, items) == read(MESSAGES, blocks)


@pytest.mark.parametrize(
    "dialect, body, sentence",
    [
        (RESPONSES, {}, "input must be a text or a list of at least one item"),
        (
            RESPONSES,
            {"input": "x", "conversation": "c"},
            "conversation must not be set, got c (request); ",
        ),
        (RESPONSES, {"input": "x", "background": True}, "background must not be set"),
        (RESPONSES, {"input": "x", "top_logprobs": 5}, "top_logprobs must not be set"),
        (RESPONSES, {"input": "x", "previous_response_id": "r"}, "previous_response_id must name a response of this"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "i"}]}, "type of an item must be a message, reasoning"),
        (
            RESPONSES,
            {"input": "x", "tools": [{"type": "web_search"}]},
            "name of a tool must be text, got None",
        ),
        (MESSAGES, {}, "messages must be a list of at least one message, got None"),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "content must hold blocks",
        ),
        (MESSAGES, {"messages": ["x"]}, "message must be an object, got x (messages[0]); correct the request."),
        (
            MESSAGES,
            {**SAY, "mcp_servers": [{}]},
            "mcp_servers must not be set",
        ),
        (
            MESSAGES,
            {**SAY, "tools": [{"type": "bash_20250124", "name": "bash"}]},
            "type of a tool must be custom, got bash_20250124 (request); correct the request.",
        ),
        (
            MESSAGES,
            {**SAY, "tool_choice": "any"},
            "tool_choice must be an obj",
        ),
        (
            MESSAGES,
            {**SAY, "max_tokens": 0},
            "max_tokens must be a whole numb",
        ),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(dialect: CallDialect, body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read(dialect, body)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    "dialect, body, ignored",
    [
        (RESPONSES, {"input": "x", "text": {"format": {"type": "json_schema"}}}, ("text.format",)),
        (RESPONSES, {"input": "x", "tools": [ITEM_TOOL], "tool_choice": "required"}, ("tool_choice",)),
        (RESPONSES, {"input": "x", "text": {"format": {"type": "text"}}, "tool_choice": "required"}, ()),
        (RESPONSES, {"input": "x", "store": False, "reasoning": {"effort": "low"}, "temperature": 0}, ()),
        (
            MESSAGES,
            {**SAY, "output_format": {"type": "json"}},
            ("output_format",),
        ),
        (
            MESSAGES,
            {**SAY, "tools": [BLOCK_TOOL], "tool_choice": {"type": "any"}},
            ("tool_choice",),
        ),
    ],
)
def test_options_without_effect_are_named(dialect: CallDialect, body: dict[str, Any], ignored: tuple[str, ...]) -> None:
    assert dialect.read(body, refuses=False, transcripts={}).ignored == ignored
    if ignored:
        with pytest.raises(InvalidInput, match=f"{ignored[0]} must not be set"):
            dialect.read(body, refuses=True, transcripts={})


def test_tools_that_must_not_be_called_are_not_shown() -> None:
    none = {"type": "none"}
    messages = [{"role": "user", "content": "x"}]
    assert read(RESPONSES, {"input": "x", "tools": [ITEM_TOOL], "tool_choice": "none"}).tools == ()
    assert read(MESSAGES, {"messages": messages, "tools": [BLOCK_TOOL], "tool_choice": none}).tools == ()


# ---- responses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", REPLIES)
def test_a_response_is_read_by_the_sdk_and_sent_back_as_the_same_message(reply: CallReply) -> None:
    request = RESPONSES.read({"model": "m", "input": "x"}, refuses=False, transcripts={})
    written = json.loads(json.dumps(RESPONSES.write(request, reply, IDS)))
    response = Response.model_validate(written)
    assert (response.id, response.created_at, response.output_text) == ("resp_0a", IDS.created, reply.message.content)
    is_cut = reply.finish is ReplyFinish.LENGTH
    assert response.status == ("incomplete" if is_cut else "completed")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (7, 2, 9)
    assert response.usage.input_tokens_details.cached_tokens == 3
    ids = [item.id for item in response.output]
    assert len(set(ids)) == len(ids)
    again = read(RESPONSES, {"input": [{"role": "user", "content": "x"}, *written["output"]]})
    assert again.messages[1:] == (reply.message,)

    events = events_of(RESPONSES.write_events(request, reply, IDS))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == ("response.incomplete" if is_cut else "response.completed")
    assert events[-1]["response"] == written
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == written["output"]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == reply.message.content


@pytest.mark.parametrize("reply", REPLIES)
def test_an_anthropic_response_is_sent_back_as_the_same_message(reply: CallReply) -> None:
    request = MESSAGES.read({"messages": [{"role": "user", "content": "x"}]}, refuses=False, transcripts={})
    written = json.loads(json.dumps(MESSAGES.write(request, reply, IDS)))
    assert (written["id"], written["type"], written["role"]) == ("msg_0a", "message", "assistant")
    names = {ReplyFinish.STOP: "end_turn", ReplyFinish.LENGTH: "max_tokens", ReplyFinish.TOOL_CALLS: "tool_use"}
    assert written["stop_reason"] == names[reply.finish]
    assert (written["usage"]["input_tokens"], written["usage"]["cache_read_input_tokens"]) == (4, 3)
    sent = {"role": written["role"], "content": written["content"]}
    assert read(MESSAGES, {"messages": [sent]}).messages == (reply.message,)

    events = events_of(MESSAGES.write_events(request, reply, IDS))
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    for event in events:
        if event["type"] == "content_block_delta":
            delta, block = dict(event["delta"]), blocks[event["index"]]
            if delta.pop("type") == "input_json_delta":
                delta = {"input": json.loads(delta["partial_json"])}
            block.update(delta)
    assert blocks == written["content"]
    assert [event["type"] for event in (events[0], events[-2], events[-1])] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    assert events[-2]["delta"]["stop_reason"] == written["stop_reason"]
    assert events[-2]["usage"]["output_tokens"] == 2
