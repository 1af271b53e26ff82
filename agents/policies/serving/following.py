"""The policy that samples from servers to which another process brings new weights: that of a rollout worker.

It never changes a server. A server is used when it has the weights that the other process names, by version and by
checksum: the other process has compared those of the servers that it names, this one compares those of the others. An
answer from older weights makes the server unusable until it is started again, as in `ServedPolicy`.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from envgym.agents.policies.serving.client import ClientLimits, ServedPolicy
from envgym.agents.policies.serving.fleet import FirstServers, ServerFleet
from envgym.agents.policies.serving.link import (
    ExpectedModel,
    PolicyServerUnreachable,
    ServerLink,
    ServerRefused,
    ServerState,
)
from envgym.agents.policies.serving.weights_state import WeightsState, join_digests
from envgym.agents.policies.weights.transport import WeightUpdate
from envgym.errors import PolicyFailure
from envgym.runtime.membership import WatchedServers

if TYPE_CHECKING:
    from torch import Tensor


class FollowedLink(ServerLink):
    """The connections to a server that is only read and asked for samples."""

    is_known = False
    """Whether it has answered, and serves the model."""

    async def connect(self, expected: ExpectedModel, version: int) -> bool:
        """See what the server serves. Raises: as `ask`; InvalidInput: it is another model, or has other weights."""
        info = await self.read_info()
        self._check(info, expected)
        self.is_known = True
        if info.weight_version != str(version):
            raise self._other(f"version {info.weight_version}", f"have version {version}")
        await self._check_sampling()
        self.info, self.version = info, version
        return False

    async def _check_sampling(self) -> None:
        """See that the server is in no weight update, also in none that has failed. Raises: as `connect`."""
        try:
            answer = await self.ask("GET", "/is_paused")
        except ServerRefused as error:
            if error.status == 404:
                return
            raise
        if isinstance(answer, dict) and answer.get("is_paused"):
            raise self._other("a weight update that has not ended", "sample")

    async def check_weights(self, digest: str, *, timeout_s: float) -> None:
        """Compare the server's weights. Raises: as `connect`."""
        answer = await self.ask("POST", "/weight_checker", {"action": "checksum"}, timeout_s=timeout_s)
        checksums = answer.get("checksums") if isinstance(answer, dict) else None
        if join_digests(checksums if isinstance(checksums, dict) else {}) != digest:
            raise self._other("other checksums", f"have the weights of version {self.version}")

    def _other(self, got: str, must: str) -> PolicyServerUnreachable:
        do = "wait until the run has updated it"
        return PolicyServerUnreachable.of("server", must, got, where=self.url, do=do)


class FollowingFleet(ServerFleet):
    """Servers whose weights follow a state that another process names."""

    state = WeightsState(0)
    """Of the weights that a server must have to be used."""

    async def connect(self) -> None:
        """Use the servers that can be used; `watch` tries the others again."""
        for link in self.links:
            await self.look_at(link)

    async def wait_for_first(self) -> None:
        """Wait until a server has answered: its weights may change before the first request. Raises: as there."""
        if not any(isinstance(link, FollowedLink) and link.is_known for link in self.links):
            await super().wait_for_first()

    async def follow(self, state: WeightsState) -> None:
        """Expect other weights from now on; those of servers that the state does not name are compared again."""
        before, self.state, self.version = self.state, state, state.version
        for link in self.links:
            if link.state is not ServerState.UP:
                continue
            if link.started in state.servers:
                link.version = state.version  # an answer of an older one makes it unusable
            elif state[:2] != before[:2] or link.started in before.servers:
                self.fail(link, ServerState.DOWN, "its weights are to be compared again")

    async def admit(self, link: ServerLink) -> None:
        """Use a server if it has the weights of the state. Raises: as `ServerFleet.admit`."""
        assert isinstance(link, FollowedLink), "the policy makes them"
        state = self.state
        await link.connect(self._expected, state.version)
        self._check(link)
        if self._first is None:
            self._first = FirstServers.of([link])
        self._first.check(link, has_first_weights=False)
        if state.digest:
            await link.check_weights(state.digest, timeout_s=self._update_timeout_s)
        if (state.version, state.digest) != (self.state.version, self.state.digest):
            raise ServerRefused(409, "the weights have changed meanwhile")
        if link not in self.links:
            self.links.append(link)
        link.use()
        self.queue.forget(link)


class _NoTransport:
    """In place of a transport: this process brings no weights."""

    def __init__(self, name: str) -> None:
        self.name = name

    def publish(
        self, named_tensors: "Iterable[tuple[str, Tensor]]", version: int, *, base: WeightUpdate | None = None
    ) -> WeightUpdate:
        raise PolicyFailure("the run's process updates the policy servers")

    def publish_base(self, named_tensors: "Iterable[tuple[str, Tensor]]", version: int) -> WeightUpdate:
        return self.publish(named_tensors, version)

    def finish(self, taking: Collection[int] = ()) -> None:
        return

    def close(self) -> None:
        return


class FollowingPolicy(ServedPolicy):
    """Samples from policy servers whose weights another process updates."""

    _link_type = FollowedLink

    def __init__(
        self,
        urls: Sequence[str],
        *,
        transport: str,
        state: WeightsState,
        expected: ExpectedModel,
        token: str | None,
        limits: ClientLimits,
        servers: WatchedServers | None,
    ) -> None:
        """Connect to the servers.

        Args:
            urls: of the servers.
            transport: by which the other process brings new weights.
            state: of the weights.
            expected: what the servers must serve.
            token: that the servers ask for.
            limits: how hard they are used by this process.
            servers: list by which servers join and leave; None: these stay.

        Raises: InvalidInput: no server can be used within `wait_s`, nor has one answered that has other weights.
        """
        self._state = state

        def make_fleet(*arguments: Any, **options: Any) -> ServerFleet:  # those of `ServerFleet`
            fleet = FollowingFleet(*arguments, **options)
            fleet.state = state
            return fleet

        self._make_fleet = make_fleet
        super().__init__(
            urls,
            transport=_NoTransport(transport),
            expected=expected,
            token=token,
            limits=limits,
            version=state.version,
            servers=servers,
        )
        self.accepts_weights, self._num_clears = False, state.num_clears

    def follow(self, state: WeightsState) -> None:
        """Expect other weights from now on; requests under way are not affected."""
        if state == self._state:
            return
        self._state = state
        assert isinstance(self._fleet, FollowingFleet), "the class names it"
        self._loop.run(self._fleet.follow(state))
        self._version, self._num_clears = state.version, state.num_clears
