"""The chat-completions protocol: messages and tools to JSON, and a response back to an action. No I/O."""

import json
from collections.abc import Mapping, Sequence
from typing import Any  # JSON that was just decoded; every access below is checked

from envgym.agents.protocols import FinishReason
from envgym.agents.rollout.messages import MessageReply
from envgym.core.messages import Action, Message, Role, ToolCall, text_of
from envgym.parsing.hermes import read_arguments
from envgym.tools import ToolSpec

Json = dict[str, Any]


class BadResponse(ValueError):
    """The body is not what the protocol promises."""


def tool_to_wire(spec: ToolSpec) -> Json:
    """Write a tool as the protocol lists it."""
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


def messages_to_wire(messages: Sequence[Message]) -> list[Json]:
    """Write a conversation. What answers no call (the reason why one could not be read) is said by the user."""
    return [_message_to_wire(message) for message in messages]


def _message_to_wire(message: Message) -> Json:
    if message.role is Role.TOOL and message.tool_call_id is None:
        return {"role": Role.USER.value, "content": text_of(message)}
    data: Json = {"role": message.role.value, "content": text_of(message)}
    if message.tool_calls:
        data["tool_calls"] = [_call_to_wire(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    return data


def _call_to_wire(call: ToolCall) -> Json:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def read_response(body: object) -> MessageReply:
    """Read a response. Raises: BadResponse: a clause that says what is missing."""
    choices = _of(body, "choices", list, "the response")
    if not choices:
        raise BadResponse("the response holds no choice")
    message = _of(choices[0], "message", dict, "the choice")
    usage = body.get("usage") if isinstance(body, Mapping) else None
    finish = choices[0].get("finish_reason")
    return MessageReply(
        action=_action(message),
        finish_reason=FinishReason.LENGTH if finish == "length" else FinishReason.STOP,
        prompt_tokens=_count(usage, "prompt_tokens"),
        cached_tokens=_count(
            usage.get("prompt_tokens_details") if isinstance(usage, Mapping) else None, "cached_tokens"
        ),
        completion_tokens=_count(usage, "completion_tokens"),
    )


def _action(message: Mapping[str, Any]) -> Action:
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise BadResponse("the content is no text")
    thinking = next((message[key] for key in ("reasoning_content", "reasoning") if message.get(key)), None)
    calls: list[ToolCall] = []
    malformed: list[str] = []
    written = [content] if content else []
    kept = list(written)
    for index, item in enumerate(message.get("tool_calls") or ()):
        function = _of(item, "function", dict, "the tool call")
        name, arguments = function.get("name"), function.get("arguments")
        text = f"{name}({arguments})"
        written.append(text)
        try:
            calls.append(
                ToolCall(name=str(name), arguments=read_arguments(arguments), id=item.get("id") or f"call_{index}")
            )
        except ValueError as error:
            malformed.append(f"The arguments of a call of {name} could not be read: {error}. Write one JSON object.")
            kept.append(text)  # else the model would not see in later turns what it did wrong
    return Action(
        "\n".join(written),
        content="\n".join(kept),
        thinking=str(thinking) if thinking is not None else None,
        tool_calls=calls,
        malformed=malformed,
    )


def _of(holder: object, key: str, kind: type, where: str) -> Any:  # checked here
    value = holder.get(key) if isinstance(holder, Mapping) else None
    if not isinstance(value, kind):
        raise BadResponse(f"{where} holds no {key}")
    return value


def _count(holder: object, key: str) -> int:
    value = holder.get(key) if isinstance(holder, Mapping) else None
    return value if isinstance(value, int) else 0


def says_context_is_full(body: object) -> bool:
    """Return whether an error says that the conversation is longer than the model's context."""
    error = body.get("error") if isinstance(body, Mapping) else None
    code = error.get("code") if isinstance(error, Mapping) else None
    return code == "context_length_exceeded" or "maximum context length" in error_text(body)


def error_text(body: object) -> str:
    """Return what an error body says, in whatever shape it comes."""
    if isinstance(body, Mapping):
        error = body.get("error", body.get("message", body))
        if isinstance(error, Mapping):
            error = error.get("message", error)
        return str(error)
    return str(body)
