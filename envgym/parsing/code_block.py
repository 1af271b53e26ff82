"""Code as action: every fenced block that is marked `python` is a call of the tool `python` with its text as `code`.

Fences are read as Markdown does: a block opens with three or more backticks and closes with at least as many, so a
`python` line inside another block is not a call, and code that holds fences is written between longer ones.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from envgym.core.messages import Action, ToolCall
from envgym.parsing.formats import build_action, check_round_trip, join_parts, split_thinking
from envgym.tools import ToolSpec

TOOL = "python"
_LANGUAGES = ("python", "py", "python3")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """The format of agents that act by writing Python."""

    name: ClassVar[str] = "code_block"

    def parse(self, text: str) -> Action:
        """Read `text` line by line; a python block that is not closed is not run."""
        thinking, rest = split_thinking(text)
        lines = rest.split("\n")
        pieces: list[str] = []
        calls: list[ToolCall] = []
        malformed: list[str] = []
        start = index = 0
        while index < len(lines):
            length, language = _opening(lines[index])
            if not length:
                index += 1
                continue
            end = _closing_line(lines, index + 1, length)
            if language in _LANGUAGES:
                pieces.append("\n".join(lines[start:index]))
                start = end + 1
                if end < len(lines):
                    calls.append(ToolCall(name=TOOL, arguments={"code": "\n".join(lines[index + 1 : end])}))
                else:
                    malformed.append("The python block was not run: close it with a line of three backticks.")
            index = end + 1
        pieces.append("\n".join(lines[start:]))
        return build_action(text, thinking=thinking, pieces=pieces, calls=calls, malformed=malformed)

    def write(self, action: Action) -> str:
        """Write thinking, content and blocks, in this order. Raises: InvalidInput: a call is not of `python`."""
        blocks = []
        for call in action.tool_calls:
            code = str(call.arguments.get("code", ""))
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
            blocks.append(f"{fence}python\n{code}\n{fence}")
        return check_round_trip(join_parts(action, blocks), action, self.parse)

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return how code is written; the other tools are what that code may call."""
        if not tools:
            return ""
        described = "\n".join(f"- {spec.description}" for spec in tools if spec.name == TOOL)
        return (
            "You act by writing Python. Put the code between fences:\n```python\nprint(6 * 7)\n```\n"
            "Then stop: the output comes in the next message. A message without a python block is your final answer."
            + (f"\n{described}" if described else "")
        )


def _opening(line: str) -> tuple[int, str]:
    """Return (number of backticks, language) of a line that opens a block, (0, "") of any other line."""
    marked = line.lstrip(" ")
    info = marked.lstrip("`")
    length = len(marked) - len(info)
    if length < 3 or len(line) - len(marked) > 3 or "`" in info:
        return 0, ""
    return length, info.strip().lower()


def _closing_line(lines: Sequence[str], start: int, length: int) -> int:
    """Return the index of the line that closes a fence of `length` backticks, or the number of lines."""
    for index in range(start, len(lines)):
        line = lines[index].strip()
        if len(line) >= length and not line.strip("`"):
            return index
    return len(lines)
