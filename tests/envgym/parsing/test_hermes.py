"""Hermes: what is tolerated, and what is malformed with which reason."""

import pytest

from envgym.core.messages import ToolCall
from envgym.parsing import parse_action

SIX = ToolCall(name="calc", arguments={"e": "6*7"})


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "calc", "arguments": {"e": "6*7"}}</tool_call>',
        '<tool_call>\n{"name": "calc", "arguments": {"e": "6*7"}}\n</tool_call>',
        '<tool_call>```json\n{"name": "calc", "arguments": {"e": "6*7"}}\n```</tool_call>',
        '<tool_call>{"name": "calc", "parameters": {"e": "6*7"}}</tool_call>',
        '<tool_call>{"name": "calc", "arguments": "{\\"e\\": \\"6*7\\"}"}</tool_call>',
        '<tool_call>{"name": "calc", "arguments": {"e": "6*7"}}',  # the stop token cut the closing tag off
    ],
)
def test_the_one_reading_of_a_slip_is_taken(text: str) -> None:
    action = parse_action(text)
    assert (action.tool_calls, action.malformed, action.content) == ((SIX,), (), "")


def test_text_around_calls_is_content_and_calls_keep_their_order() -> None:
    call = '<tool_call>{"name": "%s"}</tool_call>'
    action = parse_action(f"<think>hm</think>First. {call % 'a'} Then. {call % 'b'}")
    assert action.thinking == "hm"
    assert action.content == "First.\nThen."
    assert [item.name for item in action.tool_calls] == ["a", "b"]


def test_a_closing_tag_inside_a_string_does_not_end_the_call() -> None:
    action = parse_action('<tool_call>{"name": "say", "arguments": {"t": "</tool_call>"}}</tool_call>after')
    assert action.tool_calls == (ToolCall(name="say", arguments={"t": "</tool_call>"}),)
    assert action.content == "after"


@pytest.mark.parametrize(
    "body, reason",
    [
        ("{'name': 'calc'}", "Expecting property name enclosed in double quotes at line 1, column 2"),
        ("calc(6*7)", "Expecting value at line 1, column 1"),
        ("[1]", "a call must be one JSON object"),
        ('{"tool": "calc"}', 'the key "name" must hold the name of a tool'),
        ('{"name": "calc", "e": "6*7"}', "the key 'e' must stand inside \"arguments\""),
        ('{"name": "calc", "arguments": [1]}', '"arguments" must hold a JSON object'),
        ('{"name": "calc", "arguments": {}, "parameters": {}}', "must not both be given"),
        ('{"name": "a", "name": "b"}', "the key 'name' is written twice"),
        ('{"name": "a", "arguments": {"x": NaN}}', "NaN is not JSON"),
        ('{"name": "a", "arguments": {"x": 1e400}}', "the number 1e400 is too large"),
        ('{"name": "a", "arguments": {"x": %s}}' % ("9" * 5000), "has 5000 digits"),
        ('{"name": "a", "arguments": {"x": "\\ud800"}}', "half of a surrogate pair"),
        ('{"name": "a", "arguments": {"x": ' + "[" * 70 + "]" * 70 + "}}", "the nesting is deeper than 64"),
        ('{"name": "a", "arguments": {"x": %s}}' % ("[" * 100_000), "nesting"),
        ('{"name": "a"} or so', "the JSON object must be followed by </tool_call>, not by 'or so"),
    ],
)  # fmt: skip
def test_a_call_that_has_no_one_reading_is_malformed_with_the_reason(body: str, reason: str) -> None:
    action = parse_action(f"hi <tool_call>{body}</tool_call> there")
    assert action.tool_calls == ()
    assert len(action.malformed) == 1
    assert reason in action.malformed[0]
    assert "Write it as <tool_call>" in action.malformed[0]
    assert action.content.startswith("hi")


def test_a_broken_call_does_not_take_the_next_one_with_it() -> None:
    action = parse_action('<tool_call>{"name": <tool_call>{"name": "a"}</tool_call>')
    assert action.tool_calls == (ToolCall(name="a"),)
    assert len(action.malformed) == 1


def test_many_broken_calls_give_eight_reasons_and_one_for_the_rest() -> None:
    action = parse_action("<tool_call>x</tool_call>" * 1000)
    assert len(action.malformed) == 9
    assert action.malformed[8] == "More calls could not be read."
