"""Code as action: every fenced block that is marked `python` is a call of the tool `python` with its text as `code`.

Fences are read as Markdown does: a block opens with three or more backticks and closes with at least as many, so a
`python` line inside another block is not a call, and code that holds fences is written between longer ones.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from envgym.core.messages import Action, ToolCall
from envgym.parsing.fences import read_fences
from envgym.parsing.formats import build_action, check_round_trip, join_parts, split_thinking
from envgym.tools import ToolSpec

TOOL = "python"


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """The format of agents that act by writing Python."""

    name: ClassVar[str] = "code_block"

    def parse(self, text: str) -> Action:
        thinking, rest = split_thinking(text)
        lines = rest.split("\n")
        pieces: list[str] = []
        calls: list[ToolCall] = []
        malformed: list[str] = []
        start = 0
        for block in read_fences(rest):
            if block.language != TOOL:
                continue
            pieces.append("\n".join(lines[start : block.first]))
            start = block.last + 1
            if block.is_closed:
                calls.append(ToolCall(name=TOOL, arguments={"code": block.text}))
            else:
                malformed.append("The python block was not run: close it with a line of three backticks.")
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
