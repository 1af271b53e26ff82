"""Policy servers that join and leave a fleet while it is used, as a list of addresses says that is watched."""

import asyncio
from collections.abc import Callable, Sequence

from envgym.agents.policies.serving.fleet import ServerFleet
from envgym.agents.policies.serving.http import ConnectionFailed
from envgym.agents.policies.serving.link import ServerLink, ServerRefused
from envgym.errors import InvalidInput
from envgym.process_log import log_event
from envgym.server_list import WatchedServers, warn_user

_AGAIN_S = 2.0
"""Until a server that could not join is tried again, while its address is in the list."""


class FleetMembership:
    """Follows the list on the event loop of the fleet."""

    def __init__(
        self,
        fleet: ServerFleet,
        servers: WatchedServers,
        *,
        make_link: Callable[[int, str], ServerLink],
    ) -> None:
        """Follow nothing yet.

        Args:
            fleet: of the servers of the beginning.
            servers: the list.
            make_link: returns the link to a server, given its number and address.
        """
        self._fleet, self._servers, self._make_link = fleet, servers, make_link
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._num_links = len(fleet.links)
        """Servers that there ever were, which are numbered in this order."""

    async def follow(self, every_s: float) -> None:
        """Let servers join and leave until cancelled."""
        try:
            while True:
                urls = self._servers.changed()
                if urls is not None:
                    self._apply(urls)
                await self._let_go()
                await asyncio.sleep(every_s)
        finally:
            for task in self._joining.values():
                task.cancel()

    def _apply(self, urls: Sequence[str]) -> None:
        """Begin to let servers join and leave."""
        for link in self._fleet.links:
            link.is_leaving = link.is_leaving and link.url not in urls  # one that is in the list again stays
        used = {link.url: link for link in self._fleet.links if not link.is_leaving}
        for url in used.keys() - set(urls):
            self._leave(used[url])
        for url in self._joining.keys() - set(urls):
            self._joining.pop(url).cancel()
        for url in urls:
            if url not in used and url not in self._joining:
                self._joining[url] = asyncio.ensure_future(self._join(url))

    async def _join(self, url: str) -> None:
        """Let a server join as soon as it can; one sentence says why it cannot yet."""
        told = ""
        while True:
            link = self._make_link(self._num_links, url)
            self._num_links += 1
            try:
                await self._fleet.admit(link)
            except asyncio.CancelledError:  # it is in the list no more
                await link.close()
                raise
            except (ConnectionFailed, TimeoutError, ServerRefused, ValueError) as error:  # as in `ServerFleet.look_at`
                await link.close()
                if str(error) != told:
                    told = str(error)
                    warn_user(f"{url} cannot join: {told}")
                await asyncio.sleep(_AGAIN_S)
            else:
                self._joining.pop(url, None)
                log_event("join", server=url, version=link.version)
                return

    def _leave(self, link: ServerLink) -> None:
        """Ask a server nothing new."""
        log_event("leave", server=link.url)
        link.is_leaving = True
        self._fleet.forget(link)

    async def _let_go(self) -> None:
        """Close the connections to servers that have left and answered everything."""
        gone = [link for link in self._fleet.links if link.is_leaving and not link.under_way]
        self._fleet.links = [link for link in self._fleet.links if link not in gone]
        for link in gone:
            await link.close()


def check_transport(name: str, link: ServerLink) -> None:
    """See that a server which takes weights takes them by the run's way. Raises: InvalidInput."""
    ways, do = link.info.transports, "choose one of these as transport of engine.backend"
    must = f"be one that the server takes, {' or '.join(ways)}"
    InvalidInput.unless(not ways or name in ways, "transport of weights", must, name, where=link.url, do=do)
