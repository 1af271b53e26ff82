"""XML tags: values, types and what is refused."""

import pytest

from envgym.core.json_types import JsonObject
from envgym.core.messages import ToolCall
from envgym.parsing import parse_action


def test_values_are_raw_text_and_json_where_declared() -> None:
    action = parse_action(
        'ok <tool name="run">\n<arg name="code">\nif a < b && c:\n  print("x")\n</arg>\n'
        '<arg name="n" type="json">3</arg><arg name="s">3</arg></tool>',
        "xml_tags",
    )
    arguments: JsonObject = {"code": 'if a < b && c:\n  print("x")', "n": 3, "s": "3"}
    assert action.tool_calls == (ToolCall(name="run", arguments=arguments),)
    assert action.content == "ok"


def test_other_tags_are_content() -> None:
    text = '<answer>42</answer> <tools>x</tools> <toolbox name="a">'
    assert parse_action(text, "xml_tags").content == text


@pytest.mark.parametrize(
    "text, reason",
    [
        ('<tool name="a">', "the tag </tool> is missing"),
        ('<tool name="a"><tool name="b"></tool>', "the tag </tool> is missing"),
        ("<tool ></tool>", 'the tag must be <tool name="TOOL">'),
        ('<tool name="a">6*7</tool>', "inside <tool> only <arg name=\"...\"> may stand, not '6*7'"),
        ('<tool name="a"><arg name="x">1</tool>', "the argument 'x' is not closed with </arg>"),
        ('<tool name="a"><arg name="x">1</arg><arg name="x">2</arg></tool>', "the argument 'x' is written twice"),
        ('<tool name="a"><arg name="x" type="json">{1}</arg></tool>', "Expecting property name"),
    ],
)
def test_a_call_that_cannot_be_read_is_malformed_with_the_reason(text: str, reason: str) -> None:
    action = parse_action(text, "xml_tags")
    assert len(action.malformed) == 1
    assert reason in action.malformed[0]
