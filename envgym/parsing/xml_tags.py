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

from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, ToolCall
from envgym.parsing.formats import build_action, compact, join_parts, list_tools, written
from envgym.parsing.strict_json import read_json
from envgym.parsing.thinking import split_thinking
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

    name: str = "xml_tags"

    def parse(self, text: str) -> Action:
        """Read `text`; other tags are content."""
        thinking, rest = split_thinking(text)
        pieces: list[str] = []
        calls: list[ToolCall] = []
        malformed: list[str] = []
        position = 0
        tags = list(_TAG.finditer(rest))
        for index, tag in enumerate(tags):
            if tag.start() < position or tag[1]:
                continue
            pieces.append(rest[position : tag.start()])
            following = tags[index + 1] if index + 1 < len(tags) else None
            try:
                if following is None or not following[1]:
                    raise ValueError("the tag </tool> is missing")
                calls.append(_read_call(tag[2], rest[tag.end() : following.start()]))
            except ValueError as error:
                malformed.append(f"A tool call could not be read: {error}. Write it as {_FORM}.")
            if following is None:
                position = len(rest)
            else:
                position = following.end() if following[1] else following.start()
        pieces.append(rest[position:])
        return build_action(text, thinking=thinking, pieces=pieces, calls=calls, malformed=malformed)

    def write(self, action: Action) -> str:
        """Write thinking, content, calls. Raises: InvalidInput: a name holds quotes, or the content holds tags."""
        text = join_parts(action, [_write_call(call) for call in action.tool_calls])
        return written(text, action, self.parse(text))

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return the list of tools and the form of a call."""
        if not tools:
            return ""
        return (
            "You may call these tools; each line is the JSON schema of one:\n"
            f"<tools>\n{list_tools(tools)}\n</tools>\n"
            f"To call a tool, write\n{_FORM}\nwith one <arg> per argument. Values are plain text; for a number, a list "
            'or an object write <arg name="ARGUMENT" type="json">.\n'
            "Then stop: the results come in the next message. A message without a call is your final answer."
        )


def _read_call(attributes: str, body: str) -> ToolCall:
    """Read one call from the attributes and the inside of its tag. Raises: ValueError: one clause."""
    name = _NAME.fullmatch(attributes)
    if name is None:
        raise ValueError('the tag must be <tool name="TOOL">')
    arguments: dict[str, JsonValue] = {}
    position = 0
    body = body.strip()
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
    return ToolCall(name=name[1], arguments=arguments)


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
