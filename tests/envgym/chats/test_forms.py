"""The law of every form: reading a written message gives an equal one, or the form refuses to write it."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.chats.anthropic import read_anthropic, write_anthropic
from envgym.chats.openai import listed_tools, read_openai, read_tools, write_openai
from envgym.chats.responses import read_items, write_items
from envgym.chats.sharegpt import read_sharegpt, write_sharegpt
from envgym.core.json_types import JsonValue
from envgym.core.messages import Message, Part, Role, TextPart, ToolCall
from envgym.errors import InvalidInput
from envgym.tools import ToolSpec

TEXTS = st.text(max_size=8) | st.sampled_from(
    ["<tool_call>", "</tool_call>", "<think>a</think>b", "<tool_response>x</tool_response>", '{"name": "f"}', " a\n"]
)
NAMES = st.text("abz_", min_size=1, max_size=4)
JSON: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
CALLS = st.builds(
    ToolCall, name=NAMES, arguments=st.dictionaries(NAMES, JSON, max_size=3), id=st.none() | st.text(max_size=3)
)
ONE_PART = TEXTS.map(lambda text: (TextPart(text),) if text else ())
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(Role),
    parts=ONE_PART | ONE_PART | st.lists(TEXTS.map(TextPart), max_size=2).map(tuple),
    thinking=st.none() | TEXTS,
    tool_calls=st.lists(CALLS, max_size=2).map(tuple),
    tool_call_id=st.none() | TEXTS,
    name=st.none() | NAMES | st.just("guide"),
    is_error=st.booleans(),
)
SPECS = st.builds(
    ToolSpec,
    name=NAMES,
    description=TEXTS,
    parameters=st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(NAMES, st.just({}))}),
)
OPENAI: tuple[Any, Any] = (write_openai, lambda data: (read_openai(data, where="here"),))
SHAREGPT: tuple[Any, Any] = (write_sharegpt, lambda data: read_sharegpt(data, where="here"))
RESPONSES: tuple[Any, Any] = (write_items, lambda data: read_items(data, where="here"))
ANTHROPIC: tuple[Any, Any] = (write_anthropic, lambda data: read_anthropic(data, where="here"))
ALL = [OPENAI, SHAREGPT, RESPONSES, ANTHROPIC]
FORMS = pytest.mark.parametrize("write, read", ALL, ids=["openai", "sharegpt", "responses", "anthropic"])
Write = Callable[[Message], Any]
Read = Callable[[object], tuple[Message, ...]]
CALL = ToolCall(name="f", arguments={"x": [1, None, "</tool_call>"]})


@FORMS
@given(message=MESSAGES)
def test_reading_what_was_written_gives_the_message(write: Write, read: Read, message: Message) -> None:
    data: Any = None
    with suppress(InvalidInput):
        data = write(message)
    assert data is None or read(json.loads(json.dumps(data))) == (message,)


@FORMS
@pytest.mark.parametrize(
    "message",
    [
        Message(role=Role.SYSTEM, content="s"),
        Message(role=Role.USER, content="u\n"),
        Message(role=Role.ASSISTANT, content="a"),
        Message(role=Role.ASSISTANT, thinking="t", content="a"),
        Message(role=Role.ASSISTANT, tool_calls=(CALL,)),
        Message(role=Role.ASSISTANT, tool_calls=(CALL, ToolCall(name="g"))),
        Message(role=Role.ASSISTANT, thinking="t", content="a", tool_calls=(CALL, CALL)),
        Message(role=Role.TOOL, content='{"r": 1}'),
    ],
)
def test_messages_that_a_form_holds(write: Write, read: Read, message: Message) -> None:
    assert read(write(message)) == (message,)


def test_openai_holds_ids_and_names_and_several_parts() -> None:
    call = ToolCall(name="f", arguments={}, id="c1")
    for message in (
        Message(role=Role.ASSISTANT, tool_calls=(call,)),
        Message(role=Role.TOOL, content="r", tool_call_id="c1", name="f"),
        Message(role=Role.USER, parts=[TextPart("a"), TextPart("b")]),
        Message(role=Role.USER, content="a hint", name="guide"),
    ):
        assert read_openai(write_openai(message), where="here") == message


class ImagePart(Part):
    """A part that is no text."""

    type = "image"


@FORMS
@pytest.mark.parametrize(
    "message, reason",
    [
        (Message(role=Role.USER, parts=[ImagePart()]), "message part must be text, got image"),
        (Message(role=Role.USER, content="a", thinking="t"), "thinking of the user message must be one that"),
    ],
)
def test_what_no_form_holds_is_refused(write: Write, read: Read, message: Message, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        write(message)


@pytest.mark.parametrize("write", [write_openai, write_sharegpt, write_items])
def test_an_error_of_a_tool_is_held_by_one_form_only(write: Write) -> None:
    message = Message(role=Role.TOOL, content="r", is_error=True)
    assert read_anthropic(write_anthropic(message), where="here") == (message,)
    with pytest.raises(InvalidInput, match="is_error of the tool message must be one that the form can hold"):
        write(message)


def test_items_of_one_turn_are_one_message() -> None:
    call: dict[str, Any] = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    text: dict[str, Any] = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    thought: dict[str, Any] = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "t"}]}
    result = {"type": "function_call_output", "call_id": "c1", "output": "r"}
    turns = read_items(
        [{"role": "user", "content": "u"}, thought, text, call, call, result, text, text, call, thought, call],
        where="here",
    )
    assert [(message.role.value, len(message.tool_calls)) for message in turns] == [
        ("user", 0),
        ("assistant", 2),
        ("tool", 0),
        ("assistant", 0),
        ("assistant", 1),
        ("assistant", 1),
    ]
    assert [message.thinking for message in turns] == [None, "t", None, None, None, "t"]
    assert read_items("u", where="here") == turns[:1]


def test_an_entry_of_results_and_text_is_several_messages() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
        {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "two"}], "is_error": True},
        {"type": "tool_result", "tool_use_id": "c3"},
        {"type": "text", "text": "go on"},
    ]
    assert read_anthropic({"role": "user", "content": blocks}, where="here") == (
        Message(role=Role.TOOL, content="one", tool_call_id="c1"),
        Message(role=Role.TOOL, content="two", tool_call_id="c2", is_error=True),
        Message(role=Role.TOOL, tool_call_id="c3"),
        Message(role=Role.USER, content="go on"),
    )


@pytest.mark.parametrize(
    "read, data, reason",
    [
        (
            read_items,
            [{"type": "item_reference", "id": "x"}],
            "type of an item must be a message, reasoning",
        ),
        (read_items, [{"role": ["user"], "content": "x"}], "role must be one of system, user, assistant, developer"),
        (read_items, [{"role": "tool", "content": "x"}], "role must be one of system, user, assistant, developer"),
        (read_items, 5, "input must be a list"),
        (
            read_items,
            [{"role": "user", "content": [{"type": "input_image"}]}],
            "content must hold parts of type",
        ),
        (read_items, [{"type": "function_call", "name": "f", "arguments": "x"}], "arguments of f must be JSON"),
        (read_anthropic, {"role": ["user"]}, "role must be one of system, user, assistant, got"),
        (read_anthropic, {"role": "tool"}, "role must be one of system, user, assistant, got tool"),
        (
            read_anthropic,
            {"role": "user", "content": [{"type": "image"}]},
            "content must hold blocks of type",
        ),
        (read_anthropic, {"role": "user", "content": 5}, "content must be text or a list of blocks, got 5"),
        (read_anthropic, {"role": "assistant", "content": [{"type": "tool_use"}]}, "name of a tool call must be text"),
    ],
)
def test_what_no_item_or_block_is_is_refused(read: Any, data: object, reason: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read(data, where="here")
    assert str(error.value).startswith(reason)


@pytest.mark.parametrize(
    "message, part",
    [
        (Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="f", id="c1"),)), "tool_calls"),
        (Message(role=Role.TOOL, content="r", tool_call_id="c1"), "tool_call_id"),
        (Message(role=Role.TOOL, content="r", name="f"), "name"),
        (Message(role=Role.ASSISTANT, content="<think>a</think>b"), "parts"),
    ],
)
def test_what_sharegpt_does_not_hold_is_refused(message: Message, part: str) -> None:
    with pytest.raises(InvalidInput, match=f"{part} of the {message.role} message must be one that the form can hold"):
        write_sharegpt(message)


@given(st.lists(SPECS, max_size=3, unique_by=lambda spec: spec.name).map(tuple))
def test_reading_written_tools_gives_the_tools(tools: tuple[ToolSpec, ...]) -> None:
    written = listed_tools(tools)
    assert read_tools(written, where="here") == tools
    assert read_tools(json.dumps(written), where="here") == tools
    assert read_tools([item["function"] for item in written], where="here") == tools


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="tools must have different names, got f"):
        read_tools([{"name": "f"}, {"name": "f"}], where="here")
