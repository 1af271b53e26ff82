"""Actions, observations and addresses of OpenEnv, as text."""

from typing import Any

import pytest

from envgym.connect.openenv_client import ActForm, Address, TextForm, ToolForm, action_form
from envgym.connect.openenv_env import observation_text

TEXT = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "metadata": {"type": "object"}},
    "required": ["message"],
}


def test_actions_are_written_as_their_schema_says() -> None:
    metadata = {"type": "object"}  # as the servers of openenv 0.10.0 describe it
    call = {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}, "arguments": {}, "metadata": metadata}
    assert action_form({"properties": call, "required": ["tool_name"]}, where="x") == ToolForm()
    assert action_form({"properties": {"metadata": metadata}}, where="x") == ToolForm()
    for schema in (TEXT, {**TEXT, "required": None}):
        assert action_form(schema, where="x") == TextForm("message", takes_calls=False)
    move = {"x": {"type": "integer"}, "y": {"type": "integer"}}
    form = action_form({"properties": {**move, "metadata": metadata}, "required": ["x", "y"]}, where="x")
    assert isinstance(form, ActForm)
    assert form.tool.parameters["properties"] == move
    one_of = {"properties": {"move": {"type": "string", "enum": ["up", "down"]}}, "required": ["move"]}
    assert isinstance(action_form(one_of, where="x"), ActForm)


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"echoed": "hi", "metadata": {"a": 1}}, "hi"),
        ({"text": "hi", "messages": [1]}, "hi"),
        ({"note": "hi", "board": [[1]]}, '{"note": "hi", "board": [[1]]}'),
        ({"note": "hi", "error": None}, "hi"),
        ({"count": 3}, '{"count": 3}'),
        ({"metadata": {"status": "ready"}}, "ready"),
        ({}, ""),
    ],
)
def test_observations_are_written_as_text(fields: Any, text: str) -> None:
    assert observation_text(fields) == text


def test_addresses_are_read() -> None:
    assert Address.parse("openenv://h:1", tls=False).url == "http://h:1"
    space = Address.parse("openenv://me-env.hf.space/math/x-v0/", tls=True)
    assert (space.url, space.name) == ("https://me-env.hf.space/math/x-v0", "math/x-v0")
