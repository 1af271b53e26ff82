"""Requests that wait for a place on a policy server, and which server each gets."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from envgym.agents.policies.serving.link import ServerLink, ServerState
from envgym.agents.policies.serving.routing import PrefixRouter, ServerLoad
from envgym.errors import InvalidInput, PolicyFailure

WAIT_S = 30.0
"""For a server to join or return, where none is up."""


class ServerQueue:
    """Servers and the requests that wait for one of them, used from one event loop."""

    def __init__(self, links: Sequence[ServerLink], *, wait_s: float, is_elastic: bool) -> None:
        """Begin without a request; the arguments are those of `ServerFleet`."""
        self.links = list(links)
        self._wait_s, self._is_elastic = wait_s, is_elastic
        self._router = PrefixRouter()
        self.waiting: deque[asyncio.Future[None]] = deque()
        """Requests that found no room."""

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
                    if self._is_hopeless:
                        break
                    await self._wait()
                else:
                    return up
        raise PolicyFailure(f"no policy server is up: {self.describe() or 'all have left'}")

    @property
    def _is_hopeless(self) -> bool:
        """Whether no server will be up again that was not restarted, and no other may join."""
        return not self._is_elastic and all(link.state is ServerState.BROKEN for link in self.links)

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

    async def wait_for_first(self) -> None:
        """Wait until a server is up. Raises: InvalidInput: none is in time."""
        try:
            await self._wait_for_up()
        except PolicyFailure as error:
            do = "look at their logs, start one again, or add another with envgym servers"
            got = self.describe() or "none"
            must = f"be up within {self._wait_s:g} s"
            raise InvalidInput.of("a policy server", must, got, where="all servers of the run", do=do) from error

    async def close(self) -> None:
        """Close all connections."""
        for link in self.links:
            await link.close()
