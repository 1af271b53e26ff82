"""The session of one running program: its calls of the model, their retries, and which replies have arrived.

A reply is recorded when the program has it. Until then the call may be repeated: a retry waits for the generation of
the first attempt, or gets its reply again. A session belongs to one event loop.
"""

import asyncio
import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeGuard, TypeVar

from envgym.agents.loop.state import FailureEvent
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.agents.rollout.driver import failure_event
from envgym.agents.rollout.episode import Clock
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.rollout.programs.calls import Call, CallRefused, CallReply, RefusalKind, ReplyFinish
from envgym.agents.rollout.programs.dialects.base import ReplyIds
from envgym.agents.rollout.programs.env_tools import EnvTools
from envgym.core.messages import Message, Role
from envgym.core.turns import Cost, Scored
from envgym.errors import EnvgymError, InvalidInput
from envgym.runtime.processes.log import log_event

RETRY_COUNT: Final = "x-stainless-retry-count"
IDEMPOTENCY_KEY: Final = "idempotency-key"
CLOSED: Final = CallRefused(kind=RefusalKind.CLOSED, reason="The episode is over; the model answers no more calls.")


class PendingTurn(Protocol):
    """A turn that the model has to sample."""

    @property
    def request(self) -> GenerateRequest: ...


TurnT = TypeVar("TurnT", bound=PendingTurn)


class ConversationMatcher(Protocol[TurnT]):
    """Assigns the calls of a program to conversations. Pure: it samples nothing and sends nothing."""

    def ask(self, call: Call, /) -> TurnT | CallRefused:
        """Return the turn that a call requests."""
        ...

    def answered(self, turn: TurnT, generation: Generation, seconds: float, /) -> CallReply | CallRefused:
        """Return the reply that a generation is, which took some seconds."""
        ...

    def failed(self, turn: TurnT, failure: FailureEvent, /) -> CallRefused:
        """End the episode, because a turn could not be sampled."""
        ...

    def delivered(self, turn: TurnT, /) -> None:
        """Record a turn whose reply has arrived."""
        ...

    def dropped(self, turn: TurnT, /) -> None:
        """Count the cost of a turn whose reply has not arrived."""
        ...


class CallFailed(EnvgymError):
    """A call in this process that the model did not answer; its message is one sentence."""

    def __init__(self, message: str, *, kind: RefusalKind) -> None:
        super().__init__(message)
        self.kind = kind


class RetryMark(NamedTuple):
    """What a request says about being a repetition."""

    body_hash: bytes
    key: str | None
    """That the program names the request by."""
    is_retry: bool
    """Whether the program counts it as one more attempt."""

    @classmethod
    def of(cls, body: bytes, key: str | None, retry_count: str) -> "RetryMark":
        """Read the mark of a request."""
        is_retry = retry_count.isascii() and retry_count.isdecimal() and int(retry_count[:9]) > 0
        return cls(hashlib.blake2b(body, digest_size=16).digest(), key, is_retry)


@dataclass(slots=True, eq=False)
class Exchange:
    """A call that the model answers, and its reply."""

    turn: Any  # of the matcher's own type
    ids: ReplyIds
    result: "asyncio.Task[CallReply | CallRefused]"
    is_settled: bool = False
    """Whether it was recorded or dropped."""
    num_waiting: int = 1
    """Requests that wait for the reply: retries count, and a program that left does not."""


@dataclass(slots=True)
class SessionCounts:
    """What happened to the calls of a session."""

    delivered: int = 0
    """Calls whose reply has arrived."""
    retries: int = 0
    dropped: int = 0
    """Calls whose reply did not arrive."""
    beyond_limit: int = 0
    """Calls after the turn limit."""
    malformed_calls: int = 0
    """Calls of tools that could not be read."""
    ignored_options: Counter[str] = field(default_factory=Counter)
    auxiliary_calls: int = 0
    """Calls of other models that were passed on."""


class ProgramSession:
    """The calls of one program, by a secret that only this program knows."""

    def __init__(
        self,
        matcher: ConversationMatcher[Any],  # whose turns are only handed back to it
        generate: Callable[[GenerateRequest], Awaitable[Generation]],
        *,
        clock: Clock = time.perf_counter,
        now: Callable[[], float] = time.time,
        count_tokens: Callable[[Call], int | None] = lambda call: None,
    ) -> None:
        """Begin without a call.

        Args:
            matcher: Assigns calls to conversations.
            generate: Samples from the policy.
            clock: Times the generations.
            now: Seconds since 1970.
            count_tokens: Counts the tokens of a conversation; None: unknown.
        """
        self.secret = secrets.token_hex(16)
        self.counts = SessionCounts()
        self.at_limit = asyncio.Event()
        """Set when a call was answered without the model because the program has had all its turns."""
        self.failed = asyncio.Event()
        """Set when the policy has failed."""
        self.reward: Scored | None = None
        """What the program posted."""
        self.auxiliary_cost = Cost()
        """Of the calls that were passed on."""
        self.transcripts: dict[str, tuple[Message, ...]] = {}
        """Id of a response -> the conversation up to and with it."""
        self.count_tokens = count_tokens
        self.env_tools: EnvTools | None = None
        """What is offered by MCP; None: nothing."""
        self.is_open = True
        self._matcher, self._generate, self._clock, self._now = matcher, generate, clock, now
        self._name, self._number = secrets.token_hex(4), 0
        self._exchanges: dict[object, Exchange] = {}
        """By body hash, and by idempotency key with body hash."""
        """Without those whose generation was refused or failed."""
        self._unsettled: set[Exchange] = set()

    # ---- calls -------------------------------------------------------------------------------------------------------

    def begin(self, call: Call, mark: RetryMark | None = None) -> Exchange | CallReply | CallRefused:
        """Begin to answer a call, or find the exchange that it repeats.

        Returns: The exchange; the reply to a call after the turn limit, which is not recorded; or a refusal.
        """
        if not self.is_open:
            return CLOSED
        if (earlier := self._repeated(mark)) is not None:
            self.counts.retries += 1
            earlier.num_waiting += 1
            return earlier
        turn = self._matcher.ask(call)
        if _is_limit(turn) and self._drop_abandoned():
            turn = self._matcher.ask(call)
        if _is_limit(turn):
            self.counts.beyond_limit += 1
            self.at_limit.set()
            return limit_reply(turn.reason)
        if isinstance(turn, CallRefused):
            return self._refuse(turn)
        exchange = Exchange(turn, self.next_ids(), asyncio.ensure_future(self._sample(turn)))
        self._unsettled.add(exchange)
        if mark is not None:
            self._exchanges[mark.body_hash] = exchange
            if mark.key is not None:
                self._exchanges[mark.key, mark.body_hash] = exchange
        return exchange

    def _repeated(self, mark: RetryMark | None) -> Exchange | None:
        if mark is None:
            return None
        exchange = self._exchanges.get((mark.key, mark.body_hash))
        if exchange is None and mark.is_retry:
            exchange = self._exchanges.get(mark.body_hash)
        return exchange

    async def _sample(self, turn: PendingTurn) -> CallReply | CallRefused:
        started = self._clock()
        try:
            generation = await self._generate(turn.request)
            reply = self._matcher.answered(turn, generation, self._clock() - started)
        except Exception as error:  # noqa: BLE001  # any failure of the policy ends the episode
            failure = failure_event(error, AbortHandle(), self._clock() - started, generates=True)
            return self._refuse(self._matcher.failed(turn, failure))
        if isinstance(reply, CallRefused):
            return self._refuse(reply)
        self.counts.malformed_calls += len(reply.malformed)
        return reply

    def _refuse(self, refusal: CallRefused) -> CallRefused:
        if refusal.kind is RefusalKind.POLICY_FAILED:
            self.failed.set()
        return refusal

    async def result(self, exchange: Exchange) -> CallReply | CallRefused:
        """Wait for the reply of an exchange; a waiter that is cancelled does not end the generation."""
        await asyncio.wait([exchange.result])
        if exchange.result.cancelled():
            return CLOSED
        reply = exchange.result.result()
        if isinstance(reply, CallRefused):
            self._drop(exchange)
        return reply

    def delivered(self, exchange: Exchange) -> None:
        """Record the turn of an exchange whose reply has arrived, once, and only while the session is open."""
        if self.is_open and not exchange.is_settled:
            exchange.is_settled = True
            self._unsettled.discard(exchange)
            self.counts.delivered += 1
            self._matcher.delivered(exchange.turn)

    def _drop_abandoned(self) -> bool:
        """Drop the replies that nobody waits for, which take the place of turns; return whether there were any."""
        abandoned = [exchange for exchange in self._unsettled if not exchange.num_waiting and exchange.result.done()]
        for exchange in abandoned:
            self._drop(exchange)
        return bool(abandoned)

    def _drop(self, exchange: Exchange) -> None:
        if not exchange.is_settled:
            exchange.is_settled = True
            self._unsettled.discard(exchange)
            for mark in [mark for mark, other in self._exchanges.items() if other is exchange]:
                del self._exchanges[mark]
            self.counts.dropped += 1
            self._matcher.dropped(exchange.turn)

    async def chat(self, call: Call) -> CallReply:
        """Answer a call of this process. Raises: CallFailed: it is refused."""
        exchange = self.begin(call)
        if isinstance(exchange, CallReply):
            return exchange
        try:
            reply = exchange if isinstance(exchange, CallRefused) else await self.result(exchange)
        except asyncio.CancelledError:
            if isinstance(exchange, Exchange):
                exchange.num_waiting -= 1
            raise
        if isinstance(reply, CallRefused) or not self.is_open:
            refusal = reply if isinstance(reply, CallRefused) else CLOSED
            raise CallFailed(refusal.reason, kind=refusal.kind)
        assert isinstance(exchange, Exchange), "a refusal was raised"
        self.delivered(exchange)
        return reply

    def count_auxiliary(self, cost: Cost) -> None:
        """Count a call that another model has answered; nothing after the end of the episode."""
        if self.is_open:
            self.counts.auxiliary_calls += 1
            self.auxiliary_cost += cost

    def next_ids(self) -> ReplyIds:
        """Return the number and the time of the next response."""
        self._number += 1
        return ReplyIds(f"{self._name}{self._number:06x}", int(self._now()))

    # ---- reward and end ----------------------------------------------------------------------------------------------

    def post_reward(self, reward: Scored) -> None:
        """Take the reward of the episode. Raises: InvalidInput: there is one, or the episode is over."""
        must, got, do = "be posted once, during the episode", reward.value, "post one reward before the program ends"
        InvalidInput.unless(self.is_open and self.reward is None, "reward", must, got, where="program", do=do)
        self.reward = reward

    async def close(self) -> None:
        """Answer no more calls; end the generations under way, and drop the turns whose reply has not arrived."""
        self.is_open = False
        tasks = [exchange.result for exchange in self._unsettled]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for exchange in list(self._unsettled):
            self._drop(exchange)
        self._exchanges.clear()
        counts = self.counts
        log_event(
            "program",
            delivered=counts.delivered,
            retries=counts.retries,
            dropped=counts.dropped,
            beyond_limit=counts.beyond_limit,
            malformed_calls=counts.malformed_calls,
            ignored_options=dict(counts.ignored_options),
            auxiliary_calls=counts.auxiliary_calls,
        )


def _is_limit(turn: object) -> TypeGuard[CallRefused]:
    return isinstance(turn, CallRefused) and turn.kind is RefusalKind.TURN_LIMIT


def limit_reply(reason: str) -> CallReply:
    """Return the reply to a call after the last turn. It calls no tool, so that most programs end with it."""
    message = Message(role=Role.ASSISTANT, content=f"{reason} Please finish now. Thank you.")
    return CallReply(message=message, finish=ReplyFinish.STOP, prompt_tokens=0, completion_tokens=0)
