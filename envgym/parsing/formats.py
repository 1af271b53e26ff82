"""What every text format offers, the pieces they share, and plain text, the format without calls.

Reasoning stands between `<think>` and `</think>`, apart from the content. `parse_tagged` and `explain_tagged` serve the
formats whose calls stand between an opening and a closing tag.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, ToolCall
from envgym.errors import InvalidInput
from envgym.tools import ToolSpec

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


def split_thinking(text: str) -> tuple[str | None, str]:
    """Return (thinking or None, the rest of the text).

    The opening tag may be missing, as many templates write it into the prompt. Thinking that never closes takes the
    whole text: nothing was said yet. Without a tag the text is returned untouched, else both parts are stripped.
    """
    start = text.lstrip()
    if start.startswith(THINK_OPEN):
        thinking, closed, rest = start[len(THINK_OPEN) :].partition(THINK_CLOSE)
        return thinking.strip() or None, rest.strip() if closed else ""
    before, closed, rest = text.partition(THINK_CLOSE)
    if closed and THINK_OPEN not in before:
        return before.strip() or None, rest.strip()
    return None, text


def join_thinking(thinking: str | None, rest: str) -> str:
    """Write what `split_thinking` reads; an empty block keeps tags inside the rest from being taken for thinking."""
    if thinking is None and THINK_OPEN not in rest and THINK_CLOSE not in rest:
        return rest
    return f"{THINK_OPEN}\n{thinking or ''}\n{THINK_CLOSE}\n\n{rest}"


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


def check_round_trip(text: str, action: Action, parse: Callable[[str], Action]) -> str:
    """Return `text` if reading it back gives `action`. Raises: InvalidInput: the format cannot express the action."""
    parsed = parse(text)
    for part in ("thinking", "content", "tool_calls", "malformed"):
        if getattr(parsed, part) != getattr(action, part):
            must, got = "survive being written and read", repr(getattr(action, part))
            do = "strip it of the format's markup and of outer spaces, or use another format"
            raise InvalidInput.of(f"{part} of the action", must, got, where="write", do=do)
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


@dataclass(frozen=True, slots=True)
class Plain:
    """The format of agents without tools."""

    name: ClassVar[str] = "plain"

    def parse(self, text: str) -> Action:
        """Read `text`; whatever is not thinking is content."""
        thinking, rest = split_thinking(text)
        return build_action(text, thinking=thinking, pieces=[rest], calls=(), malformed=())

    def write(self, action: Action) -> str:
        """Write thinking, then content. Raises: InvalidInput: the action calls a tool."""
        return check_round_trip(join_parts(action, ()), action, self.parse)

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return nothing: plain text needs no instructions, and tools cannot be called with it."""
        return ""


def parse_tagged(
    text: str, tag: re.Pattern[str], read: Callable[[str, re.Match[str]], tuple[ToolCall, int]], form: str
) -> Action:
    """Read the calls of `text`; all else is content, and what stands inside unfinished thinking is no call.

    After a call that cannot be read the text goes on after the next tag if it closes, at the next tag if it opens.

    Args:
        tag: Finds tags of both kinds; its first group is not empty in a closing one.
        read: (text, opening tag) -> (call, where the text goes on); a ValueError is one clause that says what is wrong.
        form: How a call is written.
    """
    thinking, rest = split_thinking(text)
    pieces: list[str] = []
    calls: list[ToolCall] = []
    malformed: list[str] = []
    position = 0
    for opening in tag.finditer(rest):
        if opening.start() < position or opening[1]:
            continue
        pieces.append(rest[position : opening.start()])
        if len(malformed) == MAX_REASONS:
            malformed.append(UNREAD)
            position = len(rest)
            break
        try:
            call, position = read(rest, opening)
            calls.append(call)
        except ValueError as error:
            malformed.append(f"A tool call could not be read: {error}. Write it as {form}.")
            following = tag.search(rest, opening.end())
            position = len(rest) if following is None else following.end() if following[1] else following.start()
    pieces.append(rest[position:])
    return build_action(text, thinking=thinking, pieces=pieces, calls=calls, malformed=malformed)


def explain_tagged(tools: Sequence[ToolSpec], how: str) -> str:
    """Return what a system prompt says of `tools`, with `how` a call of one is written; nothing without tools."""
    if not tools:
        return ""
    return (
        "You may call these tools; each line is the JSON schema of one:\n"
        f"<tools>\n{list_tools(tools)}\n</tools>\n{how}\n"
        "Then stop: the results come in the next message. A message without a call is your final answer."
    )
