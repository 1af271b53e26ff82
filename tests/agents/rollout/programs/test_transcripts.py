"""Identity of messages, and errors in every wire format."""

import json
from http import HTTPStatus
from typing import Any

import pytest

from envgym.agents.rollout.programs.dialects.base import CallDialect, reading
from envgym.agents.rollout.programs.dialects.chat import ChatDialect
from envgym.agents.rollout.programs.dialects.messages import MessagesDialect
from envgym.agents.rollout.programs.dialects.responses import ResponsesDialect
from envgym.agents.rollout.programs.replies import show
from envgym.agents.rollout.programs.transcripts import Transcripts
from envgym.chats.openai import read_tools
from envgym.core.messages import Message, Role, ToolCall
from envgym.errors import InvalidInput


def called(**arguments: Any) -> Message:
    return Message(role=Role.ASSISTANT, content="", tool_calls=(ToolCall(name="look", arguments=arguments),))


@pytest.mark.parametrize(
    "ours, theirs, is_same",
    [
        (called(x=1, y=None), called(x=1), True),
        (called(x={"a": [1.0, None], "b": None}), called(x={"a": [1, None]}), True),
        (called(x=2.0), called(x=2), True),
        (called(x=1e300), called(x=1e300), True),
        (called(x=1.5), called(x=1), False),
        (called(x=[None]), called(x=[]), False),
        (called(x=True), called(x=1), False),
        (called(x="1"), called(x=1), False),
    ],
)
def test_arguments_are_the_same_in_every_form_of_clients(ours: Message, theirs: Message, is_same: bool) -> None:
    transcripts = Transcripts[int]()
    assert (transcripts.identity(ours) == transcripts.identity(theirs)) is is_same


def test_messages_that_differ_in_arguments_are_told_apart_in_the_log() -> None:
    assert show(called(x=1)) == """'' with calls of look {"x": 1}"""


@pytest.mark.parametrize("dialect", [ChatDialect(), ResponsesDialect(), MessagesDialect()])
def test_a_full_context_has_its_code_in_a_response_that_has_begun(dialect: CallDialect) -> None:
    def sent(*, is_full: bool) -> str:
        text = dialect.write_error_event(HTTPStatus.BAD_REQUEST, "No room.", is_context_full=is_full).decode()
        return json.dumps(json.loads(text.partition("data: ")[2]))

    marks = ("context_length_exceeded", "prompt is too long")
    assert any(mark in sent(is_full=True) for mark in marks)
    assert not any(mark in sent(is_full=False) for mark in marks)


def test_a_schema_beyond_the_limit_of_nesting_is_refused() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(5000):
        schema = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with pytest.raises(InvalidInput):
        reading(read_tools, [tool], where="request")
