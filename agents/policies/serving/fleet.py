"""The policy servers of one run together: which is used for a request, how many it has, which has gone and returned."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
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
        self._num_links = len(self.links)
        """Servers that there ever were, which are numbered in this order."""
        self._expected, self._update_timeout_s = expected, update_timeout_s
        self._router = PrefixRouter()
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Requests that found no room."""
        self.newest: WeightUpdate | None = None
        """The weights that every server must have; None: those it was started with."""
        self._updates = asyncio.Lock()
        self.version = self._first_version = 0
        """Of the weights that all servers have, or will have; and that they had when they were connected to."""

    async def connect(self, version: int) -> None:
        """Connect to all servers. Raises: InvalidInput: one cannot be used."""
        connecting = [link.connect(self._expected, version) for link in self.links]
        for failure in await asyncio.gather(*connecting, return_exceptions=True):
            if failure is not None:
                raise failure
        versions = {link.version for link in self.links}
        if len(versions) > 1:
            do = "start all of them with the same weights"
            raise InvalidInput.of("servers", "serve one version", sorted(versions), where="policy servers", do=do)
        self.version = self._first_version = versions.pop()

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
        self._wake(1)

    def fail(self, link: ServerLink, state: ServerState, reason: object) -> None:
        """Use a server no more, for now or until it is started again."""
        link.fail(state, reason)
        self._router.forget(link.number)
        self._wake(len(self._waiting))

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
        self._waiting.append(change)
        try:
            await change
        except asyncio.CancelledError:
            if change.done() and not change.cancelled():
                self._wake(1)  # the room is for somebody else
            raise

    def _wake(self, count: int) -> None:
        while count and self._waiting:
            change = self._waiting.popleft()
            if not change.done():
                change.set_result(None)
                count -= 1

    def describe(self) -> str:
        """Say of each server how it is."""
        return "; ".join(map(str, self.links))

    # ---- weights -------------------------------------------------------------------------------------------------

    async def update(self, update: WeightUpdate) -> None:
        """Let all servers that answer take new weights. Raises: PolicyFailure: none has them."""
        async with self._updates:
            self.newest, self.version = update, update.version
            await asyncio.gather(*[self._update(link) for link in self.links if link.state is ServerState.UP])
        if not any(link.is_usable for link in self.links):
            if self._is_elastic:  # one may join, and gets them first
                await self._wait_for_up()
                return
            raise PolicyFailure(f"no policy server has the weights of version {update.version}: {self.describe()}")

    async def _update(self, link: ServerLink) -> None:
        assert self.newest is not None, "there are weights to take"
        await link.update(self.newest, timeout_s=self._update_timeout_s)
        self._router.forget(link.number)

    # ---- joining and leaving -------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """Return the number of the next server that joins."""
        self._num_links += 1
        return self._num_links - 1

    async def join(self, link: ServerLink, check: Callable[[Sequence[ServerLink]], None]) -> None:
        """Use one more server, with the newest weights.

        Args:
            link: to it; nothing was sent to it yet.
            check: refuses one that takes no weights in the way of this run.

        Raises: InvalidInput: it cannot be used.
        """
        do = "look into its log, and start it again"
        async with self._updates:
            try:
                await link.connect(self._expected, self.version)
                check([link])
                if self.newest is not None:
                    await link.update(self.newest, timeout_s=self._update_timeout_s)
                    must = f"take the weights of version {self.newest.version}"
                    InvalidInput.unless(link.is_usable, "server", must, link.reason, where=link.url, do=do)
                elif link.version != self._first_version:
                    must, do = f"serve version {self._first_version}", "start it with the weights of the others"
                    raise InvalidInput.of("server that joins", must, link.version, where=link.url, do=do)
                if link.version != self.version:
                    await link.rename(self.version)
            except (ConnectionFailed, TimeoutError, ServerRefused) as error:
                got = f"{type(error).__name__}: {error}".rstrip(": ")
                raise InvalidInput.of("server", "answer", got, where=link.url, do=do) from error
            self.links.append(link)
        self._wake(len(self._waiting))

    def leave(self, link: ServerLink) -> None:
        """Ask a server nothing new."""
        link.is_leaving = True
        self._router.forget(link.number)
        self._wake(len(self._waiting))

    async def let_go(self) -> None:
        """Close the connections to servers that have left and answered everything."""
        gone = [link for link in self.links if link.is_leaving and not link.under_way]
        self.links = [link for link in self.links if link not in gone]
        for link in gone:
            await link.close()

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
        self._wake(len(self._waiting))

    async def _take_back(self, link: ServerLink) -> None:
        """Use a server again, with the newest weights; one that is broken only after another start.

        Raises: as `ServerLink.connect`, such as where another model was started there: it stays away.
        """
        info = await link.read_info()
        is_new = info.instance != link.info.instance or info.weight_version == UNNAMED
        if link.state is ServerState.BROKEN and not is_new:
            return
        async with self._updates:
            link.state = ServerState.DOWN
            version = link.version if self.newest is None else self.newest.version
            await link.connect(self._expected, version)
            if self.newest is not None and link.version != version:
                await self._update(link)
