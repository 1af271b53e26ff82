"""The policy that samples from policy servers: balanced, retried on another server, with versions by the token."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

from envgym.agents.policies.endpoint import Json
from envgym.agents.policies.engine.requests import max_sampled_tokens
from envgym.agents.policies.serving import wire
from envgym.agents.policies.serving.fleet import WAIT_S, ServerFleet
from envgym.agents.policies.serving.link import ExpectedModel, ServerLink, ServerRefused, ServerState
from envgym.agents.policies.serving.membership import FleetMembership, check_transport
from envgym.agents.policies.serving.routing import block_hashes
from envgym.agents.policies.serving.weights_state import WeightsState, join_digests
from envgym.agents.policies.weights.transport import WeightTransport
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
        self._num_clears = 0
        self._joined: tuple[Mapping[str, str], str] = {}, ""
        """Digests of the newest weights, and the one digest of them all."""
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
        work = self._generate(request, limit)
        return await asyncio.wrap_future(self._loop.begin(work))

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return for each sequence the raw log-prob of every token given those before it; 0.0 for the first.

        Raises: PolicyFailure: as `generate`.
        """
        work = self._compute_logprobs(list(token_ids))
        return await asyncio.wrap_future(self._loop.begin(work))

    def update_weights(self, named_tensors: "Iterable[tuple[str, Tensor]]", version: int) -> None:
        """Bring new weights to all servers; requests under way go on with them after what they have sampled.

        A server whose update fails is not used again until it was started anew.

        Raises: PolicyFailure: no server has the new weights.
        """
        update = self._transport.publish(named_tensors, version)
        self._loop.run(self._fleet.update(update))
        self._version = version
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
        newest = self._fleet.newest
        if newest is not None and newest.digests is not self._joined[0]:
            self._joined = newest.digests, join_digests(newest.digests)
        return WeightsState(self._version, self._joined[1], self._num_clears)

    # ---- on the client's loop ------------------------------------------------------------------------------------

    @property
    def _salt(self) -> str:
        return f"{self._version}.{self._num_clears}"

    async def _generate(self, request: GenerateRequest, limit: int) -> Generation:
        salt = self._salt

        def read(content: object, version: int) -> Generation:
            generation = wire.read_generation(content, request)
            if generation.finish_reason is FinishReason.ABORT:
                raise BadResponse("the server gave the request up")
            newest = max(span.policy_version for span in generation.spans)
            if newest < version:
                raise _OldWeights(f"it sampled from version {newest}, but has version {version}")
            return generation

        def body(model: str) -> Json:
            return wire.generate_body(request, limit=limit, model=model, salt=salt)

        return await self._ask(block_hashes(request.token_ids, salt), body, read)

    async def _compute_logprobs(self, rows: list[tuple[int, ...]]) -> list[tuple[float, ...]]:
        return list(await asyncio.gather(*[self._compute_row(row) for row in rows]))

    async def _compute_row(self, row: tuple[int, ...]) -> tuple[float, ...]:
        if not row:
            return ()
        salt = self._salt
        return await self._ask(
            block_hashes(row, salt),
            lambda model: wire.logprobs_body(row, model=model, salt=salt),
            lambda content, version: wire.read_row_logprobs(content, row),
        )

    async def _ask(self, hashes: Sequence[int], body: Callable[[str], Json], read: Callable[[object, int], T]) -> T:
        """Ask a server, and read its answer with the version that the server had when it was asked."""
        excluded: set[int] = set()
        reason = ""
        for attempt in range(self._limits.retries + 1):
            if attempt:
                count_failure(RETRIED)
            link = await self._fleet.queue.acquire(hashes, excluded)
            version = link.version
            try:
                message = body(link.info.model)
                return read(await link.ask("POST", wire.GENERATE, message, timeout_s=self._limits.timeout_s), version)
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
