"""Messages in the form of Anthropic's Messages: results of tools are blocks of a user's message.

One entry may thus be several messages. Standing instructions are a field of their own, `system`, and are read apart.
"""

from collections.abc import Mapping
from typing import Final

from envgym.chats.fields import (
    Json,
    check_held,
    plain_json,
    present_fields,
    read_list,
    read_role,
    read_text,
    refusal,
    text_parts,
)
from envgym.chats.openai import read_call
from envgym.core.messages import Message, Role, TextPart
from envgym.tools import ToolSpec

_FORM: Final = "Anthropic"
_ROLES: Final = {role.value: role for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT)}


def write_anthropic(message: Message) -> Json:
    """Write a message as an entry that `read_anthropic` reads as an equal one.

    Raises: InvalidInput: the form cannot hold it.
    """
    data: Json = {"role": "user" if message.role is Role.TOOL else message.role.value, "content": write_blocks(message)}
    again = read_anthropic(data, where=f"{message.role} message")
    check_held(message, again[0] if len(again) == 1 else Message(role=Role.SYSTEM), _FORM)
    return data


def write_blocks(message: Message) -> list[Json]:
    """Write the content of a message. Raises: InvalidInput: a part is no text."""
    texts: list[Json] = [{"type": "text", "text": part.text} for part in text_parts(message, _FORM)]
    if message.role is Role.TOOL:
        result: Json = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": texts}
        return [result | ({"is_error": True} if message.is_error else {})]
    if message.role is not Role.ASSISTANT:
        return texts
    thinking: list[Json] = []
    if message.thinking is not None:
        thinking = [{"type": "thinking", "thinking": message.thinking, "signature": ""}]
    calls: list[Json] = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": plain_json(call.arguments)}
        for call in message.tool_calls
    ]
    return [*thinking, *texts, *calls]


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_anthropic(data: object, *, where: str, tools: Mapping[str, ToolSpec] | None = None) -> tuple[Message, ...]:
    """Read an entry: one message, or results of tools and the text of the user between them.

    Args:
        data: the entry, decoded.
        where: names it in errors.
        tools: those of the conversation. Null arguments that they do not allow are left out.

    Raises: InvalidInput: it cannot be read, in one sentence.
    """
    fields = present_fields(data, "message", where)
    role = read_role(fields.get("role"), _ROLES, "role", where)
    content = fields.get("content", "")
    if isinstance(content, str):
        return (Message(role=role, content=content),)
    blocks = [present_fields(block, "block", where) for block in _blocks(content, where)]
    if role is Role.ASSISTANT:
        return (_read_reply(blocks, where, tools or {}),)
    messages: list[Message] = []
    texts: list[TextPart] = []
    for block in blocks:
        if block.get("type") != "tool_result":
            texts.append(_read_text_block(block, where))
            continue
        if texts:
            messages.append(Message(role=role, parts=texts))
            texts = []
        messages.append(_read_tool_result(block, where))
    return (*messages, Message(role=role, parts=texts)) if texts or not messages else tuple(messages)


def read_system(value: object, *, where: str) -> tuple[Message, ...]:
    """Read standing instructions: a text, or a list of blocks; none if they are empty.

    Raises: InvalidInput: they cannot be read.
    """
    if value is None or value == "" or value == []:
        return ()
    return read_anthropic({"role": "system", "content": value}, where=where)


def read_anthropic_tools(value: object, *, where: str) -> list[Json]:
    """Return the tools of a request in OpenAI's form. Raises: InvalidInput: one is no tool of the client's own."""
    tools: list[Json] = []
    for item in read_list(value, "tools", where):
        fields = present_fields(item, "tool", where)
        if fields.get("type", "custom") != "custom":
            raise refusal("type of a tool", "be custom", fields["type"], where)
        schema = fields.get("input_schema", {"type": "object", "properties": {}})
        tools.append({"name": fields.get("name"), "description": fields.get("description", ""), "parameters": schema})
    return tools


def _read_reply(blocks: list[Json], where: str, tools: Mapping[str, ToolSpec]) -> Message:
    thoughts = [read_text(item.get("thinking", ""), "thinking", where) for item in blocks if _is_kind(item, "thinking")]
    calls = tuple(
        read_call({**item, "arguments": item.get("input")}, where=where, tools=tools)
        for item in blocks
        if _is_kind(item, "tool_use")
    )
    texts = [item for item in blocks if item.get("type") not in ("thinking", "redacted_thinking", "tool_use")]
    return Message(
        role=Role.ASSISTANT,
        parts=[_read_text_block(block, where) for block in texts],
        thinking="".join(thoughts) if thoughts else None,
        tool_calls=calls,
    )


def _is_kind(block: Json, kind: str) -> bool:
    return block.get("type") == kind


def _read_tool_result(block: Json, where: str) -> Message:
    content, call_id = block.get("content", ""), block.get("tool_use_id")
    parts = [TextPart(content)] if isinstance(content, str) and content else []
    if not isinstance(content, str):
        parts = [_read_text_block(present_fields(part, "block", where), where) for part in _blocks(content, where)]
    return Message(
        role=Role.TOOL,
        parts=parts,
        tool_call_id=None if call_id is None else read_text(call_id, "tool_use_id", where),
        is_error=block.get("is_error") is True,
    )


def _read_text_block(block: Json, where: str) -> TextPart:
    if block.get("type") != "text":
        raise refusal(
            "content", "hold blocks of type text, tool_use, tool_result or thinking", block.get("type"), where
        )
    return TextPart(read_text(block.get("text", ""), "text of a block", where))


def _blocks(content: object, where: str) -> list[object]:
    if not isinstance(content, list):
        raise refusal("content", "be text or a list of blocks", content, where)
    return content
