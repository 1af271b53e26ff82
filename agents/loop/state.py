"""The agent loop without I/O: `advance(state, event) -> (state, request)` over frozen states.

A driver feeds events and serves requests; forking an agent is assignment. How the tokens of an episode
lie on the edges of its tree (one edge a turn, `|` between edges):

    PROMPT .. TEMPLATE | POLICY TEMPLATE TOOL .. TEMPLATE | POLICY TEMPLATE .. TEMPLATE | POLICY
    root: the prompt     turn 0, and the opening of turn 1   turn 1 ...                   the last turn

so the tokens of every edge come after the context that the policy was last given. A context that was rendered anew
begins the edge of the turn that is sampled from it. Whatever fails becomes a leaf that keeps all that was sampled.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from envgym.agents.loop.agent import Agent, OnLength
from envgym.agents.loop.context import shorten
from envgym.agents.loop.hints import first_context, token_ids
from envgym.agents.loop.path import History, PathNode
from envgym.agents.protocols import EarlierTurn, FinishReason, GenerateRequest, Generation, Sampling
from envgym.core.messages import Action, Message
from envgym.core.segments import Origin, Segment
from envgym.core.tree import Edge, Rewrite
from envgym.core.turns import Cost, Ending, TurnOutcome
from envgym.errors import InvalidInput, PolicyFailure
from envgym.records import ResetRecord, StepRecord, StepResult
from envgym.seeds import derive_seed
from envgym.tools import ToolSpec

# ---- events, which a driver feeds to an agent, and requests, which the agent returns ---------------------------------


class ResetEvent(NamedTuple):
    """The env was reset."""

    record: ResetRecord
    seconds: float = 0.0


class GenerationEvent(NamedTuple):
    """The policy answered a `Generate`."""

    generation: Generation
    seconds: float = 0.0


class StepEvent(NamedTuple):
    """The env answered a `StepEnv`."""

    result: StepResult
    seconds: float = 0.0


class FailureEvent(NamedTuple):
    """A request could not be answered: the episode ends here."""

    ending: Ending
    reason: str
    seconds: float = 0.0


Event = ResetEvent | GenerationEvent | StepEvent | FailureEvent


class Generate(NamedTuple):
    """Ask the policy for a turn."""

    request: GenerateRequest


class StepEnv(NamedTuple):
    """Let the env answer an action."""

    action: Action


class Finished(NamedTuple):
    """The episode is over; `AgentState.path` is its leaf."""

    ending: Ending
    error: str | None = None


Request = Generate | StepEnv | Finished


# ---- states ---------------------------------------------------------------------------------------------------------


class Phase(StrEnum):
    """Which event a state waits for."""

    STARTING = "STARTING"
    GENERATING = "GENERATING"
    STEPPING = "STEPPING"
    FINISHED = "FINISHED"


_EMPTY_HISTORY = History()


class EpisodeSetup(NamedTuple):
    """What stays the same in every state of an episode."""

    agent: Agent
    sampling: Sampling
    """The caller's, with the agent's turn limit and the renderer's stop tokens."""
    seed: int
    """Turn k samples with `derive_seed(seed, "turn", k)`."""
    hint: str | None
    """What a guide adds to the task."""
    other_hints: Mapping[str, str]
    """Name -> hint that the policy is not given, with which the first context is rendered beside."""
    tools: tuple[ToolSpec, ...] = ()
    """Those of the env."""
    prompts: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    """Name -> [T] the first context rendered in another way; `plain` without the hint."""
    messages: tuple[Message, ...] = ()
    """The first context; empty before it is rendered."""


class AgentState(NamedTuple):
    """An agent in the middle of an episode; nothing reachable from it ever changes.

    A tuple: two are made every turn, and a frozen dataclass takes several times as long to make.
    """

    episode: EpisodeSetup

    # of the turn
    history: History = _EMPTY_HISTORY
    """The conversation that `context` renders."""
    num_turns: int = 0
    """Turns finished."""
    path: PathNode | None = None
    """Last finished edge; None before the prompt is rendered."""
    context: tuple[int, ...] = ()
    """[T] what the policy is given for the current turn."""
    rewrite: Rewrite | None = None
    """Why `pending` begins with a new context."""

    # of the moment
    phase: Phase = Phase.STARTING
    pending: tuple[Segment, ...] = ()
    """The current turn so far: a context rendered anew, if it begins with one, and what was sampled."""
    generation: Generation | None = None
    """What was sampled in the current turn; set while the env answers."""
    seconds: float = 0.0
    """Wall time of the current turn so far."""

    def with_seed(self, seed: int) -> "AgentState":
        """Sample the turns that follow with another seed."""
        return self._replace(episode=self.episode._replace(seed=seed))


def begin(
    agent: Agent,
    *,
    sampling: Sampling,
    seed: int,
    hint: str | None = None,
    other_hints: Mapping[str, str] = MappingProxyType({}),
) -> AgentState:
    """Return the state before an episode; it waits for `ResetEvent`.

    Args:
        agent: who acts.
        sampling: the caller's.
        seed: of the policy's randomness.
        hint: what a guide adds to the task.
        other_hints: by name, what it might add instead: that the policy is not given.
    """
    stops = dict.fromkeys((*agent.renderer.stop_token_ids, *sampling.stop_token_ids))
    sampling = replace(sampling, max_new_tokens=agent.settings.max_turn_tokens, stop_token_ids=tuple(stops))
    return AgentState(EpisodeSetup(agent, sampling, seed, hint, other_hints))


def advance(state: AgentState, event: Event) -> tuple[AgentState, Request]:
    """Return the state after `event`, and what it needs next.

    Never raises for what a policy, an env or a renderer did: that is a leaf with its ending.
    Raises: InvalidInput: the event is not the one that the state waits for.
    """
    if state.phase is Phase.GENERATING and isinstance(event, GenerationEvent):
        return _generated(state, event)
    if state.phase is Phase.STEPPING and isinstance(event, StepEvent):
        return _stepped(state, event)
    if state.phase is Phase.STARTING and isinstance(event, ResetEvent):
        return _started(state, event)
    if isinstance(event, FailureEvent) and state.phase is not Phase.FINISHED:
        return _cut(state, event.ending, event.reason, event.seconds)
    must, do = f"answer the state's phase {state.phase}", "feed the event that was requested"
    raise InvalidInput.of("event", must, event, where="advance", do=do)


# ---- one function for each event ------------------------------------------------------------------------------------


def _started(state: AgentState, event: ResetEvent) -> tuple[AgentState, Request]:
    episode = state.episode
    try:
        messages, segments, prompts = first_context(episode.agent, event.record, episode.hint, episode.other_hints)
    except PolicyFailure as failure:
        return _cut(state, Ending.ERROR_POLICY, str(failure), event.seconds)
    setup = episode._replace(tools=event.record.tools, prompts=prompts, messages=messages)
    state = state._replace(episode=setup)
    edge = Edge(segments=segments, ends_turn=False, cost=Cost(seconds=event.seconds))
    context = token_ids(segments)
    if len(context) > _max_context(state):
        return _finish(state, PathNode(None, edge, ending=Ending.TRUNCATED_TOKENS))
    first = _NextContext(History(messages), context)
    return _ask(state, 0, PathNode(None, edge), first)


def _generated(state: AgentState, event: GenerationEvent) -> tuple[AgentState, Request]:
    generation, agent = event.generation, state.episode.agent
    try:
        sampled = _sampled_segments(generation, agent.token_strings(generation.token_ids))
    except (InvalidInput, PolicyFailure) as fault:
        return _cut(state._replace(generation=generation), Ending.ERROR_POLICY, str(fault), event.seconds)
    state = state._replace(
        phase=Phase.STEPPING, pending=state.pending + sampled, generation=generation, seconds=event.seconds
    )
    if generation.finish_reason is FinishReason.ABORT:
        return _cut(state, Ending.ERROR_ABORTED, "the generation was aborted")
    is_cut = generation.finish_reason is FinishReason.LENGTH and agent.settings.on_length is OnLength.TRUNCATE
    if is_cut or generation.context_is_full:
        return _cut(state, Ending.TRUNCATED_TOKENS)
    try:
        return state, StepEnv(agent.parse(generation, state.episode.tools))
    except PolicyFailure as failure:
        return _cut(state, Ending.ERROR_POLICY, str(failure))


def _stepped(state: AgentState, event: StepEvent) -> tuple[AgentState, Request]:
    record = event.result.info["envgym"]
    assert isinstance(record, StepRecord), "the env's contract"
    ending, error = turn_ending(event.result, record), record.error
    if ending is None:
        try:
            context = _next_context(state, record)
        except PolicyFailure as failure:
            ending, error = Ending.ERROR_POLICY, str(failure)
        else:
            if context is not None:
                return _ask(state, state.num_turns + 1, _turn_node(state, event.seconds, record, context), context)
            ending = Ending.TRUNCATED_TOKENS
    error = (error or ending.value) if ending.is_error else None
    return _finish(state, _turn_node(state, event.seconds, record, None, ending, error))


# ---- the next context -----------------------------------------------------------------------------------------------


class _NextContext(NamedTuple):
    history: History
    context: tuple[int, ...]
    appended: tuple[Segment, ...] = ()
    """Tokens after the finished turn; none where the context is rendered anew."""
    rerendered: tuple[Segment, ...] = ()
    rewrite: Rewrite | None = None
    continues: EarlierTurn | None = None
    """The turn that the context begins with; None where it is rendered anew."""


def _next_context(state: AgentState, record: StepRecord) -> _NextContext | None:
    agent, tools, generation, limit = state.episode.agent, state.episode.tools, state.generation, _max_context(state)
    assert generation is not None, "the env answers what was sampled"
    extension = agent.extend(state.history, generation, record.observation, tools)
    history, tokens = state.history.extended(*agent.turn_messages(record)), token_ids(extension.segments)
    if extension.rewrite is not None and len(tokens) <= limit:
        return _NextContext(history, tokens, (), _as_prompt(extension.segments), extension.rewrite)
    if extension.rewrite is None:
        context = state.context + (generation.token_ids + tokens)
        if agent.context_length(context, generation) <= limit:
            earlier = EarlierTurn(state.context, generation, context)
            return _NextContext(history, context, extension.segments, (), None, earlier)
    shorter = shorten(agent.context, history, lambda messages: agent.start(messages, tools), limit)
    if shorter is None:
        return None
    segments = _as_prompt(shorter.rendering.segments)
    return _NextContext(History(shorter.messages), token_ids(segments), (), segments, shorter.rewrite)


def _max_context(state: AgentState) -> int:
    """Return how long a context may be so that a whole turn still fits after it."""
    return state.episode.agent.settings.max_context_tokens - state.episode.sampling.max_new_tokens


def _as_prompt(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return a context rendered anew as what it is to the policy: a prompt."""
    return tuple(replace(segment, origin=Origin.PROMPT) for segment in segments)


def _sampled_segments(generation: Generation, strings: tuple[str, ...]) -> tuple[Segment, ...]:
    """Return the POLICY segments of a generation, one for each version of the weights that sampled in turn.

    Nothing where it was aborted before its first token, or has none.
    """
    if not generation.has_tokens or (not generation.token_ids and generation.finish_reason is FinishReason.ABORT):
        return ()
    if not math.isfinite(sum(generation.behavior_logprobs)):
        raise PolicyFailure("the policy returned a log-prob that is not finite")
    spans = generation.version_spans
    if spans and (covered := sum(span.num_tokens for span in spans)) != len(generation.token_ids):
        do = "check what serves the policy"
        must, got = f"cover its {len(generation.token_ids)} tokens", str(covered)
        raise PolicyFailure.of("version spans of a generation", must, got, where="agent loop", do=do)
    rest = Segment(
        origin=Origin.POLICY,
        token_ids=generation.token_ids,
        token_strings=strings,
        behavior_logprobs=generation.behavior_logprobs,
        raw_logprobs=generation.raw_logprobs,
        policy_version=spans[-1].policy_version if spans else generation.policy_version,
        top_logprobs=generation.top_logprobs,
    )
    segments: list[Segment] = []
    for version, num_tokens in spans[:-1]:
        head, rest = rest.split(num_tokens)
        segments.append(replace(head, policy_version=version))
    return (*segments, rest)


# ---- nodes and states -----------------------------------------------------------------------------------------------


def _ask(state: AgentState, num_turns: int, path: PathNode, next_context: _NextContext) -> tuple[AgentState, Request]:
    history, context, _, rerendered, rewrite, continues = next_context
    episode = state.episode
    waiting = AgentState(episode, history, num_turns, path, context, rewrite, Phase.GENERATING, rerendered)
    seed = derive_seed(episode.seed, "turn", num_turns)
    request = GenerateRequest(token_ids=context, sampling=episode.sampling, seed=seed, continues=continues)
    return waiting, Generate(episode.agent.request(request, history, episode.tools))


def _turn_node(
    state: AgentState,
    seconds: float,
    record: StepRecord,
    next_context: _NextContext | None,
    ending: Ending | None = None,
    error: str | None = None,
) -> PathNode:
    """Return the finished turn as a node below the path."""
    segments = state.pending if next_context is None else state.pending + next_context.appended
    cost = _cost(state, seconds, tool_calls=record.tool_calls, env_steps=1)
    edge = Edge(segments=segments, ends_turn=True, rewrite=state.rewrite, cost=cost, context=_new_messages(state))
    return PathNode(state.path, edge, turn_outcome(record), ending, error)


def _cut(
    state: AgentState, ending: Ending, reason: str | None = None, seconds: float = 0.0
) -> tuple[AgentState, Request]:
    """End the episode inside the current turn; what was sampled of it stays on the leaf's edge."""
    cost, context = _cost(state, seconds), _new_messages(state)
    edge = Edge(segments=state.pending, ends_turn=False, rewrite=state.rewrite, cost=cost, context=context)
    error = (reason or ending.value) if ending.is_error else None
    return _finish(state, PathNode(state.path, edge, None, ending, error))


def _new_messages(state: AgentState) -> tuple[Message, ...]:
    """Return the messages of a shortened context; those of other contexts are the turns above it."""
    return state.history.flat if state.rewrite is not None and state.history.is_first else ()


def _finish(state: AgentState, leaf: PathNode) -> tuple[AgentState, Request]:
    assert leaf.ending is not None, "a leaf says how the episode ended"
    finished = state._replace(phase=Phase.FINISHED, path=leaf, pending=(), rewrite=None, generation=None)
    return finished, Finished(leaf.ending, leaf.error)


def _cost(state: AgentState, seconds: float, *, tool_calls: int = 0, env_steps: int = 0) -> Cost:
    generated, prefilled = (0, 0) if state.generation is None else state.generation.num_spent
    return Cost(
        tokens_generated=generated,
        tokens_prefilled=prefilled,
        tool_calls=tool_calls,
        env_steps=env_steps,
        seconds=state.seconds + seconds,
    )


def turn_outcome(record: StepRecord) -> TurnOutcome:
    """Return the part of the env's record that a node keeps."""
    return TurnOutcome(
        action=record.action, observation=record.observation, reward=record.reward, tool_errors=record.tool_errors
    )


def turn_ending(result: StepResult, record: StepRecord) -> Ending | None:
    """Return how the turn ended the episode; the record decides, a wrapper's bare flag is read where it is silent."""
    if record.ending is not None or not (result.terminated or result.truncated):
        return record.ending
    return Ending.TERMINATED if result.terminated else Ending.TRUNCATED_TURNS
