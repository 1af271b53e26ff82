"""The policy servers of one run together: which is used for a request, how many it has, which has gone and returned."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from envgym.agents.policies.serving.http import ConnectionFailed
from envgym.agents.policies.serving.link import UNNAMED, ExpectedModel, ServerLink, ServerRefused, ServerState
from envgym.agents.policies.serving.routing import PrefixRouter, ServerLoad
from envgym.agents.policies.serving.transport import WeightUpdate
from envgym.errors import InvalidInput, PolicyFailure

WAIT_S = 30.0
"""For a server to join or return, where none is up."""


class ServerFleet:
    """Servers, used from one event loop."""

    def __init__(
        self,
        links: Sequence[ServerLink],
        expected: ExpectedModel,
        *,
        update_timeout_s: float,
        wait_s: float = WAIT_S,
        is_elastic: bool = False,
    ) -> None:
        """Take the servers, to none of which anything was sent.

        Args:
            links: to the servers of the beginning.
            expected: what all of them must serve.
            update_timeout_s: longest weight update.
            wait_s: longest wait for a server where none is up.
            is_elastic: whether others may join, so that a wait has a point though every server is broken.
        """
        self.links = list(links)
        self._wait_s, self._is_elastic = wait_s, is_elastic
        self.expected, self.update_timeout_s = expected, update_timeout_s
        self._router = PrefixRouter()
        self.waiting: deque[asyncio.Future[None]] = deque()
        """Requests that found no room."""
        self.newest: WeightUpdate | None = None
        """The weights that every server must have; None: those it was started with."""
        self.updates = asyncio.Lock()
        self.version = self.first_version = 0
        """Of the weights that all servers have, or will have; and that they had when they were connected to."""

    async def connect(self, version: int) -> None:
        """Connect to all servers. Raises: InvalidInput: one cannot be used."""
        connecting = [link.connect(self.expected, version) for link in self.links]
        for failure in await asyncio.gather(*connecting, return_exceptions=True):
            if failure is not None:
                raise failure
        versions = {link.version for link in self.links}
        if len(versions) > 1:
            do = "start all of them with the same weights"
            raise InvalidInput.of("servers", "serve one version", sorted(versions), where="policy servers", do=do)
        self.version = self.first_version = versions.pop()

    async def close(self) -> None:
        """Close all connections."""
        for link in self.links:
            await link.close()

    # ---- requests ------------------------------------------------------------------------------------------------

    async def acquire(self, hashes: Sequence[int], excluded: set[int]) -> ServerLink:
        """Wait for a server with room, best the one that holds the context.

        Args:
            hashes: of the context's blocks.
            excluded: numbers of servers that have failed the request, and are used again only where no other is up.

        Raises: PolicyFailure: no server is up, and none that is down returns in time.
        """
        while True:
            up = await self._wait_for_up()
            usable = [link for link in up if link.number not in excluded] or up
            loads = [ServerLoad(link.number, link.under_way, link.limit.allows(link.under_way)) for link in usable]
            number = self._router.choose(hashes, loads)
            if number is not None:
                link = next(link for link in usable if link.number == number)
                self._router.note(hashes, number)
                link.under_way += 1
                link.limit = link.limit.begin(link.under_way)
                return link
            await self._wait()

    def release(self, link: ServerLink) -> None:
        """Give a request's place back."""
        link.under_way -= 1
        self.wake(1)

    def fail(self, link: ServerLink, state: ServerState, reason: object) -> None:
        """Use a server no more, for now or until it is started again."""
        link.fail(state, reason)
        self.forget(link)

    def forget(self, link: ServerLink) -> None:
        """Let requests that wait for a server look for others; its prefixes are not looked for any more."""
        self._router.forget(link.number)
        self.wake(len(self.waiting))

    async def _wait_for_up(self) -> list[ServerLink]:
        """Return the servers that are up: at least one. Raises: PolicyFailure: as `acquire`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                while not (up := [link for link in self.links if link.is_usable]):
                    if not self._is_elastic and all(link.state is ServerState.BROKEN for link in self.links):
                        break
                    await self._wait()
                else:
                    return up
        raise PolicyFailure(f"no policy server is up: {self.describe() or 'all have left'}")

    async def _wait(self) -> None:
        """Wait until there may be room."""
        change = asyncio.get_running_loop().create_future()
        self.waiting.append(change)
        try:
            await change
        except asyncio.CancelledError:
            if change.done() and not change.cancelled():
                self.wake(1)  # the room is for somebody else
            raise

    def wake(self, count: int) -> None:
        """Let so many requests look for room again."""
        while count and self.waiting:
            change = self.waiting.popleft()
            if not change.done():
                change.set_result(None)
                count -= 1

    def describe(self) -> str:
        """Say of each server how it is."""
        return "; ".join(map(str, self.links))

    # ---- weights -------------------------------------------------------------------------------------------------

    async def update(self, update: WeightUpdate) -> None:
        """Let all servers that answer take new weights. Raises: PolicyFailure: none has them."""
        async with self.updates:
            self.newest, self.version = update, update.version
            await asyncio.gather(*[self._update(link) for link in self.links if link.state is ServerState.UP])
        if not any(link.is_usable for link in self.links):
            if self._is_elastic:  # one may join, and gets them first
                await self._wait_for_up()
                return
            raise PolicyFailure(f"no policy server has the weights of version {update.version}: {self.describe()}")

    async def _update(self, link: ServerLink) -> None:
        assert self.newest is not None, "there are weights to take"
        await link.update(self.newest, timeout_s=self.update_timeout_s)
        self._router.forget(link.number)

    async def rename(self, version: int) -> None:
        """Name the weights that all servers have."""
        self.version = version
        for link in self.links:
            if link.state is ServerState.UP:
                try:
                    await link.rename(version)
                except (ConnectionFailed, TimeoutError, ServerRefused) as error:
                    self.fail(link, ServerState.DOWN, error)

    # ---- watching ------------------------------------------------------------------------------------------------

    async def watch(self, every_s: float) -> None:
        """Adapt the limits, and take servers back that have returned, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await asyncio.gather(*[self.look_at(link) for link in self.links if not link.is_leaving])

    async def look_at(self, link: ServerLink) -> None:
        """Learn how one server is."""
        try:
            if link.state is ServerState.UP:
                link.limit = link.limit.observe(await link.count_preemptions(), link.under_way)
            else:
                await self._take_back(link)
        except (ConnectionFailed, TimeoutError, ServerRefused, ValueError) as error:  # of ValueError: InvalidInput
            self.fail(link, ServerState.DOWN, error)
        self.wake(len(self.waiting))

    async def _take_back(self, link: ServerLink) -> None:
        """Use a server again, with the newest weights; one that is broken only after another start.

        Raises: as `ServerLink.connect`, such as where another model was started there: it stays away.
        """
        info = await link.read_info()
        is_new = info.instance != link.info.instance or info.weight_version == UNNAMED
        if link.state is ServerState.BROKEN and not is_new:
            return
        async with self.updates:
            link.state = ServerState.DOWN
            version = link.version if self.newest is None else self.newest.version
            await link.connect(self.expected, version)
            if self.newest is not None and link.version != version:
                await self._update(link)
