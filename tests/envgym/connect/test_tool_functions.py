"""Tools as Python methods: what `transformers` reads of one is the tool's own JSON schema."""

import inspect
import typing
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Literal

import pytest
from transformers.utils.chat_template_utils import get_json_schema

import envgym
from envgym.connect.tool_functions import docstring, method_of, type_hint
from envgym.core.json_types import JsonObject, JsonValue
from envgym.errors import InvalidInput
from envgym.tools import ToolSpec


def spec_of(name: str = "look", description: str = "Look at it.", /, **properties: Any) -> ToolSpec:  # JSON schemas
    required: list[JsonValue] = [key for key, schema in properties.items() if "default" not in schema]
    parameters: JsonObject = {"type": "object", "properties": properties, "required": required}
    return ToolSpec(name=name, description=description, parameters=parameters)


def received(self: object, tool: str, arguments: JsonObject) -> str:
    return f"{tool} {sorted(arguments.items())}"


def bound(spec: ToolSpec) -> Any:  # a method
    return getattr(type("Env", (), {spec.name: method_of(spec, received)})(), spec.name)


def all_specs() -> Iterator[ToolSpec]:
    for env_id in ("math/arithmetic-v0", "puzzles/guess_number-v0", "tools/office-v0", "web/shop-v0"):
        with closing(envgym.make(env_id)) as env:
            yield from (item.spec for item in env.unwrapped.toolset().values())


def test_transformers_reads_the_schema_of_every_tool_of_ours() -> None:
    count = 0
    for spec in all_specs():
        function = get_json_schema(bound(spec))["function"]
        properties = spec.parameters.get("properties", {})
        assert isinstance(properties, Mapping)
        assert (function["name"], function["description"]) == (spec.name, " ".join(spec.description.split()))
        assert list(function["parameters"]["properties"]) == list(properties)
        assert function["parameters"].get("required", []) == list(spec.parameters.get("required", ()))  # type: ignore[arg-type]  # a list
        for name, schema in properties.items():
            assert isinstance(schema, Mapping)
            read = function["parameters"]["properties"][name]
            assert "type" not in schema or read["type"] == schema["type"], (spec.name, name)
            assert read.get("enum") == schema.get("enum")
            assert read["description"].startswith(" ".join(str(schema.get("description", "The")).split()))
        count += 1
    assert count > 40


@pytest.mark.parametrize(
    "schema, hint",
    [
        ({"type": "string"}, str),
        ({"type": "integer"}, int),
        ({"type": "number"}, float),
        ({"type": "boolean"}, bool),
        ({"type": "array"}, list),
        ({"type": "array", "items": {"type": "integer"}}, list[int]),
        ({"type": "object", "properties": {"x": {"type": "string"}}}, dict),
        ({"enum": ["a", 1, None]}, Literal["a", 1, None]),
        ({"const": "a"}, Literal["a"]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, str | None),
        ({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, str | list[str]),
        ({"type": ["string", "integer"]}, str | int),
        ({"$ref": "#/$defs/Color"}, Literal["red"]),
        ({"$ref": "#/$defs/Gone"}, Any),
        ({}, Any),
        (True, Any),
    ],
)
def test_a_schema_has_its_hint(schema: Any, hint: Any) -> None:
    assert type_hint(schema, {"$defs": {"Color": {"enum": ["red"]}}}) == hint


def test_arguments_that_are_not_passed_do_not_reach_the_tool_and_unknown_ones_do() -> None:
    look = bound(spec_of(place={"type": "string"}, times={"type": "integer", "default": 2}))
    assert look(place="hall") == "look [('place', 'hall')]"
    assert look(plaice="hall", self=1) == "look [('plaice', 'hall'), ('self', 1)]"
    signature = inspect.signature(look)
    assert str(signature) == "(*, place: str, times: int = 2) -> str"
    assert typing.get_type_hints(look) == {"place": str, "times": int, "return": str}
    assert look.__doc__ == "Look at it.\n\nArgs:\n    place: The argument place.\n    times: The argument times."


def test_a_schema_beyond_hints_is_in_the_docstring() -> None:
    address = {"type": "object", "properties": {"city": {"type": "string"}}, "description": "Where."}
    function = get_json_schema(bound(spec_of(to=address)))["function"]["parameters"]["properties"]
    assert function["to"]["type"] == "object"
    assert function["to"]["description"] == (
        'Where. JSON schema: {"type": "object", "properties": {"city": {"type": "string"}}}'
    )
    bounded = docstring(spec_of(number={"type": "integer", "minimum": 1, "title": "Number"}))
    assert bounded.endswith('number: The argument number. JSON schema: {"type": "integer", "minimum": 1}')


def test_words_of_a_tool_begin_no_section_of_the_docstring() -> None:
    text = "Find it.\n\nReturns: much\nArgs: none"
    spec = spec_of("look", text, x={"type": "string", "description": 'Raises: nothing\ny: no (choices: ["a"])'})
    function = get_json_schema(bound(spec))["function"]
    assert function["description"] == "Find it. Returns - much Args - none"
    assert function["parameters"]["properties"] == {
        "x": {"type": "string", "description": 'Raises - nothing y: no (choices - ["a"])'}
    }
    assert docstring(spec_of("look", "")) == "Call look."


@pytest.mark.parametrize(
    "spec, what",
    [
        (spec_of("look-up"), "tool must have a name that Python can write, got look-up"),
        (
            spec_of("look", "Look.", **{"from": {"type": "string"}}),
            "argument of look must have a name that Python can write, got from",
        ),
        (
            spec_of("look", "Look.", **{"a b": {"type": "string"}}),
            "argument of look must have a name that Python can write, got a b",
        ),
    ],
)
def test_a_name_that_python_cannot_write_is_refused(spec: ToolSpec, what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        method_of(spec, received)
