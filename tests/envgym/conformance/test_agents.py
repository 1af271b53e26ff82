"""Random actions repeat and fit the tools; hostile ones cover every tool."""

from hypothesis import given
from hypothesis import strategies as st

from envgym.conformance.agents import (
    call_text,
    echo,
    hostile_actions,
    random_actions,
    random_agent,
    random_arguments,
    say,
)
from envgym.core.json_types import JsonObject
from envgym.env import MAX_ACTION_CHARS
from envgym.parsing import parse_action
from envgym.seeds import generator
from envgym.tools import ToolSpec
from tests.support.toys import Counter

TOOLS = tuple(item.spec for item in Counter().toolset().values())


@given(st.integers(0, 2**31))
def test_random_actions_repeat_for_a_seed(seed: int) -> None:
    first = list(random_actions(TOOLS, seed, 9))
    assert first == list(random_actions(TOOLS, seed, 9))
    agent = random_agent(TOOLS, seed)
    assert first == [agent(turn, "") for turn in range(9)]


def test_random_tool_calls_fit_the_schema() -> None:
    calls = [call for text in random_actions(TOOLS, 0, 200) for call in parse_action(text).tool_calls]
    assert len(calls) > 20
    assert {call.name for call in calls} == {"add"}
    assert all(type(call.arguments["amount"]) is int for call in calls)


def test_random_arguments_cover_the_types_of_json() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "number": {"type": "number"},
            "flag": {"type": "boolean"},
            "choice": {"enum": ["a", "b"]},
            "maybe": {"anyOf": [{"type": "null"}]},
            "several": {"type": "array", "items": {"type": "integer"}},
            "part": {"type": "object", "properties": {"inner": {"type": "string"}}},
        },
    }
    found = random_arguments(schema, generator("test"), "attack")
    assert found["text"] == "attack"
    assert found["part"] == {"inner": "attack"}
    assert (type(found["number"]), type(found["flag"]), found["maybe"]) == (float, bool, None)
    assert found["choice"] in ("a", "b")
    assert isinstance(found["several"], list)


def test_simple_agents() -> None:
    assert say("x")(3, "seen") == "x"
    assert echo(3, "seen") == "seen"


def test_hostile_actions_are_many_and_call_every_tool() -> None:
    tools = (*TOOLS, ToolSpec(name="other", description="", parameters={"type": "object", "properties": {}}))
    actions = list(hostile_actions(tools))
    assert len(actions) == len(set(actions)) or len(actions) > 70
    assert max(map(len, actions)) > MAX_ACTION_CHARS
    called = {call.name for text in actions if len(text) < 50_000 for call in parse_action(text).tool_calls}
    assert {"add", "other", "no_such_tool"} <= called
    assert parse_action(call_text("add", {"amount": 1})).tool_calls[0].name == "add"
