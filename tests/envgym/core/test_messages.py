"""Messages are made of typed parts; plain text is the short way to write one part."""

import copy
import pickle
from dataclasses import dataclass, replace

import pytest

from envgym.chats.openai import messages_to_wire
from envgym.core.messages import Message, Part, Role, TextPart, ToolCall, text_of
from envgym.core.serialize import message_from_json, message_to_json
from envgym.errors import InvalidInput

CALL = ToolCall(name="look", arguments={"x": 1})


@dataclass(frozen=True, slots=True)
class Picture(Part):
    type = "image"
    data: bytes


MIXED = Message(role=Role.USER, parts=[TextPart("a "), Picture(b"x"), TextPart("cat")])


def test_plain_text_is_one_text_part_and_no_text_is_no_part() -> None:
    message = Message(role=Role.USER, content="hello")
    assert message.parts == (TextPart("hello"),)
    assert message == Message(role=Role.USER, parts=[TextPart("hello")])
    assert Message(role=Role.ASSISTANT, tool_calls=(CALL,)).parts == ()


def test_content_is_the_concatenation_of_the_text_parts() -> None:
    assert MIXED.content == "a cat"
    assert text_of(Message(role=Role.USER, parts=[TextPart("a "), TextPart("cat")])) == "a cat"


def test_content_follows_replaced_parts() -> None:
    changed = replace(MIXED, parts=(TextPart("dog"),), name="guide")
    assert (changed.content, changed.role, changed.name) == ("dog", Role.USER, "guide")


def test_content_and_parts_together_are_refused() -> None:
    with pytest.raises(InvalidInput, match="content must be empty where parts are given, got a "):
        Message(role=Role.USER, content="a", parts=[TextPart("b")])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message))])
def test_message_survives_copies(copied: object) -> None:
    assert callable(copied)
    message = Message(role=Role.ASSISTANT, content="yes", thinking="hm", tool_calls=(CALL,))
    assert copied(message) == message
    assert copied(message).content == "yes"


def test_json_holds_typed_parts() -> None:
    message = Message(role=Role.TOOL, parts=[TextPart("a"), TextPart("b")], tool_call_id="1", name="look")
    written = message_to_json(message)
    assert written["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert message_from_json(written) == message


def test_json_of_schema_version_1_is_read() -> None:
    assert message_from_json({"role": "user", "content": "hi"}) == Message(role=Role.USER, content="hi")


def test_a_part_that_cannot_be_rendered_sent_or_written_is_one_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"message part must be text for this model, got image \(user message\)"):
        text_of(MIXED)
    with pytest.raises(InvalidInput, match="message part must be text"):
        messages_to_wire([MIXED])
    with pytest.raises(InvalidInput, match="message part must be text"):
        message_to_json(MIXED)
    with pytest.raises(InvalidInput, match="message part must be of type text, got image"):
        message_from_json({"role": "user", "content": [{"type": "image", "data": "eA=="}]})
