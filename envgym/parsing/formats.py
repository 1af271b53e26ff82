"""What every text format offers, and the pieces they share."""

import json
from collections.abc import Iterable, Sequence
from typing import Protocol

from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, ToolCall
from envgym.errors import InvalidInput, sentence
from envgym.parsing.thinking import join_thinking
from envgym.tools import ToolSpec

MAX_REASONS = 8
"""Sentences kept about calls that could not be read."""
UNREAD = "More calls could not be read."
"""Stands for all further ones."""


class TextFormat(Protocol):
    """One way to write thinking, content and tool calls as plain text."""

    @property
    def name(self) -> str:
        """The format's name in the table."""
        ...

    def parse(self, text: str) -> Action:
        """Read any text; never raises. What looks like a call but cannot be read is a reason in `malformed`."""
        ...

    def write(self, action: Action) -> str:
        """Write the text that `parse` reads as `action`. Raises: InvalidInput: the format cannot express it."""
        ...

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return what a system prompt must say so that a model uses this format."""
        ...


def build_action(
    text: str, *, thinking: str | None, pieces: Iterable[str], calls: Sequence[ToolCall], malformed: Sequence[str]
) -> Action:
    """Make the action of a parsed text; `pieces` are its contents outside markup, in order."""
    if not calls and not malformed:
        content = "".join(pieces)
    else:
        content = "\n".join(stripped for piece in pieces if (stripped := piece.strip()))
    reasons = malformed if len(malformed) <= MAX_REASONS else [*malformed[:MAX_REASONS], UNREAD]
    return Action(text, content=content, thinking=thinking, tool_calls=calls, malformed=reasons)


def check_round_trip(text: str, action: Action, parsed: Action) -> str:
    """Return `text` if reading it back gave `action`. Raises: InvalidInput: the format cannot express the action."""
    for part in ("thinking", "content", "tool_calls", "malformed"):
        if getattr(parsed, part) != getattr(action, part):
            raise InvalidInput(
                sentence(
                    f"{part} of the action",
                    "survive being written and read",
                    repr(getattr(action, part)),
                    where="write",
                    do="strip it of the format's markup and of outer spaces, or use another format",
                )
            )
    return text


def join_parts(action: Action, calls: Iterable[str]) -> str:
    """Join thinking, content and written calls."""
    body = "\n".join(part for part in (action.content, *calls) if part)
    return join_thinking(action.thinking, body)


def without_fence(text: str) -> str:
    """Return the inside of a text that is one fenced block, else the text; stripped either way."""
    text = text.strip()
    first, newline, rest = text.partition("\n")
    if newline and first.rstrip().lower() in ("```", "```json") and rest.endswith("```"):
        return rest[:-3].strip()
    return text


def compact(value: JsonValue) -> str:
    """Write a JSON value on one line, as people write it."""
    return json.dumps(value, ensure_ascii=False)


def list_tools(tools: Sequence[ToolSpec]) -> str:
    """Return one line of JSON for each tool, in the shape that chat templates use."""
    return "\n".join(
        compact({"name": spec.name, "description": spec.description, "parameters": spec.parameters}) for spec in tools
    )
