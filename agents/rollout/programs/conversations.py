"""A program's calls as conversations of one episode: the agent loop drives each, and the client plays the env. Pure.

The first call of a conversation is a reset whose observation is its messages. A later call goes on from the turn with
which its first messages end, and the others are what the env would have replied. States of the loop are frozen, so two
calls may go on from one turn. Sampled tokens stay as they are; what a client sends back is only compared with them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from envgym.agents.loop.agent import Agent, OnLength
from envgym.agents.loop.hints import token_ids
from envgym.agents.loop.state import (
    AgentState,
    FailureEvent,
    Finished,
    Generate,
    GenerationEvent,
    Request,
    ResetEvent,
    StepEnv,
    StepEvent,
    advance,
    begin,
)
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.agents.rollout.programs.calls import Call, CallRefused, CallReply, RefusalKind
from envgym.agents.rollout.programs.replies import answering, show, until_stop, with_tool_names, write_reply
from envgym.agents.rollout.programs.transcripts import Transcript, Transcripts
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.segments import Segment
from envgym.core.tasks import Task
from envgym.core.turns import ZERO, Cost, Ending, Reward
from envgym.errors import PolicyFailure
from envgym.records import ResetRecord, StepRecord, step_result
from envgym.seeds import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenCall:
    """A call that the policy has to answer."""

    number: int
    """Its place among the calls that the policy is asked to answer, from 0."""
    request: GenerateRequest
    """What the policy is to answer."""
    stop: tuple[str, ...]
    state: AgentState
    """Waits for the generation."""
    conversation: int
    """Of those that did not go on from a turn, from 0."""
    transcript: "Transcript[ProgramTurn]"
    parent: "ProgramTurn | None"
    """The turn that the call goes on from; None: a new conversation."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramTurn:
    """A call and its reply, without the tokens of its context, which `context_of` reads off the path."""

    call: OpenCall
    state: AgentState
    """Waits for what the env replies."""
    action: Action
    """The reply as it was sampled."""
    message: Message
    """The reply as the client was sent it."""
    transcript: "Transcript[ProgramTurn]"


@dataclass(slots=True)
class _Spent:
    """What is no turn, and is counted all the same."""

    cost: Cost = field(default_factory=Cost)
    refusals: Counter[RefusalKind] = field(default_factory=Counter)


class Conversations:
    """All calls of one run of a program. For one thread."""

    def __init__(
        self,
        agent: Agent,
        *,
        sampling: Sampling,
        seed: int,
        task: Task,
        max_turns: int,
        compares_thinking: bool = False,
    ) -> None:
        """Begin without a call.

        Args:
            agent: how the policy acts; the program's messages take the place of its system prompt, and a reply that
                reaches `max_turn_tokens` does not end the episode.
            sampling: of every call, whatever the program asks for.
            seed: of the policy's randomness.
            task: of the episode.
            max_turns: most calls that are answered.
            compares_thinking: whether thinking that a client sends back is part of a message's identity.
        """
        settings = agent.settings.model_copy(update={"on_length": OnLength.CLOSE})
        self._agent = replace(agent, settings=settings, system_prompt="")
        self._sampling, self._seed, self._task, self._max_turns = sampling, seed, task, max_turns
        self._transcripts = Transcripts[ProgramTurn](compares_thinking=compares_thinking)
        self._num_asked = self._num_conversations = 0
        self._native_turns: set[int] = set()
        self._open: dict[int, OpenCall | ProgramTurn] = {}
        self._delivered: dict[int, ProgramTurn] = {}
        self._contexts: dict[int, tuple[int, ...]] = {}
        """Number of a turn's call that no call has gone on from -> its context."""
        self.rewards: dict[int, list[Reward]] = {}
        """Number of a turn's call -> what was paid after its reply; -1: before the first."""
        self.spent = _Spent()
        self.failure: FailureEvent | None = None
        """Why the policy, or the run, ended the episode."""
        self.difference: str | None = None
        """How a client changed a reply that it sent back, by which a new conversation began; None: none did."""
        self.is_closed = self.is_full = False
        """Whether no call is answered any more; whether the last call left no room in the context."""

    @property
    def turns(self) -> tuple[ProgramTurn, ...]:
        """Those whose reply reached the program, in that order."""
        return tuple(self._delivered.values())

    # ---- what a host calls for every call of the program ---------------------------------------------------------

    def ask(self, call: Call) -> OpenCall | CallRefused:
        """Return the call with the request for the policy, or a refusal."""
        self.is_full = False
        if self.is_closed or self.failure is not None:
            return self._refused(RefusalKind.CLOSED, _CLOSED)
        if len(self._open) + len(self._delivered) >= self._max_turns:
            return self._refused(RefusalKind.TURN_LIMIT, f"All {self._max_turns} turns of the episode are used.")
        path = self._transcripts.path(call.tools, call.messages)
        place, parent = self._continued(call, path)
        if parent is not None:
            self._deliver(parent)
        else:
            self.difference = self.difference or _difference(call, path)
        state, request = self._start(call) if parent is None else self._step(parent, call.messages[place:])
        if isinstance(request, Finished):
            return self._not_rendered(request)
        assert isinstance(request, Generate), "a context was rendered"
        return self._open_call(call, state, request.request, path[-1], parent)

    def answered(self, open_call: OpenCall, generation: Generation, seconds: float = 0.0) -> CallReply | CallRefused:
        """Return the reply for the program; it counts as a turn once it was delivered.

        Args:
            open_call: the call.
            generation: what the policy sampled.
            seconds: time that it took.
        """
        if open_call.number not in self._open:
            self._count(generation, seconds)
            return self._refused(RefusalKind.CLOSED, _CLOSED)
        if generation.context_is_full:
            del self._open[open_call.number]
            return self._refused(RefusalKind.CONTEXT_FULL, _CONTEXT_FULL)
        try:
            recorded = until_stop(self._agent, generation, open_call.stop, open_call.state.episode.tools)
        except PolicyFailure as failure:
            return self.failed(open_call, FailureEvent(Ending.ERROR_POLICY, str(failure), seconds))
        self.spent.cost += Cost(tokens_generated=generation.num_spent[0] - recorded.num_spent[0])
        state, request = advance(open_call.state, GenerationEvent(recorded, seconds))
        if isinstance(request, Finished):
            self._count(generation, seconds)
            return self.failed(open_call, FailureEvent(request.ending, request.error or request.ending.value))
        assert isinstance(request, StepEnv), "what was sampled is answered"
        sampled = state.pending[len(open_call.state.pending) :]
        reply = write_reply(
            open_call.number,
            open_call.request,
            request.action,
            recorded,
            open_call.stop,
            is_stopped=recorded is not generation,
            token_strings=tuple(string for segment in sampled for string in segment.token_strings),
        )
        transcript = open_call.transcript.followed_by(self._transcripts.identity(reply.message))
        turn = ProgramTurn(
            call=_without_context(open_call),
            state=state._replace(context=()),
            action=request.action,
            message=reply.message,
            transcript=transcript,
        )
        transcript.turns.append(turn)
        self._open[open_call.number] = turn
        self._contexts[open_call.number] = open_call.state.context
        return reply

    def delivered(self, open_call: OpenCall) -> None:
        """Record the turn: its reply was sent to the program. Nothing happens after the end of the episode."""
        turn = self._open.get(open_call.number)
        if isinstance(turn, ProgramTurn) and not self.is_closed:
            self._deliver(turn)

    def dropped(self, open_call: OpenCall) -> None:
        """Forget a call whose reply did not reach the program; what it took is counted."""
        turn = self._open.pop(open_call.number, None)
        self._contexts.pop(open_call.number, None)
        if isinstance(turn, ProgramTurn):
            turn.transcript.turns.remove(turn)
            generation = turn.state.generation
            assert generation is not None, "the turn was sampled"
            self._count(generation, turn.state.seconds)

    def failed(self, open_call: OpenCall, failure: FailureEvent) -> CallRefused:
        """End the episode: a call could not be answered."""
        self._open.pop(open_call.number, None)
        self.failure = self.failure or failure
        return self._refused(RefusalKind.POLICY_FAILED, f"The model failed: {failure.reason}.")

    # ---- what an episode calls -----------------------------------------------------------------------------------

    def pay(self, reward: Reward) -> None:
        """Add a reward to the turn that was delivered last."""
        last = next(reversed(self._delivered), -1)
        self.rewards.setdefault(last, []).append(reward)

    def close(self) -> None:
        """End the episode: no call is answered any more, and what was not delivered is dropped."""
        self.is_closed = True
        self._contexts.clear()
        for entry in list(self._open.values()):
            self.dropped(entry if isinstance(entry, OpenCall) else entry.call)

    # ---- states --------------------------------------------------------------------------------------------------

    def _continued(self, call: Call, path: Sequence[Transcript[ProgramTurn]]) -> tuple[int, ProgramTurn | None]:
        """Return the number of messages that a recorded turn ends with, and the turn; none where there is no such turn.

        Of equal replies the newest that was delivered counts: a program may not have seen the others. An assistant's
        message after the turn, which the policy did not write, makes another conversation.
        """
        for place in range(len(path), 0, -1):
            turns = path[place - 1].turns
            if turns:
                seen = (turn for turn in reversed(turns) if turn.call.number in self._delivered)
                return place, next(seen, turns[-1])
            if call.messages[place - 1].role is Role.ASSISTANT:
                break
        return 0, None

    def _start(self, call: Call) -> tuple[AgentState, Request]:
        state = begin(self._agent, sampling=self._sampling, seed=self._seed)
        observation = Observation.of(with_tool_names(call.messages))
        record = ResetRecord(
            task=self._task, observation=observation, system_prompt="", tools=call.tools, seed=self._seed
        )
        return advance(state, ResetEvent(record))

    def _step(self, turn: ProgramTurn, messages: Sequence[Message]) -> tuple[AgentState, Request]:
        """Feed the messages of the next call to the loop as the env's reply to a turn."""
        context = self._contexts.pop(turn.call.number, None)
        if context is None:
            context = token_ids(context_of(turn.call.state))
        return advance(turn.state._replace(context=context), _replied(turn, messages))

    def _open_call(
        self,
        call: Call,
        state: AgentState,
        request: GenerateRequest,
        transcript: Transcript[ProgramTurn],
        parent: ProgramTurn | None,
    ) -> OpenCall:
        conversation = self._num_conversations if parent is None else parent.call.conversation
        self._num_conversations += parent is None
        sampling = request.sampling
        if call.max_tokens is not None and call.max_tokens < sampling.max_new_tokens:
            sampling = replace(sampling, max_new_tokens=call.max_tokens)
        seed = self._turn_seed(conversation, state.num_turns, request.seed, transcript)
        open_call = OpenCall(
            number=self._num_asked,
            request=replace(request, sampling=sampling, seed=seed),
            stop=tuple(filter(None, call.stop)),
            state=state,
            conversation=conversation,
            transcript=transcript,
            parent=parent,
        )
        self._open[open_call.number] = open_call
        self._num_asked += 1
        return open_call

    def _turn_seed(self, conversation: int, turn: int, native: int, transcript: Transcript[ProgramTurn]) -> int:
        """Return the native loop's seed for the first call of each turn of the first conversation, else another one.

        Otherwise equal contexts, of parallel calls or of sub-agents, would give equal samples.
        """
        asked_before = transcript.num_asked
        transcript.num_asked += 1
        if conversation == 0 and turn not in self._native_turns:
            self._native_turns.add(turn)
            return native
        return derive_seed(self._seed, "turn", turn, transcript.digest.hex(), asked_before)

    def _deliver(self, turn: ProgramTurn) -> None:
        self._open.pop(turn.call.number, None)
        self._delivered.setdefault(turn.call.number, turn)

    # ---- refusals and costs --------------------------------------------------------------------------------------

    def _not_rendered(self, end: Finished) -> CallRefused:
        if end.ending is Ending.TRUNCATED_TOKENS:
            return self._refused(RefusalKind.CONTEXT_FULL, _CONTEXT_FULL)
        return self._refused(RefusalKind.UNSUPPORTED, f"The messages cannot be rendered: {end.error}.")

    def _refused(self, kind: RefusalKind, reason: str) -> CallRefused:
        self.spent.refusals[kind] += 1
        self.is_full = kind is RefusalKind.CONTEXT_FULL
        return CallRefused(kind=kind, reason=reason)

    def _count(self, generation: Generation, seconds: float = 0.0) -> None:
        generated, prefilled = generation.num_spent
        self.spent.cost += Cost(tokens_generated=generated, tokens_prefilled=prefilled, seconds=seconds)


_CLOSED = "The episode is over: no more calls are answered."
_CONTEXT_FULL = "The conversation leaves no room for a reply within the context window."


def _difference(call: Call, path: Sequence[Transcript[ProgramTurn]]) -> str | None:
    """Return how the first message of an assistant that is no reply differs from the reply in its place, if any."""
    for place, message in enumerate(call.messages):
        if message.role is not Role.ASSISTANT or path[place].turns:
            continue
        siblings = path[place - 1].children.values() if place else ()
        replies = [turn.message for sibling in siblings for turn in sibling.turns]
        return f"message {place} was {show(replies[-1])}, and came back as {show(message)}" if replies else None
    return None


def _replied(turn: ProgramTurn, messages: Sequence[Message]) -> StepEvent:
    """Return the messages of the next call as the env's reply to a turn."""
    replies = answering(turn.message.tool_calls, turn.action.tool_calls, messages)
    record = StepRecord(
        turn=turn.state.num_turns,
        action=turn.action,
        observation=Observation.of(replies),
        reward=ZERO,
        ending=None,
        tool_calls=sum(message.role is Role.TOOL for message in replies),
        tool_errors=0,
    )
    return StepEvent(step_result(record))


def context_of(state: AgentState) -> tuple[Segment, ...]:
    """Return the context of the turn that a state waits for, as segments; none where tokens are not known."""
    parts: list[Segment] = list(reversed(state.pending))
    node = None if state.rewrite is not None else state.path
    while node is not None:
        parts += reversed(node.edge.segments)
        node = None if node.edge.rewrite is not None else node.parent
    parts.reverse()
    return tuple(parts)


def _without_context(call: OpenCall) -> OpenCall:
    """Return a call that was answered; with all contexts, memory would grow with the square of the turns."""
    return replace(call, request=replace(call.request, token_ids=()), state=call.state._replace(context=()))
