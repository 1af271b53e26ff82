"""Plain text: thinking and content, no tool calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from envgym.core.messages import Action
from envgym.parsing.formats import build_action, check_round_trip, join_parts
from envgym.parsing.thinking import split_thinking
from envgym.tools import ToolSpec


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
        text = join_parts(action, ())
        return check_round_trip(text, action, self.parse(text))

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return nothing: plain text needs no instructions, and tools cannot be called with it."""
        return ""
