"""What every text format offers, the pieces they share, and plain text, the format without calls.

Reasoning stands between `<think>` and `</think>`, apart from the content. `parse_tagged` and `explain_tagged` serve the
formats whose calls stand between an opening and a closing tag.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from envgym.config.plugins import PluginKind
from envgym.config.tables import KINDS
from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, ToolCall
from envgym.errors import InvalidInput
from envgym.parsing.fences import read_fences
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
    def name(self) -> str: ...

    def parse(self, text: str) -> Action:
        """Read any text; never raises. What looks like a call but cannot be read is a reason in `malformed`."""
        ...

    def write(self, action: Action) -> str:
        """Write the text that `parse` reads as `action`. Raises: InvalidInput: the format cannot express it."""
        ...

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """The text of a system prompt by which a model uses this format."""
        ...


TEXT_FORMAT: Final[PluginKind[TextFormat]] = KINDS["text_format"]


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
    """Return the inside of a text that is one fenced block of JSON, else the text; stripped either way."""
    text = text.strip()
    if text[:3] not in ("```", "~~~") or text[-1] != text[0]:
        return text
    blocks = read_fences(text, inline=True)
    is_whole = len(blocks) == 1 and blocks[0].last == text.count("\n") and blocks[0].language in ("", "json")
    return blocks[0].text.strip() if is_whole else text


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


ReadCalls = Callable[[str, re.Match[str]], tuple[Sequence[ToolCall], int]]
"""(text, opening tag) -> (its calls, where the text continues); a ValueError is one clause that says what is wrong."""


_Scan = tuple[list[str], list[ToolCall], list[str], list[tuple[int, int, int]]]
"""Text before, between and after the blocks of calls; calls; reasons; start, end and number of calls of each block."""


def parse_tagged(text: str, tag: re.Pattern[str], read: ReadCalls, form: str) -> Action:
    """Read the calls of `text`; all other text is content.

    After a call that cannot be read, the text continues after the next tag if that one closes, at the next tag if it
    opens. Calls inside thinking that never closes are run only if they end the message.

    Args:
        text: A whole message.
        tag: Finds tags of both kinds; its first group is not empty in a closing one.
        read: Reads the calls of an opening tag.
        form: How a call is written.
    """
    thinking, rest = split_thinking(text)
    if not rest and thinking is not None and (unclosed := unclosed_thinking(text)) is not None:
        return _read_unclosed(text, unclosed, _scan(unclosed, tag, read, form), form)
    pieces, calls, malformed, _ = _scan(rest, tag, read, form)
    return build_action(text, thinking=thinking, pieces=pieces, calls=calls, malformed=malformed)


def _scan(text: str, tag: re.Pattern[str], read: ReadCalls, form: str) -> _Scan:
    pieces: list[str] = []
    calls: list[ToolCall] = []
    malformed: list[str] = []
    blocks: list[tuple[int, int, int]] = []
    position = 0
    for opening in tag.finditer(text):
        start = opening.start()
        if start < position or opening[1]:
            continue
        pieces.append(text[position:start])
        if len(malformed) == MAX_REASONS:
            malformed.append(UNREAD)
            position = len(text)
            break
        block: Sequence[ToolCall] = ()
        try:
            block, position = read(text, opening)
            calls += block
        except ValueError as error:
            malformed.append(f"A tool call could not be read: {error}. Write it as {form}.")
            following = tag.search(text, opening.end())
            position = len(text) if following is None else following.end() if following[1] else following.start()
        blocks.append((start, position, len(block)))
    pieces.append(text[position:])
    return pieces, calls, malformed, blocks


def unclosed_thinking(text: str) -> str | None:
    """Return the thinking of a message whose `<think>` never closes; None if there is no such thinking."""
    start = text.lstrip()
    return start[len(THINK_OPEN) :] if start.startswith(THINK_OPEN) and THINK_CLOSE not in start else None


UNCLOSED = "A tool call inside thinking that never closes was not run: write {close} first, then the call as {form}."


def _read_unclosed(text: str, thinking: str, scan: _Scan, form: str) -> Action:
    """Read a message whose thinking never closes: the calls that end it, else a reason if there are tags of calls.

    Models forget to close the thinking before a call. A call with text after it is one that the model only considers.
    """
    _, calls, _, blocks = scan
    start, num_calls = len(thinking.rstrip()), 0
    for block_start, block_end, block_calls in reversed(blocks):
        if not block_calls or thinking[block_end:start].strip():
            break
        start, num_calls = block_start, num_calls + block_calls
    calls = calls[len(calls) - num_calls :]
    unread = [] if calls or not blocks else [UNCLOSED.format(close=THINK_CLOSE, form=form)]
    return Action(text, content="", thinking=thinking[:start].strip() or None, tool_calls=calls, malformed=unread)


def explain_tagged(tools: Sequence[ToolSpec], how: str) -> str:
    """The text of a system prompt about `tools`, with `how` a call is written; empty without tools."""
    if not tools:
        return ""
    return (
        "You may call these tools; each line is the JSON schema of one:\n"
        f"<tools>\n{list_tools(tools)}\n</tools>\n{how}\n"
        "Then stop: the results come in the next message. A message without a call is your final answer."
    )
