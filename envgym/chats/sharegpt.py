"""Messages in ShareGPT's form: `{"from": "human", "value": ...}`, as many chat data sets have it.

A call is JSON in a `function_call` entry, or `<tool_call>` text of a `gpt` entry. Thinking is `<think>` text. A call
has no id, and a result names neither its call nor its tool.
"""

import re
from typing import Final

from envgym.chats.fields import Json, check_held, decode, present_fields, read_role, read_text, refusal, text_parts
from envgym.chats.openai import read_call
from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, Message, Role, ToolCall
from envgym.errors import InvalidInput
from envgym.parsing.formats import THINK_CLOSE, THINK_OPEN, compact, join_thinking, split_thinking
from envgym.parsing.hermes import OPEN, Hermes

_FORM = "ShareGPT"
_CALL: Final = "function_call"
_NAMES = {Role.SYSTEM: "system", Role.USER: "human", Role.ASSISTANT: "gpt", Role.TOOL: "observation"}
_ROLES = {name: role for role, name in _NAMES.items()} | {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "chatgpt": Role.ASSISTANT,
    "model": Role.ASSISTANT,
    _CALL: Role.ASSISTANT,
    "tool": Role.TOOL,
    "tool_response": Role.TOOL,
    "function_response": Role.TOOL,
}
_RESPONSES = re.compile(r"\s*(?:<tool_response>(?:(?!</?tool_response>).)*</tool_response>\s*)+", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_HERMES = Hermes()


def write_sharegpt(message: Message) -> Json:
    """Write a message that `read_sharegpt` reads as an equal one. Raises: InvalidInput: the form cannot hold it."""
    text_parts(message, _FORM)
    name, value = _NAMES[message.role], message.content
    if message.role is Role.ASSISTANT:
        name, value = _write_answer(message)
    again = _read_value(message.role, name, value, where=f"{message.role} message")
    if len(again) != 1:
        must, do = "be one result", "choose another form"
        raise InvalidInput.of("content of the tool message", must, value, where=f"{_FORM} form", do=do)
    check_held(message, again[0], _FORM)
    return {"from": name, "value": value}


def _write_answer(message: Message) -> tuple[str, str]:
    """Return speaker and value of an assistant message."""
    content, thinking, calls = message.content, message.thinking, message.tool_calls
    if calls and not content and thinking is None:
        listed: list[JsonValue] = [{"name": call.name, "arguments": call.arguments} for call in calls]
        return _CALL, compact(listed[0] if len(listed) == 1 else listed)
    return "gpt", answer_text(message)


def answer_text(message: Message) -> str:
    """Return an assistant message as one text, with thinking and calls between tags."""
    content, thinking, calls = message.content, message.thinking, message.tool_calls
    if calls:
        return _HERMES.join(Action("", content=content, thinking=thinking, tool_calls=calls))
    return content if thinking is None else join_thinking(thinking, content)


def read_sharegpt(data: object, *, where: str) -> tuple[Message, ...]:
    """Read an entry: one message, or several results that stand in one entry between `<tool_response>` tags.

    Raises: InvalidInput: it cannot be read, in one sentence.
    """
    fields = present_fields(data, "message", where)
    name = fields.get("from", fields.get("role"))
    role = read_role(name, _ROLES, "from", where)
    return _read_value(role, name, read_text(fields.get("value", fields.get("content", "")), "value", where), where)


def _read_value(role: Role, name: object, value: str, where: str) -> tuple[Message, ...]:
    if role is Role.TOOL and _RESPONSES.fullmatch(value):
        return tuple(Message(role=role, content=text) for text in _RESPONSE.findall(value))
    if role is not Role.ASSISTANT:
        return (Message(role=role, content=value),)
    if name == _CALL and value.strip()[:1] in ("{", "["):
        return (Message(role=role, tool_calls=_read_calls(value, where)),)
    if OPEN in value or name == _CALL:
        return (_read_call_text(value, where),)
    thinking, content = None, value
    if value.lstrip().startswith(THINK_OPEN) and THINK_CLOSE in value:
        thinking, content = split_thinking(value)
    return (Message(role=role, content=content, thinking=thinking),)


def _read_calls(text: str, where: str) -> tuple[ToolCall, ...]:
    """Read one call, or a list of calls, of JSON."""
    value = decode(text, _CALL, where)
    calls = value if isinstance(value, list) else [value]
    if not calls:
        raise refusal(_CALL, "hold a call", text, where)
    return tuple(read_call(call, where=where) for call in calls)


def _read_call_text(text: str, where: str) -> Message:
    """Read calls between tags, with thinking and content."""
    action = _HERMES.parse(text)
    if action.malformed or not action.tool_calls:
        got = f"{text} ({action.malformed[0] if action.malformed else 'no call'})"
        raise refusal("tool call", "be readable", got, where)
    return action.message
