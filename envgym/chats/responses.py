"""Messages as the items of OpenAI's Responses: one message of the assistant may be several items.

An item of reasoning begins a message of the assistant, text and calls that follow belong to it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from envgym.chats.fields import Json, check_held, present_fields, read_list, read_role, read_text, refusal, text_parts
from envgym.chats.openai import read_call
from envgym.core.messages import Message, Role, TextPart
from envgym.tools import ToolSpec

_FORM: Final = "Responses"
_ROLES: Final = {role.value: role for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT)} | {"developer": Role.SYSTEM}
_TEXTS: Final = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def write_items(message: Message) -> list[Json]:
    """Write a message as items that `read_items` reads as an equal one.

    Raises: InvalidInput: the form cannot hold it.
    """
    items = list(_items(message))
    again = read_items(items, where=f"{message.role} message")
    check_held(message, again[0] if len(again) == 1 else Message(role=Role.SYSTEM), _FORM)
    return items


def _items(message: Message) -> Iterable[Json]:
    parts = text_parts(message, _FORM)
    if message.role is Role.TOOL:
        output: object = parts[0].text if len(parts) == 1 else [_part("input_text", part) for part in parts]
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": output}
        return
    is_reply = message.role is Role.ASSISTANT
    if is_reply and message.thinking is not None:
        text: Json = {"type": "reasoning_text", "text": message.thinking}
        yield {"type": "reasoning", "summary": [], "content": [text]}
    if parts or not (is_reply and message.tool_calls):
        kind = "output_text" if is_reply else "input_text"
        content = [_part(kind, part) for part in parts]
        yield {"type": "message", "role": message.role.value, "content": content}
    for call in message.tool_calls if is_reply else ():
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}


def _part(kind: str, part: TextPart) -> Json:
    return {"type": kind, "text": part.text, **({"annotations": []} if kind == "output_text" else {})}


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_items(value: object, *, where: str, tools: Mapping[str, ToolSpec] | None = None) -> tuple[Message, ...]:
    """Read the input of a request: a text of the user, or a list of items.

    Args:
        value: the input, decoded.
        where: names it in errors.
        tools: those of the conversation.

    Raises: InvalidInput: it cannot be read, in one sentence.
    """
    if isinstance(value, str):
        return (Message(role=Role.USER, content=value),)
    messages: list[Message] = []
    is_open = False  # whether further items belong to the last message
    for index, item in enumerate(read_list(value, "input", where)):
        place = f"{where}[{index}]"
        piece = _read_item(present_fields(item, "item", place), place, tools or {})
        if is_open and _continues(messages[-1], piece):
            piece = _joined(messages.pop(), piece)
        messages.append(piece)
        is_open = piece.role is Role.ASSISTANT
    return tuple(messages)


def _continues(message: Message, piece: Message) -> bool:
    """Return whether a piece belongs to the message before it: it comes later in the order reasoning, text, calls."""
    return (
        piece.role is Role.ASSISTANT
        and _rank(piece) >= _rank(message)
        and (bool(piece.tool_calls) or _rank(piece) > _rank(message))
    )


def _rank(message: Message) -> int:
    return 2 if message.tool_calls else 0 if message.thinking is not None and not message.parts else 1


def _joined(message: Message, piece: Message) -> Message:
    return Message(
        role=Role.ASSISTANT,
        parts=(*message.parts, *piece.parts),
        thinking=message.thinking,
        tool_calls=(*message.tool_calls, *piece.tool_calls),
    )


def _read_item(item: Json, where: str, tools: Mapping[str, ToolSpec]) -> Message:
    match item.get("type", "message"):
        case "message":
            role = read_role(item.get("role"), _ROLES, "role", where)
            return Message(role=role, parts=_read_parts(item.get("content", ""), where))
        case "reasoning":
            texts = item.get("content", item.get("summary", ""))
            thinking = "".join(part.text for part in _read_parts(texts, where))
            return Message(role=Role.ASSISTANT, thinking=thinking)
        case "function_call":
            fields: Json = {"id": item.get("call_id"), "name": item.get("name"), "arguments": item.get("arguments")}
            call = read_call(fields, where=where, tools=tools)
            return Message(role=Role.ASSISTANT, tool_calls=(call,))
        case "function_call_output":
            call_id = item.get("call_id")
            return Message(
                role=Role.TOOL,
                parts=_read_parts(item.get("output", ""), where),
                tool_call_id=None if call_id is None else read_text(call_id, "call_id", where),
            )
        case kind:
            must = "be a message, reasoning, function_call or function_call_output"
            raise refusal("type of an item", must, kind, where)


def _read_parts(content: object, where: str) -> tuple[TextPart, ...]:
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    return tuple(_read_part(part, where) for part in _listed(content, where))


def _listed(content: object, where: str) -> Sequence[object]:
    if not isinstance(content, list):
        raise refusal("content", "be text", content, where)
    return content


def _read_part(part: object, where: str) -> TextPart:
    kind = part.get("type") if isinstance(part, Mapping) else part
    if isinstance(part, Mapping) and kind == "refusal":
        return TextPart(read_text(part.get("refusal"), "refusal of a part", where))
    if not isinstance(part, Mapping) or kind not in _TEXTS:
        raise refusal("content", f"hold parts of type {', '.join(_TEXTS)}", kind, where)
    return TextPart(read_text(part.get("text"), "text of a part", where))
