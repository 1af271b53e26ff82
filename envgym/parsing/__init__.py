"""Text formats of agents without native tool calls: text -> `Action` and back."""

from functools import lru_cache

from envgym.config.plugins import Choice
from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, ToolCall
from envgym.parsing.formats import TEXT_FORMAT, TextFormat

__all__ = ["TextFormat", "parse_action", "text_format"]


@lru_cache(maxsize=64)
def text_format(name: str) -> TextFormat:
    """Return the format called `name`. Raises: UnknownName: there is none; near names are listed."""
    return TEXT_FORMAT.build(Choice(name=name))


def parse_action(text: str, format: str = "hermes") -> Action:
    """Read `text` in a format; never raises on any text. Raises: UnknownName: no such format."""
    return text_format(format).parse(text)


def tool_call_action(tool: str, **arguments: JsonValue) -> Action:
    """Return the action that calls one tool, with the text that a plain `step(str)` reads as this call."""
    call = Action(content="", tool_calls=[ToolCall(name=tool, arguments=arguments)])
    return parse_action(text_format("hermes").write(call))
