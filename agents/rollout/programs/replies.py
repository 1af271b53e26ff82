"""What one call holds and what it is answered: names of tool results, stop texts, the reply of a generation. Pure."""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from envgym.agents.loop.agent import Agent
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, first_spans
from envgym.agents.rollout.messages import MessageReply
from envgym.agents.rollout.programs.calls import CallReply, ReplyFinish
from envgym.core.messages import Action, Message, Role, ToolCall
from envgym.tools import ToolSpec

_SHOWN = 100
"""Characters of a message in a log line."""

# ---- what a client sends --------------------------------------------------------------------------------------------


def answering(
    sent: Sequence[ToolCall], sampled: Sequence[ToolCall], messages: Sequence[Message]
) -> tuple[Message, ...]:
    """Return messages in which each result of a tool has the name and the id of the call that it answers.

    Args:
        sent: the calls with the ids that the client knows; a result without one of them answers the call of its place.
        sampled: the same calls as the model's format has them.
        messages: those that follow the calls.
    """
    places = {call.id: place for place, call in enumerate(sent)}
    answered: list[Message] = []
    num_results = 0
    for message in messages:
        if message.role is Role.TOOL:
            place = places.get(message.tool_call_id, num_results)
            num_results += 1
            if place < len(sampled):
                message = _named(message, sampled[place])
        answered.append(message)
    return tuple(answered)


def _named(result: Message, call: ToolCall) -> Message:
    return Message(role=Role.TOOL, parts=result.parts, tool_call_id=call.id, name=call.name, is_error=result.is_error)


def with_tool_names(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return a conversation in which each result of a tool has its name, which some templates show."""
    named: list[Message] = []
    calls: tuple[ToolCall, ...] = ()
    start = 0
    for place, message in enumerate(messages):
        if message.role is Role.ASSISTANT:
            named += (*answering(calls, calls, messages[start:place]), message)
            start, calls = place + 1, message.tool_calls
    return (*named, *answering(calls, calls, messages[start:]))


# ---- what it is answered --------------------------------------------------------------------------------------------


def until_stop(agent: Agent, generation: Generation, stop: Sequence[str], tools: Sequence[ToolSpec]) -> Generation:
    """Return a generation up to the token that completes a stop text; all of it where there is none.

    The tokens that are left are distributed as if sampling had ended there, so they may train.

    Raises: PolicyFailure: the renderer failed.
    """

    def is_complete(num_tokens: int) -> bool:
        text = str(agent.parse(replace(generation, token_ids=generation.token_ids[:num_tokens]), tools))
        return any(item in text for item in stop)

    total = len(generation.token_ids)
    if not stop or not generation.has_tokens or not is_complete(total):
        return generation
    length = 1 + bisect_left(range(1, total), True, key=is_complete)
    raw, tops, spans = generation.raw_logprobs, generation.top_logprobs, generation.version_spans
    return replace(
        generation,
        token_ids=generation.token_ids[:length],
        behavior_logprobs=generation.behavior_logprobs[:length],
        raw_logprobs=None if raw is None else raw[:length],
        top_logprobs=None if tops is None else tops[:length],
        version_spans=first_spans(spans, length) if spans else (),
        finish_reason=FinishReason.LENGTH,
    )


def write_reply(
    number: int,
    request: GenerateRequest,
    action: Action,
    generation: Generation,
    stop: Sequence[str],
    *,
    is_stopped: bool,
    token_strings: tuple[str, ...],
) -> CallReply:
    """Return the reply to a call.

    Args:
        number: of the call, for the ids of its tool calls.
        request: what the policy was asked.
        action: what the generation says.
        generation: as it is recorded.
        stop: texts before which the content ends.
        is_stopped: whether the generation was cut at one of them.
        token_strings: [T] of the generation.
    """
    calls = tuple(replace(call, id=f"call_{number}_{place}") for place, call in enumerate(action.tool_calls))
    content, thinking = _before_first(action.content, stop), _before_first(action.thinking or "", stop) or None
    is_stopped = is_stopped or len(content) < len(action.content)
    finish = ReplyFinish.STOP
    if calls:
        finish = ReplyFinish.TOOL_CALLS
    elif generation.finish_reason is FinishReason.LENGTH and not is_stopped:
        finish = ReplyFinish.LENGTH
    if isinstance(generation, MessageReply):
        prompt, cached = generation.prompt_tokens, generation.cached_tokens
    else:
        prompt = len(request.token_ids)
        cached = prompt - generation.num_prefilled
    return CallReply(
        message=Message(role=Role.ASSISTANT, content=content, thinking=thinking, tool_calls=calls),
        finish=finish,
        prompt_tokens=prompt,
        completion_tokens=generation.num_spent[0],
        cached_tokens=cached,
        token_strings=token_strings,
        logprobs=generation.behavior_logprobs,
        malformed=action.malformed,
    )


def show(message: Message) -> str:
    """Write a message for a log line."""
    text = message.content if len(message.content) <= _SHOWN else f"{message.content[:_SHOWN]}..."
    calls = ", ".join(f"{call.name} {json.dumps(call.arguments)[:_SHOWN]}" for call in message.tool_calls)
    return f"{text!r} with calls of {calls}" if calls else repr(text)


def _before_first(text: str, stop: Sequence[str]) -> str:
    """Return the text before the first of the stop texts in it."""
    places = [place for item in stop if (place := text.find(item)) >= 0]
    return text[: min(places)] if places else text
