"""ReAct: labels, inventions and contradictions."""

import pytest

from envgym.core.messages import ToolCall
from envgym.parsing import parse_action


def test_an_action_with_its_input_is_a_call_and_the_thought_is_thinking() -> None:
    action = parse_action('Thought: multiply\nAction: calc\nAction Input: ```json\n{"e": "6*7"}\n```', "react")
    assert action.thinking == "multiply"
    assert action.tool_calls == (ToolCall(name="calc", arguments={"e": "6*7"}),)
    assert action.content == ""


def test_an_action_without_input_has_no_arguments() -> None:
    assert parse_action("Action: look", "react").tool_calls == (ToolCall(name="look"),)


def test_what_the_model_invents_behind_observation_is_left_out() -> None:
    text = "Action: calc\nAction Input: {}\nObservation: 42\nThought: done\nFinal Answer: 42"
    action = parse_action(text, "react")
    assert (len(action.tool_calls), action.content, action.malformed) == (1, "", ())


def test_a_final_answer_takes_all_that_follows() -> None:
    action = parse_action("Thought: easy\nFinal Answer: 42\nAction: none", "react")
    assert (action.thinking, action.content, action.tool_calls) == ("easy", "42\nAction: none", ())


@pytest.mark.parametrize(
    "text, reason",
    [
        ("Thought: hm", "Go on after the thought"),
        ("Action: a\nFinal Answer: 42", "Write either an Action or a Final Answer, not both; nothing was run."),
        ("Action Input: {}", "An Action Input must follow its Action."),
        ("Action:\nAction Input: {}", "Action must hold the name of one tool, on one line"),
        ("Action: a\nAction Input: 6*7", "there is text after the JSON value: '*7'"),
        ("Action: a\nAction Input: six", "Expecting value at line 1, column 1"),
    ],
)
def test_a_message_that_cannot_be_followed_is_malformed_with_the_reason(text: str, reason: str) -> None:
    action = parse_action(text, "react")
    assert len(action.malformed) == 1
    assert reason in action.malformed[0]
    assert action.tool_calls == ()
