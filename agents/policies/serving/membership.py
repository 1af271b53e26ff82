"""Policy servers that join and leave a fleet while it is used, as a list of addresses says that is watched."""

import asyncio
from collections.abc import Callable

from envgym.agents.policies.serving.fleet import ServerFleet
from envgym.agents.policies.serving.link import ServerLink, ServerRefused
from envgym.errors import InvalidInput
from envgym.runtime.http.client import ConnectionFailed
from envgym.runtime.membership import ServerChanges, WatchedServers
from envgym.runtime.processes.log import log_event


class FleetMembership:
    """Follows the list on the event loop of the fleet."""

    def __init__(
        self,
        fleet: ServerFleet,
        servers: WatchedServers,
        *,
        make_link: Callable[[int, str], ServerLink],
    ) -> None:
        self._fleet, self._servers, self._make_link = fleet, servers, make_link
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._num_links = len(fleet.links)
        """Servers that there ever were, which are numbered in this order."""

    async def follow(self, every_s: float) -> None:
        """Let servers join and leave until cancelled."""
        try:
            while True:
                self._joining = {url: task for url, task in self._joining.items() if not task.done()}
                used = [link.url for link in self._fleet.links if not link.is_leaving]
                self._apply(self._servers.changes([*used, *self._joining]))
                await self._let_go()
                await asyncio.sleep(every_s)
        finally:
            for task in self._joining.values():
                task.cancel()

    def _apply(self, changes: ServerChanges) -> None:
        """Begin to let servers join and leave."""
        links = {link.url: link for link in self._fleet.links}
        for url in changes.leaving:
            if task := self._joining.pop(url, None):
                task.cancel()
            else:
                self._leave(links[url])
        for url in changes.joining:
            if url in links:  # it is leaving, and stays
                links[url].is_leaving = False
            else:
                self._joining[url] = asyncio.ensure_future(self._join(url))

    async def _join(self, url: str) -> None:
        link = self._make_link(self._num_links, url)
        self._num_links += 1
        try:
            await self._fleet.admit(link)
        except asyncio.CancelledError:  # it is in the list no more
            await link.close()
            raise
        except (ConnectionFailed, TimeoutError, ServerRefused, ValueError) as error:  # as in `ServerFleet.look_at`
            await link.close()
            self._servers.note_failure(url, error)
        else:
            log_event("join", server=url, version=link.version)

    def _leave(self, link: ServerLink) -> None:
        """Ask a server nothing new."""
        log_event("leave", server=link.url)
        link.is_leaving = True
        self._fleet.queue.forget(link)

    async def _let_go(self) -> None:
        """Close the connections to servers that have left and answered everything."""
        for link in [link for link in self._fleet.links if link.is_leaving and not link.under_way]:
            self._fleet.links.remove(link)
            await link.close()


def check_transport(name: str, link: ServerLink) -> None:
    """See that a server which takes weights takes them by the run's way. Raises: InvalidInput."""
    ways, do = link.info.transports, "choose one of these as transport of engine.backend"
    must = f"be one that the server takes, {' or '.join(ways)}"
    InvalidInput.unless(not ways or name in ways, "transport of weights", must, name, where=link.url, do=do)
