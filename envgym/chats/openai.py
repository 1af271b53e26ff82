"""Messages and tools in the form of OpenAI's chat completions, which endpoints, fine-tuning files and templates share.

Two dialects of it are read too: arguments that are an object, as Hugging Face data sets have them, and the older
`function_call` with the role `function`. Thinking is `reasoning_content`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envgym.chats.fields import (
    Json,
    arguments_of,
    check_held,
    decode,
    plain_json,
    present_fields,
    read_list,
    read_role,
    read_text,
    refusal,
    text_parts,
    without_nulls,
)
from envgym.core.json_types import JsonObject
from envgym.core.messages import GUIDE, Message, Role, TextPart, ToolCall, text_of
from envgym.tools import ToolSpec

_FORM = "OpenAI"
_ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM, "function": Role.TOOL}
_THINKING = ("reasoning_content", "reasoning", "thinking")
MEDIA = ("audio", "audios", "image", "images", "video", "videos")
"""Keys under which rows and messages hold something other than text."""
_ENCODE = json.JSONEncoder(ensure_ascii=False).encode
_NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_openai(message: Message) -> Json:
    """Write a message that `read_openai` reads as an equal one. Raises: InvalidInput: the form cannot hold it."""
    data = message_fields(message)
    check_held(message, read_openai(data, where=f"{message.role} message"), _FORM)
    return data


def message_fields(message: Message) -> Json:
    """Write a message as `write_openai`, without a check that the form holds all of it.

    Raises: InvalidInput: a part is no text.
    """
    parts = text_parts(message, _FORM)
    is_plain = not parts or (len(parts) == 1 and parts[0].text)
    data = _written(message, message.content if is_plain else [{"type": "text", "text": part.text} for part in parts])
    if message.thinking is not None:
        data["reasoning_content"] = message.thinking
    if message.name is not None:
        data["name"] = message.name
    return data


def messages_to_wire(messages: Iterable[Message]) -> list[Json]:
    """Write a conversation for an endpoint, without thinking and names.

    A tool message that answers no call, such as the reason why a call could not be read, becomes a user message.
    """
    return [_message_to_wire(message) for message in messages]


def _message_to_wire(message: Message) -> Json:
    if message.role is Role.TOOL and message.tool_call_id is None:
        return {"role": Role.USER.value, "content": text_of(message)}
    return _written(message, text_of(message))


def _written(message: Message, content: object) -> Json:
    data: Json = {"role": message.role.value, "content": content}
    if message.tool_calls:
        data["tool_calls"] = [call_to_wire(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    return data


def call_to_wire(call: ToolCall) -> Json:
    """Write a call."""
    arguments = _ENCODE(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def listed_tools(tools: Iterable[ToolSpec]) -> list[Any]:  # JSON, as chat templates expect it
    """Return the tools in OpenAI's form."""
    return [
        {
            "type": "function",
            "function": {"name": spec.name, "description": spec.description, "parameters": plain_json(spec.parameters)},
        }
        for spec in tools
    ]


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_openai(data: object, *, where: str, tools: Mapping[str, ToolSpec] | None = None) -> Message:
    """Read a message.

    Args:
        data: the message, decoded.
        where: names it in errors.
        tools: those of the conversation. Null arguments that they do not allow are left out.

    Raises: InvalidInput: it cannot be read, in one sentence.
    """
    fields = present_fields(data, "message", where)
    role = read_role(fields.get("role"), _ROLES, "role", where)
    if media := next((key for key in MEDIA if key in fields), None):
        raise refusal("message", "be text", media, where)
    calls = _read_calls(fields, where, tools or {})
    if calls and role is not Role.ASSISTANT:
        raise refusal("tool_calls", "be of an assistant message", f"role {role}", where)
    thinking = next((fields[key] for key in _THINKING if key in fields), None) if role is Role.ASSISTANT else None
    name = fields.get("name")
    call_id = fields.get("tool_call_id") if role is Role.TOOL else None
    return Message(
        role=role,
        parts=_read_content(fields.get("content", ""), where),
        thinking=None if thinking is None else read_text(thinking, "thinking", where),
        tool_calls=calls,
        tool_call_id=None if call_id is None else read_text(call_id, "tool_call_id", where),
        name=name if isinstance(name, str) and (role is Role.TOOL or (role, name) == (Role.USER, GUIDE)) else None,
    )


def _read_content(content: object, where: str) -> tuple[TextPart, ...]:
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    if not isinstance(content, list):
        raise refusal("content", "be text", content, where)
    return tuple(TextPart(_read_part(part, where)) for part in content)


def _read_part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or part.get("type", "text") != "text":
        got = part.get("type") if isinstance(part, Mapping) else part
        raise refusal("content", "hold parts of type text", got, where)
    return read_text(part.get("text"), "text of a part", where)


def _read_calls(fields: Json, where: str, tools: Mapping[str, ToolSpec]) -> tuple[ToolCall, ...]:
    """Read the calls of a message, also one in the older form `function_call`."""
    listed = read_list(fields.get("tool_calls", []), "tool_calls", where)
    if "function_call" in fields:
        listed = [*listed, fields["function_call"]]
    return tuple(read_call(call, where=where, tools=tools) for call in listed)


def read_call(data: object, *, where: str, tools: Mapping[str, ToolSpec] | None = None) -> ToolCall:
    """Read a call: `{id, function: {name, arguments}}`, or name and arguments alone. Raises: InvalidInput: it is none.

    Arguments are JSON text, or an object. Of an object, nulls are left out as in `read_openai`.
    """
    call = present_fields(data, "tool call", where)
    function = present_fields(call.get("function", call), "function of a tool call", where)
    name = read_text(function.get("name"), "name of a tool call", where)
    arguments = function.get("arguments", {})
    spec = None if isinstance(arguments, str) else (tools or {}).get(name)
    if isinstance(arguments, str):
        arguments = decode(arguments, f"arguments of {name}", where)
    if not isinstance(arguments, Mapping):
        raise refusal(f"arguments of {name}", "be an object", arguments, where)
    call_id = call.get("id")
    return ToolCall(
        name=name,
        arguments=arguments_of(arguments, None if spec is None else spec.parameters),
        id=None if call_id is None else read_text(call_id, "id of a tool call", where),
    )


def read_tools(value: object, *, where: str) -> tuple[ToolSpec, ...]:
    """Read a list of tools: in OpenAI's form, or name, description and parameters alone; also as JSON text.

    Raises: InvalidInput: a tool cannot be read, or two have one name.
    """
    listed: Sequence[object] = read_list(value, "tools", where)
    tools = {spec.name: spec for spec in (_read_tool(item, where) for item in listed if item is not None)}
    if len(tools) < sum(item is not None for item in listed):
        raise refusal("tools", "have different names", ", ".join(tools), where)
    return tuple(tools.values())


def _read_tool(data: object, where: str) -> ToolSpec:
    tool = present_fields(data, "tool", where)
    function = present_fields(tool.get("function", tool), "function of a tool", where)
    parameters = without_nulls(function.get("parameters", _NO_PARAMETERS))
    if not isinstance(parameters, dict):
        raise refusal("parameters of a tool", "be a JSON schema of an object", parameters, where)
    return ToolSpec(
        name=read_text(function.get("name"), "name of a tool", where),
        description=read_text(function.get("description", ""), "description of a tool", where),
        parameters=parameters,
    )
