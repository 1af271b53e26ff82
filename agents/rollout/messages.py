"""Drive episodes at the level of messages, for models that are reached without tokens (hosted, or served elsewhere).

Their trees hold actions, observations, rewards and costs, and no segments: they can be evaluated, not trained on. When
the context is full the episode ends as TRUNCATED_TOKENS; what to leave out cannot be decided without counting tokens.
The loop, its handling of failures and the recorder are those of `driver`; here is only what messages do differently.
"""

import time
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

from envgym.agents.loop.agent import (
    AgentSettings,
    OnLength,
    first_messages,
    own_system_prompt,
    resolve_text_format,
)
from envgym.agents.loop.events import (
    Event,
    FailureEvent,
    Finished,
    Generate,
    GenerationEvent,
    Request,
    ResetEvent,
    StepEnv,
    StepEvent,
)
from envgym.agents.loop.path import History, PathNode
from envgym.agents.loop.state import turn_ending, turn_outcome
from envgym.agents.protocols import FinishReason, PolicyLifecycle, Sampling
from envgym.agents.rollout.driver import drive_episode
from envgym.agents.rollout.episode import Clock, EpisodeEnv, EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.core.messages import Action, Message, Role
from envgym.core.tree import Edge, Tree
from envgym.core.turns import Cost, Ending
from envgym.parsing.formats import TextFormat
from envgym.records import StepRecord
from envgym.seeds import derive_seed
from envgym.tools import ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRequest:
    """A request for one reply."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    """Those that the endpoint is to offer the model; none where the messages describe them."""
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReply:
    """A model's reply and its cost."""

    action: Action
    finish_reason: FinishReason
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's tokens, those that the endpoint did not compute again."""
    completion_tokens: int = 0
    context_is_full: bool = False
    """The conversation is longer than the model takes; there is no reply."""


class MessagePolicy(PolicyLifecycle, Protocol):
    """Answers conversations."""

    unit: Literal["messages"] = "messages"
    """What it takes and returns; a `Policy` takes tokens."""

    async def reply(self, request: MessageRequest) -> MessageReply:
        """Answer one conversation. Raises: PolicyFailure: the endpoint broke."""
        ...


async def run_message_episode(
    job: EpisodeJob,
    settings: AgentSettings,
    policy: MessagePolicy,
    *,
    sampling: Sampling,
    clock: Clock = time.perf_counter,
    abort: AbortHandle | None = None,
) -> Tree:
    """Run one episode and return it as a tree without segments.

    Args:
        job: the episode.
        settings: the agent; `native` calls go through the endpoint's own tool calling, others are read from the text.
        policy: replies to the conversation.
        sampling: temperature, top-p and top-k; the agent's `max_turn_tokens` replaces `max_new_tokens`.
        clock: times the calls of env and policy.
        abort: by which the episode can be aborted.
    """
    state = _MessageState(
        settings=settings,
        sampling=replace(sampling, max_new_tokens=settings.max_turn_tokens),
        seed=job.sampling_seed,
        text_format=resolve_text_format(settings),
    )
    return await drive_episode(
        EpisodeEnv(job), state, advance=_advance, generate=policy.reply, clock=clock, abort=abort
    )


_MessageEvent = Event[MessageReply]
_MessageRequest = Request[MessageRequest]


class _MessageState(NamedTuple):
    """An agent of messages in the middle of an episode."""

    settings: AgentSettings
    sampling: Sampling
    seed: int
    text_format: TextFormat | None
    """How calls are written into the text; None: the endpoint has calls of its own."""
    tools: tuple[ToolSpec, ...] = ()
    """Those that the endpoint is to offer the model."""
    history: History = History()
    num_turns: int = 0
    path: PathNode | None = None
    """Last finished node; None before the env was reset."""
    reply: MessageReply | None = None
    """The current turn's; set while the env answers."""
    seconds: float = 0.0
    """Wall time of the current turn so far."""


def _advance(state: _MessageState, event: _MessageEvent) -> tuple[_MessageState, _MessageRequest]:
    """Return the state after `event`, and what it needs next; see `loop.advance`."""
    match event:
        case ResetEvent():
            return _started(state, event)
        case GenerationEvent():
            return _replied(state, event)
        case StepEvent():
            return _stepped(state, event)
        case FailureEvent():
            return _cut(state, event.ending, event.reason, event.seconds)


def _started(state: _MessageState, event: ResetEvent) -> tuple[_MessageState, _MessageRequest]:
    record, instructions = event.record, ""
    if state.text_format is not None:
        instructions = state.text_format.instructions(record.tools)
    messages = first_messages(record, own_system_prompt(state.settings), record.system_prompt, instructions)
    return _ask(
        state._replace(
            tools=record.tools if state.text_format is None else (),
            history=History(messages),
            path=PathNode(None, Edge(segments=(), ends_turn=False, cost=Cost(seconds=event.seconds))),
        )
    )


def _replied(state: _MessageState, event: GenerationEvent[MessageReply]) -> tuple[_MessageState, _MessageRequest]:
    reply = event.generation
    state = state._replace(reply=reply, seconds=event.seconds)
    is_cut = reply.finish_reason is FinishReason.LENGTH and state.settings.on_length is OnLength.TRUNCATE
    if is_cut or reply.context_is_full:
        return _cut(state, Ending.TRUNCATED_TOKENS)
    return state, StepEnv(reply.action if state.text_format is None else state.text_format.parse(reply.action))


def _stepped(state: _MessageState, event: StepEvent) -> tuple[_MessageState, _MessageRequest]:
    record = event.result.info["envgym"]
    assert isinstance(record, StepRecord), "checked by EpisodeEnv"
    ending, reply = turn_ending(event.result, record), state.reply
    assert reply is not None, "the env answers a reply"
    num_used = reply.prompt_tokens + reply.completion_tokens  # as far as the endpoint counts
    if ending is None and num_used + state.sampling.max_new_tokens > state.settings.max_context_tokens:
        ending = Ending.TRUNCATED_TOKENS
    cost = replace(_cost(state, event.seconds), tool_calls=record.tool_calls, env_steps=1)
    error = (record.error or ending.value) if ending is not None and ending.is_error else None
    edge = Edge(segments=(), ends_turn=True, cost=cost)
    node = PathNode(state.path, edge, turn_outcome(record), ending, error)
    state = state._replace(
        history=_extended(state, record), num_turns=state.num_turns + 1, path=node, reply=None, seconds=0.0
    )
    return _ask(state) if ending is None else (state, Finished(ending, error))


def _ask(state: _MessageState) -> tuple[_MessageState, _MessageRequest]:
    request = MessageRequest(
        messages=tuple(state.history),
        tools=state.tools,
        sampling=state.sampling,
        seed=derive_seed(state.seed, "turn", state.num_turns),
    )
    return state, Generate(request)


def _cut(
    state: _MessageState, ending: Ending, reason: str | None = None, seconds: float = 0.0
) -> tuple[_MessageState, _MessageRequest]:
    """End the episode inside the current turn."""
    edge = Edge(segments=(), ends_turn=False, cost=_cost(state, seconds))
    error = (reason or ending.value) if ending.is_error else None
    return state._replace(path=PathNode(state.path, edge, None, ending, error)), Finished(ending, error)


def _cost(state: _MessageState, seconds: float) -> Cost:
    """Return what the current turn cost so far, `seconds` after the last event."""
    reply = state.reply
    return Cost(
        tokens_generated=reply.completion_tokens if reply is not None else 0,
        tokens_prefilled=reply.prompt_tokens - reply.cached_tokens if reply is not None else 0,
        seconds=state.seconds + seconds,
    )


def _extended(state: _MessageState, record: StepRecord) -> History:
    """Return the conversation after a turn; where calls are text, they and their results are ordinary messages."""
    if state.text_format is None:
        return state.history.extended(record.action.message, *record.observation.messages)
    results = [
        Message(role=Role.USER, parts=message.parts) if message.role is Role.TOOL else message
        for message in record.observation.messages
    ]
    return state.history.extended(Message(role=Role.ASSISTANT, content=str(record.action)), *results)
