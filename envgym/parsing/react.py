"""ReAct: `Thought:`, then either `Action:` with `Action Input:` (a JSON object), or `Final Answer:`.

What a model writes after `Observation:` is its own invention and is left out. Text without any label is content.
Source: 2210.03629, with JSON arguments instead of one string.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from envgym.core.messages import Action, ToolCall
from envgym.parsing.call_forms import read_arguments
from envgym.parsing.formats import (
    THINK_CLOSE,
    UNCLOSED,
    build_action,
    check_round_trip,
    compact,
    join_thinking,
    list_tools,
    split_thinking,
    unclosed_thinking,
    without_fence,
)
from envgym.parsing.strict_json import read_json
from envgym.tools import ToolSpec

_LABEL = re.compile(r"^[ \t]*(Thought|Action Input|Action|Observation|Final Answer)[ \t]*:", re.MULTILINE)
_CALL_LABELS = ("Action", "Action Input")
_FORM = 'Action: TOOL\nAction Input: {"ARGUMENT": VALUE}'


@dataclass(frozen=True, slots=True)
class React:
    """The format of prompted agents that think aloud."""

    name: ClassVar[str] = "react"

    def parse(self, text: str) -> Action:
        """Read `text`; `Thought:` is thinking, `Final Answer:` takes all that follows as content."""
        thinking, rest = split_thinking(text)
        unclosed = unclosed_thinking(text) if thinking is not None and not rest else None
        if unclosed is not None and any(label in _CALL_LABELS for label, _ in _split(unclosed)[1]):
            reason = UNCLOSED.format(close=THINK_CLOSE, form=f"\n{_FORM}")
            return build_action(text, thinking=thinking, pieces=(), calls=(), malformed=[reason])
        before, parts = _split(rest)
        if not parts:
            return build_action(text, thinking=thinking, pieces=[rest], calls=(), malformed=())
        thoughts = [] if thinking is None else [thinking]
        thoughts += [body for label, body in parts if label == "Thought" and body]
        answers = [body for label, body in parts if label == "Final Answer"]
        asks = [part for part in parts if part[0] in _CALL_LABELS]
        calls, malformed = _read_calls(asks)
        if asks and answers:
            malformed = ["Write either an Action or a Final Answer, not both; nothing was run."]
            calls = []
        elif not asks and not answers:
            malformed = [f"Go on after the thought: write\n{_FORM}\nor\nFinal Answer: YOUR ANSWER"]
        content = answers[0] if answers and not asks else before
        joined = "\n".join(thoughts) or None
        return build_action(text, thinking=joined, pieces=[content], calls=calls, malformed=malformed)

    def write(self, action: Action) -> str:
        """Write the labels. Raises: InvalidInput: content or thinking hold labels, or a name is not one line."""
        lines = [] if action.thinking is None else [f"Thought: {action.thinking}"]
        if action.tool_calls:
            lines[:0] = [action.content] if action.content else []
            lines += [f"Action: {call.name}\nAction Input: {compact(call.arguments)}" for call in action.tool_calls]
        else:
            lines.append(f"Final Answer: {action.content}")
        return check_round_trip(join_thinking(None, "\n".join(lines)), action, self.parse)

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        final = "Thought: what you think\nFinal Answer: your answer"
        if not tools:
            return f"Answer in this form:\n{final}"
        return (
            "You may call these tools; each line is the JSON schema of one:\n"
            f"{list_tools(tools)}\n"
            f"To call a tool, write\nThought: what you think\n{_FORM}\n"
            "Then stop: the result comes in the next message. When you are done, write\n"
            f"{final}"
        )


def _split(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return (text before the first label, [(label, body)]), up to an observation or through the final answer."""
    labels = list(_LABEL.finditer(text))
    if not labels:
        return text, []
    parts: list[tuple[str, str]] = []
    for index, label in enumerate(labels):
        if label[1] == "Observation":
            break
        if label[1] == "Final Answer":
            parts.append((label[1], text[label.end() :].strip()))
            break
        end = labels[index + 1].start() if index + 1 < len(labels) else len(text)
        parts.append((label[1], text[label.end() : end].strip()))
    return text[: labels[0].start()].strip(), parts


def _read_calls(asks: Sequence[tuple[str, str]]) -> tuple[list[ToolCall], list[str]]:
    """Return (calls, malformed) of the alternating actions and inputs; an action without input has no arguments."""
    calls: list[ToolCall] = []
    malformed: list[str] = []
    for index, (label, body) in enumerate(asks):
        if label == "Action Input":
            if index == 0 or asks[index - 1][0] != "Action":
                malformed.append(f"An Action Input must follow its Action. Write\n{_FORM}")
            continue
        has_input = index + 1 < len(asks) and asks[index + 1][0] == "Action Input"
        try:
            calls.append(_read_call(body, asks[index + 1][1] if has_input else ""))
        except ValueError as error:
            malformed.append(f"An Action could not be read: {error}. Write\n{_FORM}")
    return calls, malformed


def _read_call(name: str, raw: str) -> ToolCall:
    if not name or "\n" in name:
        raise ValueError("Action must hold the name of one tool, on one line")
    inner = without_fence(raw)
    return ToolCall(name=name, arguments=read_arguments(read_json(inner) if inner else None))
