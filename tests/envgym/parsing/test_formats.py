"""Laws that every text format keeps, and tool calls as many models write them."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, ToolCall
from envgym.errors import InvalidInput, UnknownName
from envgym.parsing import parse_action, text_format
from envgym.parsing.formats import TEXT_FORMAT
from envgym.tools import ToolSpec

MARKUP = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "```python\n", "```", "\n```\n", '<tool name="a">', "</tool>",
    '<arg name="x">', '<arg name="x" type="json">', "</arg>", "Thought:", "\nAction: a",
    "\nAction Input:", "Observation:",
    "\nFinal Answer:", '{"name": "a", "arguments": {"x": 1}}', '"', "{", "[", "\\", "\\ud800",
    "1e999", "NaN", "\n", " ",
]  # fmt: skip
hostile = st.lists(st.one_of(st.sampled_from(MARKUP), st.text(max_size=5)), max_size=30).map("".join)

NO_MARKUP = st.text(st.characters(exclude_characters="<>`:", codec="utf-8"), max_size=30).map(str.strip)
json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | hostile,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)


def calls_of(format_name: str) -> st.SearchStrategy[list[ToolCall]]:
    """Calls that the format can express: any JSON, except that code blocks hold code and plain text holds none."""
    if format_name == "plain":
        return st.just([])
    if format_name == "code_block":
        code = st.one_of(hostile, st.text())
        return st.lists(code.map(lambda text: ToolCall(name="python", arguments={"code": text})), max_size=3)
    keys = names if format_name == "xml_tags" else st.text(max_size=8)
    arguments = st.dictionaries(keys, json_values, max_size=3)
    return st.lists(st.builds(ToolCall, name=names, arguments=arguments), max_size=3)


@pytest.mark.parametrize("name", sorted(TEXT_FORMAT.table))
@given(data=st.data())
def test_reading_what_was_written_gives_the_action(name: str, data: st.DataObject) -> None:
    thinking = data.draw(st.none() | NO_MARKUP.filter(bool))
    action = Action(content=data.draw(NO_MARKUP), thinking=thinking, tool_calls=data.draw(calls_of(name)))
    text = text_format(name).write(action)
    back = parse_action(text, name)
    assert (back.content, back.thinking, back.tool_calls, back.malformed) == (
        action.content,
        action.thinking,
        action.tool_calls,
        (),
    )
    assert back == text


@pytest.mark.parametrize("name", sorted(TEXT_FORMAT.table))
@given(text=hostile)
def test_any_text_is_read_without_an_exception(name: str, text: str) -> None:
    action = parse_action(text, name)
    assert str(action) == text
    assert len(action.malformed) <= 9  # eight reasons, and one for the rest
    assert all(reason.endswith((".", "}", "ANSWER", ">")) and len(reason) < 500 for reason in action.malformed)


@pytest.mark.parametrize("name", sorted(TEXT_FORMAT.table))
@given(text=st.text(st.characters(exclude_characters="<`:")))
def test_text_without_markup_is_its_own_content(name: str, text: str) -> None:
    action = parse_action(text, name)
    assert (action.content, action.thinking, action.tool_calls, action.malformed) == (text, None, (), ())


@pytest.mark.parametrize("name", sorted(TEXT_FORMAT.table))
@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>", "<tool_call>{", '<tool_call>["', '<tool_call>{"a":"</tool_call>', "<tool_call>" + "[" * 70,
        '<tool_call>{"name":"a"} ', "<tool_call>```", "<function=a>", "<function=a><parameter=x>", "<|tool_call|>",
        "[TOOL_CALLS]", "[TOOL_CALLS]a[ARGS]{", "functools[{", "<answer>", "9",
        "<think>", "</think>", "```python\n", "``` `", "``", '<tool name="a">', '<tool name="a"><arg name="x">',
        '<arg name="x"></arg>', "<tool ", "Action:", "\nAction Input: {", "\nThought:", " ", "\n", "\\boxed{", "{", '"',
        '<tool_call>{"name":"a"}</tool_call>', "Action Input: ```\n   ",
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["", '<tool_call>{"name": "a", "arguments": {"x": ', "<think>"])
def test_a_megabyte_of_hostile_text_is_read_in_under_a_second(name: str, unit: str, prefix: str) -> None:
    text = prefix + (unit * (1_000_000 // len(unit))) + "`"

    def seconds() -> float:  # of this thread: a busy machine takes no CPU time from it
        start = time.thread_time()
        assert len(parse_action(text, name)) == len(text)
        return time.thread_time() - start

    assert any(seconds() < 1.0 for _ in range(3)), "quadratic work would take minutes"


@pytest.mark.parametrize("name", sorted(TEXT_FORMAT.table))
def test_calls_inside_unfinished_thinking_are_not_run(name: str) -> None:
    inside = text_format("hermes").write(Action(tool_calls=[ToolCall(name="a")]))
    action = parse_action(f"<think>I could say {inside} or ```python\n1\n```\n Action: a", name)
    assert (action.content, action.tool_calls) == ("", ())
    assert action.thinking is not None
    assert action.thinking.startswith("I could say")


@pytest.mark.parametrize("name", ["hermes", "xml_tags", "react"])
def test_a_call_that_is_only_considered_in_unfinished_thinking_is_a_reason(name: str) -> None:
    call = text_format(name).write(Action(tool_calls=[ToolCall(name="a", arguments={"x": 1})]))
    action = parse_action(f"<think>I could write\n{call}\nor wait", name)
    assert (action.content, action.tool_calls, len(action.malformed)) == ("", (), 1)
    assert "write </think> first" in action.malformed[0]
    assert parse_action("<think>I could call a tool, or wait", name).malformed == ()


@pytest.mark.parametrize("name", ["hermes", "xml_tags"])
def test_calls_that_end_unfinished_thinking_are_run(name: str) -> None:
    calls = [ToolCall(name="a", arguments={"x": 1}), ToolCall(name="b")]
    first, last = (text_format(name).write(Action(tool_calls=[call])) for call in calls)
    action = parse_action(f"<think>\nNot {first} but this:\n{first}\n{last}\n", name)
    assert (action.content, list(action.tool_calls), action.malformed) == ("", calls, ())
    assert action.thinking is not None
    assert action.thinking.endswith("but this:")


@pytest.mark.parametrize("name", sorted(TEXT_FORMAT.table))
def test_thinking_whose_opening_tag_stands_in_the_prompt_is_found(name: str) -> None:
    action = parse_action("six times seven\n</think>\n\n42", name)
    assert (action.thinking, action.content) == ("six times seven", "42")


def test_an_action_that_a_format_cannot_express_is_refused() -> None:
    call = ToolCall(name="a", arguments={"x": 1})
    for name in ("plain", "code_block"):
        with pytest.raises(InvalidInput, match="tool_calls of the action must survive being written and read"):
            text_format(name).write(Action(tool_calls=[call]))
    with pytest.raises(InvalidInput, match="content of the action"):
        text_format("hermes").write(Action("say <tool_call>"))


def test_an_unknown_format_lists_near_names() -> None:
    with pytest.raises(UnknownName, match="did you mean hermes"):
        parse_action("x", "herms")


@pytest.mark.parametrize("name", ["hermes", "xml_tags", "react"])
def test_instructions_show_each_tool_and_the_form(name: str) -> None:
    spec = ToolSpec(name="calculator", description="Compute.", parameters={"type": "object", "properties": {}})
    told = text_format(name).instructions([spec])
    assert '{"name": "calculator", "description": "Compute.", "parameters"' in told
    assert {"hermes": "<tool_call>", "xml_tags": '<tool name="TOOL">', "react": "Action Input:"}[name] in told


def test_without_tools_only_react_needs_instructions() -> None:
    assert [name for name in TEXT_FORMAT.table if text_format(name).instructions([])] == ["react"]


ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("tool_call_texts.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("row", ROWS, ids=[row["source"] for row in ROWS])
def test_a_call_of_a_known_model_family_is_run_or_answered_with_a_reason(row: dict[str, Any]) -> None:
    action = parse_action(row["text"])
    calls = [ToolCall(name=call["name"], arguments=call["arguments"]) for call in row.get("calls", ())]
    assert list(action.tool_calls) == calls
    reason = row.get("reason")
    assert bool(action.malformed) == (reason is not None), action.malformed
    if reason is not None:
        assert reason in action.malformed[0]
    if reason is None or row["content"] == row["text"]:
        assert action.content == row["content"]
    else:
        assert action.content.startswith(row["content"])
    assert action.thinking == row.get("thinking")
    assert str(action) == row["text"]


def test_at_least_fifty_texts_are_checked() -> None:
    assert len(ROWS) >= 50
    assert sum("calls" in row for row in ROWS) >= 30
