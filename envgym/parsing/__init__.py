"""Text formats of agents without native tool calls: text -> `Action` and back."""

from collections.abc import Mapping
from types import MappingProxyType

from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, ToolCall
from envgym.errors import unknown_name
from envgym.parsing.code_block import CodeBlock
from envgym.parsing.formats import TextFormat
from envgym.parsing.hermes import Hermes
from envgym.parsing.plain import Plain
from envgym.parsing.react import React
from envgym.parsing.xml_tags import XmlTags

__all__ = ["TABLE", "CodeBlock", "Hermes", "Plain", "React", "TextFormat", "XmlTags", "parse_action", "text_format"]

TABLE: Mapping[str, TextFormat] = MappingProxyType(
    {item.name: item for item in (Hermes(), CodeBlock(), XmlTags(), React(), Plain())}
)
"""Format name -> format."""


def text_format(name: str) -> TextFormat:
    """Return the format called `name`. Raises: UnknownName: there is none; near names are listed."""
    if name not in TABLE:
        raise unknown_name("text format", name, TABLE, where="parsing")
    return TABLE[name]


def parse_action(text: str, format: str = "hermes") -> Action:
    """Read `text` in a format; never raises on any text. Raises: UnknownName: no such format."""
    return text_format(format).parse(text)


def tool_call_action(tool: str, **arguments: JsonValue) -> Action:
    """Return the action that calls one tool, with the text that a plain `step(str)` reads as this call."""
    call = Action(content="", tool_calls=[ToolCall(name=tool, arguments=arguments)])
    return parse_action(text_format("hermes").write(call))
