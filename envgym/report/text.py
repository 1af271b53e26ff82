"""What a report shows of messages and tokens as text: questions and actions in a line, whole characters."""

import json
import re
from collections.abc import Sequence

from envgym.core.messages import Action, Message, ToolCall
from envgym.core.segments import Origin, Segment

_LINE_LENGTH = 160
"""Characters of what stands in a list."""
_TEMPLATE_MARK = re.compile(r"<\|[^<>|\s]{1,40}\|>|</?(?:start|end)_of_turn>|\[/?INST\]")
"""What chat templates put between messages."""
_ROLE = re.compile(r"\A\s*(?:system|developer|user|assistant|model|tool)\s*\n")
"""The first line of a message, in templates that name its role there."""
_BYTE = re.compile(r"(\\x[89a-f][0-9a-f])")
"""A byte that is no character on its own, as token strings show it."""
_UTF8_SIZES = (2, 3, 4)
"""Bytes of a character that is not ASCII."""


def action_line(action: Action) -> str:
    """Return an action in a line: its tool calls, or the end of what it says."""
    if action.tool_calls:
        return _line("; ".join(map(_call, action.tool_calls)))[:_LINE_LENGTH]
    return last_line(action.content or action)


def _call(call: ToolCall) -> str:
    """Write a call as in Python; a lone argument without its name."""
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in call.arguments.items()}
    named = values.values() if len(values) == 1 else (f"{name}={value}" for name, value in values.items())
    return f"{call.name}({', '.join(named)})"


def last_line(text: str) -> str:
    """Return the end of a text in a line, without the marks of chat templates."""
    line = _line(text)
    return line if len(line) <= _LINE_LENGTH else f"\u2026{line[-_LINE_LENGTH:]}"


def question_line(messages: Sequence[Message], prompt: Sequence[Segment]) -> str:
    """Return the beginning of the last message of a prompt, without the marks and the role of its template.

    Args:
        messages: the prompt of a policy of messages; empty for any other.
        prompt: the segments of the root's edge.
    """
    if messages:
        return _line(messages[-1].content)[:_LINE_LENGTH]
    text = "".join(
        "".join(whole_characters(segment.token_strings)) if segment.origin is Origin.PROMPT else "<|template|>"
        for segment in prompt
    )
    parts = (_line(_ROLE.sub("", message)) for message in reversed(_TEMPLATE_MARK.split(text)))
    return next(filter(None, parts), "")[:_LINE_LENGTH]


def _line(text: str) -> str:
    return " ".join(_TEMPLATE_MARK.sub(" ", text).split())


def whole_characters(strings: Sequence[str]) -> tuple[str, ...]:
    r"""Show a character whose bytes lie in several tokens with the first of them, and nothing of it with the others.

    Args:
        strings: [T] tokens as a person reads them; a byte that is no character on its own is written as `\xe2`.

    Returns:
        [T] the same where all characters are whole; bytes that make no character together stay as they are.
    """
    if not any(map(_BYTE.search, strings)):
        return tuple(strings)
    pieces = [(token, piece) for token, string in enumerate(strings) for piece in _BYTE.split(string) if piece]
    characters = [""] * len(strings)
    place = 0
    while place < len(pieces):
        size, text = _character([piece for _, piece in pieces[place : place + max(_UTF8_SIZES)]])
        characters[pieces[place][0]] += text
        place += size
    return tuple(characters)


def _character(pieces: Sequence[str]) -> tuple[int, str]:
    """Return how many pieces make the next character, and what they show; one and itself where they make none."""
    for size in _UTF8_SIZES:
        if size <= len(pieces) and all(map(_BYTE.fullmatch, pieces[:size])):
            try:
                return size, bytes.fromhex("".join(piece[2:] for piece in pieces[:size])).decode()
            except UnicodeDecodeError:
                continue
    return 1, pieces[0]
