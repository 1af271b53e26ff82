"""XML tags, whose values need no quoting:

    <tool name="calculator">
    <arg name="expression">2 * (3 + 4)</arg>
    <arg name="digits" type="json">3</arg>
    </tool>

A value is the raw text between the tags, a string; line breaks right inside both tags are not part of it. With
`type="json"` the text is read as JSON. `&lt;`, `&gt;` and `&amp;` stand for themselves only outside of values.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, ToolCall
from envgym.parsing.formats import check_round_trip, compact, explain_tagged, join_parts, parse_tagged
from envgym.parsing.strict_json import read_json
from envgym.tools import ToolSpec

_TAG = re.compile(r"<(/?)tool(?=[\s>])([^<>]{0,200})>")
_ARG = re.compile(r'\s*<arg\s+name="([^"<>]{1,100})"(\s+type="json")?\s*>')
_NAME = re.compile(r'\s+name="([^"<>]{1,100})"\s*')
_CLOSE_ARG = "</arg>"
_FORM = '<tool name="TOOL"><arg name="ARGUMENT">VALUE</arg></tool>'
_ENTITIES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))


@dataclass(frozen=True, slots=True)
class XmlTags:
    """The format for models that write code or prose as arguments."""

    name: ClassVar[str] = "xml_tags"

    def parse(self, text: str) -> Action:
        return parse_tagged(text, _TAG, _read_call, _FORM)

    def write(self, action: Action) -> str:
        """Write thinking, content, calls. Raises: InvalidInput: a name holds quotes, or the content holds tags."""
        calls = map(_write_call, action.tool_calls)
        return check_round_trip(join_parts(action, calls), action, self.parse)

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        how = (
            f"To call a tool, write\n{_FORM}\nwith one <arg> per argument. Values are plain text; for a number, a list "
            'or an object write <arg name="ARGUMENT" type="json">.'
        )
        return explain_tagged(tools, how)


def _read_call(text: str, opening: re.Match[str]) -> tuple[list[ToolCall], int]:
    closing = _TAG.search(text, opening.end())
    if closing is None or not closing[1]:
        raise ValueError("the tag </tool> is missing")
    name = _NAME.fullmatch(opening[2])
    if name is None:
        raise ValueError('the tag must be <tool name="TOOL">')
    arguments = _read_arguments(text[opening.end() : closing.start()].strip())
    return [ToolCall(name=name[1], arguments=arguments)], closing.end()


def _read_arguments(body: str) -> dict[str, JsonValue]:
    arguments: dict[str, JsonValue] = {}
    position = 0
    while position < len(body):
        opening = _ARG.match(body, position)
        if opening is None:
            raise ValueError(f'inside <tool> only <arg name="..."> may stand, not {body[position : position + 40]!r}')
        end = body.find(_CLOSE_ARG, opening.end())
        if end < 0:
            raise ValueError(f"the argument {opening[1]!r} is not closed with {_CLOSE_ARG}")
        if opening[1] in arguments:
            raise ValueError(f"the argument {opening[1]!r} is written twice")
        value = _read_value(body[opening.end() : end])
        arguments[opening[1]] = read_json(value) if opening[2] else value
        position = end + len(_CLOSE_ARG)
    return arguments


def _read_value(raw: str) -> str:
    if len(raw) > 1 and raw.startswith("\n") and raw.endswith("\n"):
        raw = raw[1:-1]
    for character, entity in reversed(_ENTITIES):
        raw = raw.replace(entity, character)
    return raw


def _write_call(call: ToolCall) -> str:
    arguments = [_write_argument(name, value) for name, value in call.arguments.items()]
    return "\n".join([f'<tool name="{call.name}">', *arguments, "</tool>"])


def _write_argument(name: str, value: JsonValue) -> str:
    text, kind = (value, "") if isinstance(value, str) else (compact(value), ' type="json"')
    for character, entity in _ENTITIES:
        text = text.replace(character, entity)
    edge = "\n" if "\n" in text else ""
    return f'<arg name="{name}"{kind}>{edge}{text}{edge}</arg>'
