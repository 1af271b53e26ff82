"""Hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Qwen, Hermes and many others are trained.

Read with tolerance where only one reading exists: a code fence around the JSON, `parameters` for `arguments`, arguments
encoded twice, no arguments at all, line breaks inside strings, and a last call whose closing tag was cut off.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.messages import Action, ToolCall
from envgym.parsing.formats import check_round_trip, compact, explain_tagged, join_parts, parse_tagged
from envgym.parsing.strict_json import read_json, read_json_at
from envgym.tools import ToolSpec

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TAG = re.compile(r"<(/?)tool_call>")
_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\n")
_END = re.compile(r"\s*(?:```\s*)?(?:</tool_call>|\Z)")
_FORM = f'{OPEN}{{"name": "<tool>", "arguments": {{"<argument>": <value>}}}}{CLOSE}'


@dataclass(frozen=True, slots=True)
class Hermes:
    """The format that `Env.step` reads from a plain string."""

    name: ClassVar[str] = "hermes"

    def parse(self, text: str) -> Action:
        """Read `text`; calls inside unfinished thinking are not calls."""
        return parse_tagged(text, _TAG, _read_call, _FORM) if "<" in text else Action(str(text))

    def write(self, action: Action) -> str:
        """Write thinking, content, calls. Raises: InvalidInput: a call has an id, or the content holds tags."""
        calls = [f"{OPEN}\n{_write_call(call)}\n{CLOSE}" for call in action.tool_calls]
        return check_round_trip(join_parts(action, calls), action, self.parse)

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return the list of tools and the form of a call."""
        how = f"To call a tool, write the call as JSON between tags, one pair of tags per call:\n{_FORM}"
        return explain_tagged(tools, how)


def _read_call(text: str, opening: re.Match[str]) -> tuple[ToolCall, int]:
    """Read the call after its opening tag; return it and where the text goes on. Raises: ValueError: one clause."""
    fence = _FENCE.match(text, opening.end())
    value, end = read_json_at(text, fence.end() if fence else opening.end())
    close = _END.match(text, end)
    if close is None:
        raise ValueError(f"the JSON object must be followed by {CLOSE}, not by {text[end : end + 20].strip()!r}")
    return read_call(value), close.end()


def read_call(value: JsonValue) -> ToolCall:
    """Read a decoded call object. Raises: ValueError: one clause that says what is wrong."""
    if not isinstance(value, Mapping):
        raise ValueError("a call must be one JSON object")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError('the key "name" must hold the name of a tool')
    stray = [key for key in value if key not in ("name", "arguments", "parameters", "id", "type")]
    if stray:
        raise ValueError(f'the key {stray[0][:40]!r} must stand inside "arguments"')
    if "arguments" in value and "parameters" in value:
        raise ValueError('"arguments" and "parameters" must not both be given')
    return ToolCall(name=name, arguments=read_arguments(value.get("arguments", value.get("parameters"))))


def read_arguments(value: JsonValue) -> JsonObject:
    """Read the arguments of a call: an object, the JSON text of one, or nothing. Raises: ValueError."""
    if isinstance(value, str) and value.strip():
        value = read_json(value)
    if value is None or value == "":
        return {}
    if not isinstance(value, Mapping):
        raise ValueError('"arguments" must hold a JSON object')
    return value


def _write_call(call: ToolCall) -> str:
    """Write the JSON of a call; `</` is escaped as JSON allows, so that no string can close a tag."""
    return compact({"name": call.name, "arguments": call.arguments}).replace("</", "<\\/")
