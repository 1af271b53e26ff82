"""Messages, tool calls and tools in the forms of inspect-ai, which is imported when they are first used."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from envgym.chats.fields import plain_json
from envgym.core.json_types import JsonObject
from envgym.core.messages import Action, Message, Role, ToolCall
from envgym.errors import InvalidInput
from envgym.played import call_action
from envgym.tools import ToolSpec

if TYPE_CHECKING:  # of the extra `inspect`
    from inspect_ai.model import ChatMessage, ChatMessageAssistant
    from inspect_ai.tool import ToolInfo

NOT_RUN = "Not run."
"""The result of a call to which the environment has not replied."""


def to_inspect(message: Message) -> "ChatMessage":
    """Write a message. A tool message that answers no call becomes one of the user."""
    from inspect_ai.model import ChatMessageSystem, ChatMessageTool, ChatMessageUser
    from inspect_ai.tool import ToolCallError

    if message.role is Role.ASSISTANT:
        return assistant_to_inspect(message)
    if message.role is Role.SYSTEM:
        return ChatMessageSystem(content=message.content)
    if message.role is Role.USER or message.tool_call_id is None:
        return ChatMessageUser(content=message.content)
    error = ToolCallError("unknown", message.content) if message.is_error else None
    return ChatMessageTool(
        content=message.content, tool_call_id=message.tool_call_id, function=message.name, error=error
    )


def assistant_to_inspect(message: Message) -> "ChatMessageAssistant":
    """Write a message of the assistant; a call without an id gets its number."""
    from inspect_ai.model import ChatMessageAssistant, ContentReasoning, ContentText
    from inspect_ai.tool import ToolCall as InspectCall

    calls = [
        InspectCall(id=call_id(call, number), function=call.name, arguments=plain_json(call.arguments))
        for number, call in enumerate(message.tool_calls)
    ]
    content: Any = message.content  # text, or parts
    if message.thinking:
        content = [ContentReasoning(reasoning=message.thinking), ContentText(text=message.content)]
    return ChatMessageAssistant(content=content, tool_calls=calls or None)


def call_id(call: ToolCall, number: int) -> str:
    """Return the id of a call of a message: its own, or else one made from its number."""
    return call.id or f"call_{number}"


def from_inspect(message: "ChatMessage", *, where: str) -> Message:
    """Read a message. Raises: InvalidInput: it holds a part that is neither text nor reasoning."""
    for part in message.content if isinstance(message.content, list) else ():
        if part.type not in ("text", "reasoning"):
            do = "choose a task of texts"
            raise InvalidInput.of("message", "hold only text", part.type, where=where, do=do)
    role = Role(message.role)
    is_assistant, is_tool = role is Role.ASSISTANT, role is Role.TOOL
    return Message(
        role=role,
        content=message.text,
        thinking=thinking_of(message) if is_assistant else None,
        tool_calls=_calls_of(message) if is_assistant else (),
        tool_call_id=message.tool_call_id if is_tool else None,
        name=message.function if is_tool else None,
        is_error=is_tool and message.error is not None,
    )


def thinking_of(message: "ChatMessage") -> str | None:
    """Return the reasoning that a message keeps apart from its text."""
    if isinstance(message.content, str):
        return None
    return "\n\n".join(part.reasoning for part in message.content if part.type == "reasoning") or None


def _calls_of(message: "ChatMessageAssistant") -> tuple[ToolCall, ...]:
    """Return the calls of a message that could be read."""
    calls = message.tool_calls or ()
    return tuple(ToolCall(name=it.function, arguments=it.arguments, id=it.id) for it in calls if not it.parse_error)


def action_of(message: "ChatMessageAssistant") -> Action:
    """Return the action that a message of the model is."""
    content, thinking = message.text, thinking_of(message)
    if not message.tool_calls:
        return Action(content, thinking=thinking)
    calls = _calls_of(message)
    malformed = [f"{it.function}: {it.parse_error}" for it in message.tool_calls if it.parse_error]
    text = "\n".join(part for part in (content, call_action(calls)) if part)
    return Action(text, content=content, thinking=thinking, tool_calls=calls, malformed=malformed)


def replies_of(messages: Iterable[Message], request: "ChatMessageAssistant") -> "list[ChatMessage]":
    """Return the reply of an environment to a message of the model; each call of it is answered."""
    from inspect_ai.model import ChatMessageTool
    from inspect_ai.tool import ToolCallError

    calls = request.tool_calls or []
    unreadable = [call.id for call in calls if call.parse_error]
    replies = []
    for message in messages:
        if message.role is Role.TOOL and message.tool_call_id is None and unreadable:
            message = Message(
                role=Role.TOOL, content=message.content, tool_call_id=unreadable.pop(0), is_error=message.is_error
            )
        replies.append(to_inspect(message))
    answered = {reply.tool_call_id for reply in replies if reply.role == "tool"}
    error = ToolCallError("unknown", NOT_RUN)
    missing = [
        ChatMessageTool(content=NOT_RUN, tool_call_id=call.id, function=call.function, error=error)
        for call in calls
        if call.id not in answered
    ]
    return [*missing, *replies]


def results_of(action: Action, messages: Sequence[Message]) -> "list[ChatMessage]":
    """Return the results of an action's calls, in order, with the ids that `assistant_to_inspect` gives the calls."""
    ids = [call_id(call, number) for number, call in enumerate(action.tool_calls)]
    named = [
        Message(role=Role.TOOL, content=it.content, tool_call_id=new_id, name=it.name, is_error=it.is_error)
        for it, new_id in zip(messages, ids, strict=False)
    ]
    return [to_inspect(message) for message in (*named, *messages[len(ids) :])]


def tool_infos(specs: Sequence[ToolSpec]) -> "list[ToolInfo]":
    """Return the tools of an environment."""
    from inspect_ai.tool import ToolInfo, ToolParams

    infos = []
    for spec in specs:
        schema = plain_json(spec.parameters)
        fields: JsonObject = {key: schema[key] for key in ("properties", "required") if key in schema}
        infos.append(ToolInfo(name=spec.name, description=spec.description, parameters=ToolParams(**fields)))
    return infos
