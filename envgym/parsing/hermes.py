"""Hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Qwen, Hermes and many others are trained.

Read with tolerance if only one reading exists: several objects or a list between one pair of tags, a code fence around
the JSON, `parameters` for `arguments`, arguments encoded twice, no arguments at all, line breaks inside strings, and a
last call whose closing tag was cut off. Calls in the forms of other models are read too, if their form holds JSON or
the parameter tags of Qwen3-Coder (`envgym.parsing.call_forms`). Any other form is answered with a reason. Python
literals are no JSON: a string that a model writes with single quotes has more than one reading.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from envgym.core.messages import Action, ToolCall
from envgym.parsing.call_forms import read_bare_calls, read_call, read_calls, read_functions, read_named_calls
from envgym.parsing.formats import check_round_trip, compact, explain_tagged, join_parts, parse_tagged
from envgym.parsing.strict_json import read_json_at
from envgym.tools import ToolSpec

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_MISTRAL = "[TOOL_CALLS]"
_FUNCTION = "<function="
_PHI = "functools[{"
_BEGIN = r"(?:[\u2581_](?:section[\u2581_])?(?:begin|start))?"
_MARKS = rf"[|\uff5c]?(?:minimax:|DSML\uff5c|start_)?(?:tool|function)[\u2581_]calls?{_BEGIN}[|\uff5c]?>"
_ACTIONS = r"(?:tools|(?:\|action_start\|>\s{0,3}<)?\|plugin\||\|START_ACTION\|)>(?=\s{0,9}[\[{])"
"""How calls begin in the forms of other models, after `<`."""
_TAG = re.compile(rf"<(?:(/?)tool_call>|function=|\|python_tag\|>|\|channel\|>commentary to=|{_MARKS}|{_ACTIONS})")
_ANY_TAG = re.compile(rf"{_TAG.pattern}|\[TOOL_CALLS\]|functools(?=\[\{{)")
_BODY = re.compile(r"\s*(?:(<function=)|```\w*\s*)?")
_END = re.compile(r"\s*(?:```\s*)?(?:</tool_call>|\Z|(?=<tool_call>))")
_ORPHAN = re.compile(r"\s*</tool_call>")
_OTHER_END = re.compile(
    r"\s*(?:</(?:tool|function)_calls?>|</tools>|<\|(?:action_end|END_ACTION)\|>|<\|/?tool_call(?:_end)?\|?>|<\|e(?:om|ot)_id\|>)?"
)
_BARE = frozenset("{[` \n")
"""Characters with which a call without tags begins."""
_FORM = f'{OPEN}{{"name": "<tool>", "arguments": {{"<argument>": <value>}}}}{CLOSE}'


@dataclass(frozen=True, slots=True)
class Hermes:
    """The format that `Env.step` reads from a plain string."""

    name: ClassVar[str] = "hermes"

    def parse(self, text: str) -> Action:
        """Read `text`; calls inside unfinished thinking are run only if they end the message."""
        is_listed = "[" in text and (_MISTRAL in text or _PHI in text)
        if not is_listed and "<" not in text and text[:1] not in _BARE:
            return Action(str(text))  # as most answers are
        action = parse_tagged(text, _ANY_TAG if is_listed else _TAG, _read_block, _FORM)
        if action.content[:1] not in _BARE or action.tool_calls or action.malformed:
            return action
        calls, malformed = read_bare_calls(action.content, _FORM)
        if not calls and not malformed:
            return action
        content = "" if calls else action.content
        return Action(text, content=content, thinking=action.thinking, tool_calls=calls, malformed=malformed)

    def write(self, action: Action) -> str:
        """Write thinking, content, calls. Raises: InvalidInput: a call has an id, or the content holds tags."""
        return check_round_trip(self.join(action), action, self.parse)

    def join(self, action: Action) -> str:
        """Return the text that `write` returns, without a check that reading it gives the action."""
        return join_parts(action, [f"{OPEN}\n{_write_call(call)}\n{CLOSE}" for call in action.tool_calls])

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        how = f"To call a tool, write the call as JSON between tags, one pair of tags per call:\n{_FORM}"
        return explain_tagged(tools, how)


def _read_block(text: str, opening: re.Match[str]) -> tuple[list[ToolCall], int]:
    """Read the calls after an opening tag; return them and where the text continues. Raises: ValueError: one clause."""
    mark = opening[0]
    if mark == OPEN:
        return _read_tagged(text, opening.end())
    if mark == _FUNCTION:
        calls, end = read_functions(text, opening.start())
        orphan = _ORPHAN.match(text, end)
        return calls, orphan.end() if orphan else end
    if mark == _MISTRAL:
        return read_named_calls(text, opening.end())
    calls, end = read_calls(text, opening.end())
    closing = _OTHER_END.match(text, end)
    return calls, closing.end() if closing else end


def _read_tagged(text: str, start: int) -> tuple[list[ToolCall], int]:
    """Read what stands between `<tool_call>` and its closing tag. Raises: ValueError: one clause."""
    body = _BODY.match(text, start)
    assert body is not None, "the pattern matches every text"
    if body[1]:
        calls, end = read_functions(text, start)
    else:
        value, end = read_json_at(text, body.end())
        closing = _END.match(text, end)
        if closing is not None and not isinstance(value, list):
            return [read_call(value)], closing.end()
        calls, end = read_calls(text, start)
    closing = _END.match(text, end)
    if closing is None:
        raise ValueError(f"the JSON object must be followed by {CLOSE}, not by {text[end : end + 20].strip()!r}")
    return calls, closing.end()


def _write_call(call: ToolCall) -> str:
    """Write the JSON of a call; `</` is escaped as JSON allows, so that no string can close a tag."""
    return compact({"name": call.name, "arguments": call.arguments}).replace("</", "<\\/")
