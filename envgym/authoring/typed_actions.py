"""What a person types to act in an environment: `/TOOL ARGUMENTS` calls a tool, other text stays as it is."""

import json
from collections.abc import Mapping, Sequence

from envgym.core.json_types import JsonObject, JsonValue
from envgym.errors import InvalidInput, near_names
from envgym.tools import ToolSpec

_VALUES: Mapping[str, JsonValue] = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
"""Type of an argument -> a value that shows its form; a text is "..."."""


def how_to_act(tools: Sequence[ToolSpec], leaving: str) -> str:
    """Say in one line what may be typed, and how one leaves."""
    if not tools:
        return f"a line is your move or answer; {leaving}"
    forms = [_form(tool) for tool in tools]
    bare = sorted((form for form in forms if "{" not in form), key=lambda form: " " not in form)  # with a value first
    whole = sorted((form for form in forms if "{" in form), key=len)
    calls = " or ".join([*bare[:1], *whole[:1]])
    return f"{calls} calls a tool; any other text is your final answer, or what you say; {leaving}"


def as_action(line: str, tools: Sequence[ToolSpec]) -> str:
    """Write `/TOOL ARGUMENTS` as a tool call; anything else stays as it is.

    Where there are tools, `//` stands for a slash that calls none. Raises: InvalidInput: no such tool, no such form.
    """
    if not tools or not line.startswith("/"):
        return line
    if line.startswith("//"):
        return line[1:]
    name, _, rest = line[1:].partition(" ")
    spec = next((tool for tool in tools if tool.name == name), None)
    if spec is None:
        tool_names = [tool.name for tool in tools]
        near = near_names(name, tool_names, can_list=True)
        do = f"did you mean /{' or /'.join(near)}?" if near else f"the tools are /{', /'.join(tool_names)}."
        raise InvalidInput(f"no tool {name}; {do} Begin with // to say it as text.")
    try:
        value = json.loads(rest) if rest.strip() else {}
    except ValueError:
        value = rest.strip()
    if not isinstance(value, dict):
        names, properties = _needed(spec), _properties(spec)
        if len(names) != 1:
            must = "be given a JSON object" if names else "be given no arguments"
            raise InvalidInput.of(f"/{name}", must, rest, where="play", do=f"write {_form(spec)}")
        schema = properties[names[0]]
        is_text = isinstance(schema, dict) and schema.get("type") == "string"
        value = {names[0]: rest.strip() if is_text else value}
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': value}, ensure_ascii=False)}\n</tool_call>"


def _form(tool: ToolSpec) -> str:
    """Write a tool's call as a line of `play`, with the arguments that it needs."""
    names = _needed(tool)
    values = names[0].upper() if len(names) == 1 else _example(tool, names) if names else ""
    return f"/{tool.name} {values}".rstrip()


def _example(tool: ToolSpec, names: Sequence[str]) -> str:
    """Write arguments of the types that a tool takes."""
    schemas = [_properties(tool)[name] for name in names]
    types = [str(schema.get("type")) if isinstance(schema, dict) else "" for schema in schemas]
    return json.dumps({name: _VALUES.get(kind, "...") for name, kind in zip(names, types, strict=True)})


def _needed(tool: ToolSpec) -> list[str]:
    """Return the names of the arguments that a tool needs, or of all where it needs none."""
    required = tool.parameters.get("required")
    names = list(_properties(tool))
    return [name for name in names if isinstance(required, list) and name in required] or names


def _properties(tool: ToolSpec) -> JsonObject:
    properties = tool.parameters.get("properties")
    return properties if isinstance(properties, dict) else {}
