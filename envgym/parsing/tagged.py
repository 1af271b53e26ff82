"""What the formats share whose calls stand between an opening and a closing tag."""

import re
from collections.abc import Callable, Sequence

from envgym.core.messages import Action, ToolCall
from envgym.parsing.formats import MAX_REASONS, UNREAD, build_action, list_tools
from envgym.parsing.thinking import split_thinking
from envgym.tools import ToolSpec


def parse_tagged(
    text: str, tag: re.Pattern[str], read: Callable[[str, re.Match[str]], tuple[ToolCall, int]], form: str
) -> Action:
    """Read the calls of `text`; all else is content, and what stands inside unfinished thinking is no call.

    Behind a call that cannot be read the text goes on after the next tag if it closes, at the next tag if it opens.

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
