"""The policy that samples from policy servers: balanced, retried on another server, with versions by the token."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar, TypeVar

from envgym.agents.models.weights import AdaptedWeights
from envgym.agents.policies.engine.requests import max_sampled_tokens
from envgym.agents.policies.serving import frames, wire
from envgym.agents.policies.serving.fleet import WAIT_S, ServerFleet
from envgym.agents.policies.serving.held import SentContext, SentContexts
from envgym.agents.policies.serving.link import ExpectedModel, ServerLink, ServerRefused, ServerState
from envgym.agents.policies.serving.membership import FleetMembership, check_transport
from envgym.agents.policies.serving.routing import block_hashes
from envgym.agents.policies.serving.weights_state import WeightsState, join_digests
from envgym.agents.policies.weights.transport import WeightTransport, WeightUpdate
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Policy
from envgym.chats.replies import BadResponse
from envgym.errors import PolicyFailure
from envgym.runtime.event_loop import LoopThread
from envgym.runtime.http.client import ConnectionFailed
from envgym.runtime.membership import FOLLOW_S, WatchedServers
from envgym.runtime.processes.restarts import RETRIED, count_failure

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
_WHERE = "ServedPolicy"
_REFUSED = frozenset({400, 401, 403, 404, 413, 422})
"""Statuses after which the same request would be refused by any server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """How hard servers are used."""

    timeout_s: float = 600.0
    """Longest wait for one answer."""
    update_timeout_s: float = 600.0
    """Longest weight update."""
    retries: int = 2
    """Further attempts of a request whose server has gone."""
    max_concurrency: int = 64
    """Most requests of one server at a time; how many it gets follows from its cache pressure."""
    watch_s: float = 1.0
    """Between two looks at a server."""
    wait_s: float = WAIT_S
    """Longest wait of a request, or an update, for a server where none is up."""
    follow_s: float = FOLLOW_S
    """Between two looks at the list of servers, where there is one."""


class ServedPolicy(Policy):
    """Samples from one or more policy servers, which hold the weights."""

    max_top_logprobs = 20  # vLLM's limit
    _link_type: ClassVar[type[ServerLink]] = ServerLink
    _make_fleet: Callable[..., ServerFleet] = ServerFleet

    def __init__(
        self,
        urls: Sequence[str],
        *,
        transport: WeightTransport,
        expected: ExpectedModel | None = None,
        token: str | None = None,
        limits: ClientLimits | None = None,
        version: int = 0,
        servers: WatchedServers | None = None,
    ) -> None:
        """Connect to the servers; one that does not answer yet is used as soon as it does.

        Args:
            urls: of the servers.
            transport: brings new weights to them; closed with the policy.
            expected: what they must serve.
            token: that they ask for.
            limits: how hard they are used.
            version: of the weights, where a server does not name them.
            servers: list by which others join, and some leave; None: these stay.

        Raises: InvalidInput: a server refuses the token, or serves something else, or none can be reached; with a list,
            within `wait_s`.
        """
        self._limits = limits or ClientLimits()
        self._transport = transport
        self._base: WeightUpdate | None = None
        """The weights without adapters, as they were published; None: none were."""
        self._base_state: object = None
        self._num_clears = 0
        self._sent = SentContexts()
        self._digest = ""
        """Of the newest weights that the servers have taken, from `join_digests`."""
        self._make_link = partial(self._link_type, token=token, ceiling=self._limits.max_concurrency)
        self._loop = LoopThread("served-policy")
        links = [self._make_link(number, url) for number, url in enumerate(urls)]
        self._fleet = self._make_fleet(
            links,
            expected or ExpectedModel(),
            check=partial(check_transport, transport.name),
            version=version,
            update_timeout_s=self._limits.update_timeout_s,
            wait_s=self._limits.wait_s,
            is_elastic=servers is not None,
        )
        try:
            self._loop.run(self._fleet.connect())
            self._loop.begin(self._fleet.watch(self._limits.watch_s))
            if servers is not None:
                membership = FleetMembership(self._fleet, servers, make_link=self._make_link)
                self._loop.begin(membership.follow(self._limits.follow_s))
            self._loop.run(self._fleet.wait_for_first())
        except BaseException:
            self.close()
            raise
        self._version = self._fleet.version
        self.accepts_weights = all(
            transport.name in link.info.transports for link in self._fleet.links if link.is_usable
        )

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one continuation.

        Raises: PolicyFailure: no server answers within the attempts, one refuses the request, or has no position left
            for the context. InvalidInput: an empty context, or sampling settings out of range.
        """
        self.check_sampling(request.sampling)
        limit = max_sampled_tokens(request, positions=self._fleet.max_context, where=_WHERE)
        return await self._loop.run_for(self._generate(request, limit))

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return for each sequence the raw log-prob of every token given those before it; 0.0 for the first.

        Raises: PolicyFailure: as `generate`.
        """
        return await self._loop.run_for(self._compute_logprobs(list(token_ids)))

    def update_weights(self, named_tensors: "Iterable[tuple[str, Tensor]]", version: int) -> None:
        """Bring new weights to all servers; requests under way go on with them after what they have sampled.

        Of `AdaptedWeights` the adapters are sent, and the base only to a server that does not have it.
        A server whose update fails is not used again until it was started anew.

        Raises: PolicyFailure: no server has the new weights.
        """
        update = self._publish(named_tensors, version)
        self._loop.run(self._fleet.update(update))
        self._version, self._digest = version, join_digests(update.digests)
        self._transport.finish(tuple(self._fleet.taking))

    def set_version(self, version: int) -> None:
        """Name the weights that the servers have, and find nothing again that was computed before."""
        self._loop.run(self._fleet.rename(version))
        self._version = version

    def clear_prefix_cache(self) -> None:
        self._num_clears += 1

    def close(self) -> None:
        """Let go of the servers, which go on; requests under way are cancelled. May be called twice."""
        if self._loop.is_running:
            self._loop.close(self._fleet.close())
            self._transport.close()

    @property
    def weights_state(self) -> WeightsState:
        """Which weights the servers have, for clients in other processes."""
        up = [link.started for link in list(self._fleet.links) if link.state is ServerState.UP]
        return WeightsState(self._version, self._digest, self._num_clears, servers=tuple(sorted(up)))

    def _publish(self, named_tensors: "Iterable[tuple[str, Tensor]]", version: int) -> WeightUpdate:
        if not isinstance(named_tensors, AdaptedWeights):
            return self._transport.publish(named_tensors, version)
        if self._base is None or self._base_state != named_tensors.base_state:
            self._base = self._transport.publish_base(named_tensors.base(), version)
            self._base_state = named_tensors.base_state
        return self._transport.publish(named_tensors.adapters(), version, base=self._base)

    # ---- on the client's loop ------------------------------------------------------------------------------------

    @property
    def _salt(self) -> str:
        return f"{self._version}.{self._num_clears}"

    async def _generate(self, request: GenerateRequest, limit: int) -> Generation:
        salt, sent = self._salt, self._sent.find(request)

        async def sample(link: ServerLink) -> Generation:
            version = link.version
            if link.info.has_frames:
                generation = await self._exchange_frames(link, request, limit, salt, sent)
            else:
                body = wire.generate_body(request, limit=limit, model=link.info.model, salt=salt)
                content = await link.ask("POST", wire.GENERATE, body, timeout_s=self._limits.timeout_s)
                generation = wire.read_generation(content, request)
            if generation.finish_reason is FinishReason.ABORT:
                raise BadResponse("the server gave the request up")
            newest = max(span.policy_version for span in generation.spans)
            if newest < version:
                raise _OldWeights(f"it sampled from version {newest}, but has version {version}")
            return generation

        hashes = partial(block_hashes, request.token_ids, salt)
        return await self._ask(hashes, sample, holder=None if sent is None else sent.server)

    async def _exchange_frames(
        self, link: ServerLink, request: GenerateRequest, limit: int, salt: str, sent: SentContext | None
    ) -> Generation:
        """Send the tokens that the server lacks: after `sent`, if it has that, or all."""
        key, timeout_s = self._sent.next_key(), self._limits.timeout_s
        write = partial(frames.write_request, request, key, limit=limit, model=link.info.model, salt=salt)
        body: bytes | None = None
        if sent is not None and sent.server == link.number:
            self._sent.retire(sent)
            frame = write(continues=sent.key.number, num_kept=sent.num_tokens)
            try:
                body = await link.send(frames.FRAMES, frame, timeout_s=timeout_s)
            except ServerRefused as error:
                if error.status != HTTPStatus.GONE:
                    raise
        if body is None:
            body = await link.send(frames.FRAMES, write(continues=0, num_kept=0), timeout_s=timeout_s)
        generation = frames.read_answer(body, request)
        self._sent.add(SentContext(key, link.number, request.token_ids, generation))
        return generation

    async def _compute_logprobs(self, rows: list[tuple[int, ...]]) -> list[tuple[float, ...]]:
        return list(await asyncio.gather(*[self._compute_row(row) for row in rows]))

    async def _compute_row(self, row: tuple[int, ...]) -> tuple[float, ...]:
        if not row:
            return ()
        salt = self._salt

        async def compute(link: ServerLink) -> tuple[float, ...]:
            model, timeout_s = link.info.model, self._limits.timeout_s
            if link.info.has_frames:
                frame = frames.write_row(row, model=model, salt=salt)
                return frames.read_row_answer(await link.send(frames.ROW_FRAMES, frame, timeout_s=timeout_s), row)
            body = wire.logprobs_body(row, model=model, salt=salt)
            content = await link.ask("POST", wire.GENERATE, body, timeout_s=timeout_s)
            return wire.read_row_logprobs(content, row)

        return await self._ask(partial(block_hashes, row, salt), compute)

    async def _ask(
        self,
        hashes: Callable[[], Sequence[int]],
        work: Callable[[ServerLink], Awaitable[T]],
        *,
        holder: int | None = None,
    ) -> T:
        """Let a server do some work, and another one if it fails.

        Args:
            hashes: returns those of the context's blocks.
            work: asks a server, and reads its answer.
            holder: number of the server that holds the context.
        """
        excluded: set[int] = set()
        reason = ""
        for attempt in range(self._limits.retries + 1):
            if attempt:
                count_failure(RETRIED)
            link = await self._fleet.queue.acquire(hashes, excluded, holder=holder)
            try:
                return await work(link)
            except (ConnectionFailed, TimeoutError, BadResponse, ServerRefused) as error:
                if isinstance(error, ServerRefused) and error.status in _REFUSED:
                    raise PolicyFailure(f"{link.url} refused the request: {error}") from error
                state = ServerState.BROKEN if isinstance(error, _OldWeights) else ServerState.DOWN
                reason = f"{link.url}: {type(error).__name__}: {error}".rstrip(": ")
                self._fleet.fail(link, state, error)
                excluded.add(link.number)
            finally:
                self._fleet.queue.release(link)
        tries = self._limits.retries + 1
        raise PolicyFailure(f"policy servers failed a request in {tries} attempts; the last error: {reason}")


class _OldWeights(BadResponse):
    """A server sampled from older weights than it was given."""
