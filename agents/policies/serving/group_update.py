"""One weight update on its way to several servers over process groups, on the client's event loop.

Servers that can take the same tensors over the same network are in one group. A server that fails is missed there, and
the others go on.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from envgym.agents.policies.weights.collective import RunGroup
from envgym.agents.policies.weights.transport import GroupSender, init_info
from envgym.core.json_types import JsonObject
from envgym.errors import PolicyFailure
from envgym.runtime.event_loop import in_daemon_thread

_ANSWER_S: Final = 2.0
"""Longest wait for the answer of a server to which the run could not send everything; the answer has the reason."""


class GroupUpdate:
    """The groups of one update, and what the run does in them."""

    def __init__(self, sender: GroupSender, servers: Collection[str]) -> None:
        """Begin without a group.

        Args:
            sender: of the update.
            servers: names of all servers that take it. Each calls `find_group` or `fail`.
        """
        self._sender, self._awaited = sender, set(servers)
        self._arrived: dict[bool, dict[str, tuple[str, int]]] = {False: {}, True: {}}
        """Whether the server has the base -> server -> host and port."""
        self._failed = set[str]()
        self._limits: dict[str, asyncio.Timeout] = {}
        """Server that is not ready yet -> the end of the wait for it."""
        self._ready_until: float | None = None
        """Time of the event loop until which the first server waits for other servers; None: no server is ready."""
        self._have_arrived = asyncio.Event()
        self._forming: asyncio.Task[None] | None = None
        self._groups: list[RunGroup] = []
        self._openings: dict[RunGroup, asyncio.Task[None]] = {}
        self._sendings: dict[tuple[RunGroup, GroupSender], asyncio.Task[None]] = {}

    @property
    def timeout_s(self) -> float:
        """Longest wait for a server that does nothing."""
        return self._sender.timeout_s

    @asynccontextmanager
    async def preparing(self, server: str) -> AsyncIterator[None]:
        """Limit what a server does before `find_group`: a server that is ready waits at most `timeout_s` for it.

        Raises: PolicyFailure: the server was not ready in time.
        """
        try:
            async with asyncio.timeout_at(self._ready_until) as limit:
                self._limits[server] = limit
                try:
                    yield
                finally:
                    del self._limits[server]
        except TimeoutError as error:
            if not limit.expired():
                raise
            reason = f"the server was not ready {self.timeout_s:g} s after another server"
            raise PolicyFailure(f"the weights could not be sent: {reason}") from error

    async def find_group(self, server: str, host: str, port: int, *, has_base: bool) -> RunGroup:
        """Wait for the other servers, and return the group of this one.

        Args:
            server: its name.
            host: where the run reaches it.
            port: as `host`.
            has_base: whether the server needs no base. All servers of a group need one, or none does.

        Raises: PolicyFailure: the run has no address that the server reaches, or cannot listen there.
        """
        if self._ready_until is None:
            self._ready_until = asyncio.get_running_loop().time() + self.timeout_s
            for limit in self._limits.values():
                limit.reschedule(self._ready_until)
        self._arrived[has_base][server] = host, port
        self._drop(server)
        await self._have_arrived.wait()
        if self._forming is None:
            self._forming = asyncio.ensure_future(self._form())
        await asyncio.shield(self._forming)
        for group in self._groups:
            if server in group.servers:
                return group
        raise PolicyFailure("the weights could not be sent: the run has no address that the server reaches")

    async def meet(
        self, group: RunGroup, server: str, ask: Callable[[JsonObject], Coroutine[Any, Any, object]]
    ) -> None:
        """Let a server join its group, if the group is new.

        Args:
            group: of the server.
            server: its name.
            ask: sends the body of `/init_weight_transfer_engine`.

        Raises: as `ask`; PolicyFailure: the server did not come in time.
        """
        opening = self._openings.get(group)
        if opening is not None:
            await _together(ask({"init_info": init_info(group.address(server))}), opening, group, server)

    async def send(
        self, sender: GroupSender, group: RunGroup, server: str, asking: Coroutine[Any, Any, object]
    ) -> None:
        """Send weights to the group once, while each of its servers receives them.

        Args:
            sender: of the weights: those of the update, or its base.
            group: of the server.
            server: its name.
            asking: returns when the server has the weights.

        Raises: as `asking`; PolicyFailure: the server did not take them in time.
        """
        key = group, sender
        if key not in self._sendings:
            self._sendings[key] = _begin(partial(sender.send, group))
        await _together(asking, self._sendings[key], group, server)

    def fail(self, server: str) -> None:
        """Go on without a server."""
        self._failed.add(server)
        for arrived in self._arrived.values():
            arrived.pop(server, None)
        self._miss_failed()
        self._drop(server)

    async def close(self) -> None:
        """Let go of the groups; those in which all went well are kept for the next update."""
        if self._forming is not None:
            await asyncio.wait([self._forming])  # servers that waited for it may have been cancelled
        await asyncio.to_thread(self._sender.release, self._groups)

    def _miss_failed(self) -> None:
        for group in self._groups:
            for server in self._failed.intersection(group.servers):
                group.miss(server)

    def _drop(self, server: str) -> None:
        self._awaited.discard(server)
        if not self._awaited:
            self._have_arrived.set()

    async def _form(self) -> None:
        for servers in self._arrived.values():
            try:
                if servers:
                    self._groups += await asyncio.to_thread(self._sender.find_groups, dict(servers))
            except Exception as error:  # torch's own, which differ by version
                raise PolicyFailure(f"the weights could not be sent: {error}") from error
        self._miss_failed()  # meanwhile
        self._openings = {group: _begin(group.open) for group in self._groups if not group.is_open}


def _begin(work: Callable[[], None]) -> asyncio.Task[None]:
    """Work in a daemon thread, since it may hang where a server dies; whoever waits sees its error."""
    task = asyncio.ensure_future(in_daemon_thread(work))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _together(asking: Awaitable[object], working: "asyncio.Task[None]", group: RunGroup, server: str) -> None:
    """Wait for a server's answer while the run does its part for the whole group.

    Raises: as `asking`; PolicyFailure: the run's part has failed for this server.
    """
    answer = asyncio.ensure_future(asking)
    try:
        await asyncio.wait([answer, working], return_when=asyncio.FIRST_COMPLETED)
        if working.done() and (reason := group.missed_reason(server) or working.exception()):
            await asyncio.wait([answer], timeout=_ANSWER_S)
            if not answer.done():
                raise PolicyFailure(f"the weights could not be sent: {reason}")
        await answer
    finally:
        answer.cancel()
