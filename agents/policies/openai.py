"""A message-level policy over any endpoint that speaks the OpenAI chat-completions protocol.

Use it as an async context manager.
"""

import asyncio
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envgym.agents.policies.endpoint import BadResponse, Endpoint, Json, Sleep, error_text, get_nested, read_count
from envgym.agents.protocols import FinishReason
from envgym.agents.rendering.template import listed_tools
from envgym.agents.rollout.messages import MessagePolicy, MessageReply, MessageRequest
from envgym.agents.settings import EndpointSettings
from envgym.core.messages import Action, Message, Role, ToolCall, text_of
from envgym.parsing.hermes import read_arguments

_SEED_BITS = 0x7FFFFFFF
"""Seeds are sent as 31 bits: some endpoints take no more."""
TOP_LOGPROBS = 20
"""Most that the protocol allows."""
_ROUNDING = 1e-3
"""Log-probs may be above 0 by so much."""


class OpenAIPolicy(MessagePolicy):
    """Asks an endpoint, within its limits."""

    def __init__(
        self, settings: EndpointSettings, *, sleep: Sleep = asyncio.sleep, jitter: Callable[[], float] = random.random
    ) -> None:
        """Prepare to ask; arguments and errors are those of `Endpoint`."""
        self.settings = settings
        self._endpoint = Endpoint(settings, sleep=sleep, jitter=jitter)

    async def __aexit__(self, *error: object) -> None:
        """Close the connections."""
        await self._endpoint.close()

    async def reply(self, request: MessageRequest) -> MessageReply:
        """Answer one conversation. Raises: PolicyFailure: refused, or still failing after the last attempt."""
        return await self._endpoint.post(
            "/chat/completions", self._body(request), read_response, read_refusal=_read_full_context
        )

    async def first_token_probabilities(self, request: MessageRequest) -> Mapping[str, float]:
        """Return the most probable first tokens of a reply with their probabilities, at most `TOP_LOGPROBS` of them.

        Raises: PolicyFailure: as `reply`; also where the endpoint states no log-probs.
        """
        body = self._body(request) | {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        return await self._endpoint.post("/chat/completions", body, read_first_token)

    def _body(self, request: MessageRequest) -> Json:
        settings, sampling = self.settings, request.sampling
        body: Json = {
            "model": settings.model,
            "messages": messages_to_wire(request.messages),
            settings.max_tokens_field: sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "seed": request.seed & _SEED_BITS,
        }
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if request.tools:
            body["tools"] = listed_tools(request.tools)
        return body


# ---- messages as JSON, and a response as an action -------------------------------------------------------------------


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
    finish = choices[0].get("finish_reason")
    return MessageReply(
        action=_action(message),
        finish_reason=FinishReason.LENGTH if finish == "length" else FinishReason.STOP,
        prompt_tokens=read_count(body, "usage", "prompt_tokens"),
        cached_tokens=read_count(body, "usage", "prompt_tokens_details", "cached_tokens"),
        completion_tokens=read_count(body, "usage", "completion_tokens"),
    )


def read_first_token(body: object) -> Mapping[str, float]:
    """Read the probabilities of a reply's first token. Raises: BadResponse: a clause that says what is missing."""
    choices = _of(body, "choices", list, "the response")
    if not choices:
        raise BadResponse("the response holds no choice")
    tokens = _of(_of(choices[0], "logprobs", dict, "the choice"), "content", list, "the log-probs")
    if not tokens:
        raise BadResponse("the log-probs hold no token")
    found: dict[str, float] = {}
    for item in _of(tokens[0], "top_logprobs", list, "the first token"):
        token, logprob = get_nested(item, "token"), get_nested(item, "logprob")
        if not isinstance(token, str) or not isinstance(logprob, int | float) or not logprob <= _ROUNDING:
            raise BadResponse("a log-prob is no number up to 0")
        found[token] = found.get(token, 0.0) + math.exp(logprob)
    return found


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
    value = get_nested(holder, key)
    if not isinstance(value, kind):
        raise BadResponse(f"{where} holds no {key}")
    return value


def _read_full_context(body: object) -> MessageReply | None:
    """Return the reply to a conversation that is too long; None: it is refused for another reason."""
    code = get_nested(body, "error", "code")
    if code == "context_length_exceeded" or "maximum context length" in error_text(body):
        return MessageReply(action=Action(), finish_reason=FinishReason.LENGTH, context_is_full=True)
    return None
