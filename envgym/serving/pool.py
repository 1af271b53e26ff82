"""Environment servers that share the sessions of a process; servers join and leave as a list says that is watched."""

import asyncio
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache

from envgym.errors import EnvFailure, InfrastructureError, InvalidInput
from envgym.runtime.event_loop import run_without_loop
from envgym.runtime.membership import FOLLOW_S, WatchedServers
from envgym.runtime.processes.log import log_event
from envgym.serving import wire
from envgym.serving.client import BLOCKING, ClientIo, ServerClient
from envgym.serving.fields import check_description
from envgym.serving.held_session import EnvSession, log_ids, new_session_id, pauses
from envgym.serving.wire import Json, ServerBusy, ServerUnreachable

_LOOK_S = 0.05
"""Until a server is looked for again where none answers."""


class ServerPool:
    """Several servers that serve the same environments; sessions go to the one that has fewest of this client."""

    def __init__(self, urls: tuple[str, ...], token: str | None) -> None:
        """Point at servers. Raises: InvalidInput: an address is none."""
        self._token = token
        self._first = self.clients = tuple(ServerClient(url, token) for url in urls)
        """Those that new sessions go to; another tuple where a server joins or leaves. `_first`: where none may."""
        self._left: dict[str, ServerClient] = {}
        """Address -> server that has left, whose sessions go on."""
        self._digests: dict[tuple[str, bytes], str] = {}
        """(id of an env, settings) -> what every server must say of it."""
        self._wait_s = 0.0
        """Longest wait for a server where none answers; without a list there is no wait."""
        self._changing = threading.Lock()

    def describe(self, env_id: str, settings: Json) -> Json:
        """Ask the servers for the description of an environment.

        With a list, servers that do not answer are left out where another does: each compares the environment with what
        is returned here when it opens a session.

        Raises: InvalidInput, UnknownName: what a server refuses, that none can be reached in time, or that two differ.
        """
        deadline = time.monotonic() + self._wait_s
        descriptions: dict[str, Json] = {}
        try:
            while not descriptions:
                for client in self.clients:
                    try:
                        descriptions[client.url] = _describe(client, env_id, settings)
                    except ServerUnreachable:
                        if not self._wait_s:
                            raise
                if not descriptions:
                    run_without_loop(self._wait_for_server(BLOCKING, deadline))
        except EnvFailure as error:
            raise InvalidInput(str(error)) from error
        (first, described), *others = descriptions.items()
        for url, other in others:
            if other["digest"] != described["digest"]:
                raise _other(env_id, first, url)
        self._digests[env_id, wire.encode(settings)] = str(described["digest"])
        return described

    def request(self, path: str, data: Json) -> Json:
        """Send a request that any server can answer. Raises: as `ServerClient.request`."""
        return run_without_loop(self._request(BLOCKING, path, data))

    async def _request(self, io: ClientIo, path: str, data: Json) -> Json:
        deadline = time.monotonic() + self._wait_s
        while True:
            clients = self._ordered()
            for client in clients:
                is_last = client is clients[-1] and not self._wait_s
                try:
                    return await client.request(io, path, data, reconnect_s=None if is_last else 0)
                except ServerUnreachable:
                    if is_last:
                        raise
            await self._wait_for_server(io, deadline)

    async def open(self, io: ClientIo, data: Json) -> tuple[EnvSession, Json]:
        """Open a session where there is room; return it with the reply.

        Raises: ServerBusy: none has become free in time. EnvFailure: no server answers. What the env's reset raises.
        """
        deadline = time.monotonic() + self._wait_s
        patience = pauses()  # with servers that are busy; those that do not answer have a deadline
        while True:
            errors: list[InfrastructureError] = []
            clients = self._ordered()
            for client in clients:
                session = EnvSession(client, new_session_id())
                message = {"session": session.id, "number": 0, **data, **log_ids()}
                waits = client is clients[-1] and not self._wait_s
                client.opening.add(session.id)
                try:
                    reply = await client.request(io, wire.OPEN, message, reconnect_s=None if waits else 0)
                except (ServerBusy, ServerUnreachable) as error:
                    errors.append(error)
                except asyncio.CancelledError:
                    session.close_soon()  # the server may have opened it
                    raise
                else:
                    session.hold()
                    return session, reply
                finally:
                    client.opening.discard(session.id)
            busy = [error for error in errors if isinstance(error, ServerBusy)]
            if busy:
                pause_s = next(patience, None)
                if pause_s is None:
                    raise busy[0]
                await io.sleep(pause_s)
            elif errors and not self._wait_s:
                raise errors[0]
            else:
                await self._wait_for_server(io, deadline)

    def client_of(self, url: str) -> ServerClient:
        """Return the server at an address, whether it takes new sessions or has left. Raises: EnvFailure: none is."""
        for client in (*self.clients, *self._left.values()):
            if client.url == url:
                return client
        do = "begin the episode again"
        raise ServerUnreachable.of("environment server", "be one of the run's", url, where="session", do=do)

    def _ordered(self) -> list[ServerClient]:
        return sorted(self.clients, key=lambda client: len(client.held) + len(client.opening))

    async def _wait_for_server(self, io: ClientIo, deadline: float) -> None:
        """Wait a moment, in which a server may join.

        Raises: ServerUnreachable: the deadline is over, or no server can join any more.
        """
        left = deadline - time.monotonic()
        if left > 0:
            await io.sleep(min(left, _LOOK_S))
        if left <= 0 or not self._wait_s:
            got = ", ".join(client.url for client in self.clients) or "none"
            do = "look at their logs, start one again, or add another with envgym servers"
            must = f"answer within {self._wait_s:g} s" if self._wait_s else "answer before the run ends"
            raise ServerUnreachable.of("an environment server", must, got, where="all servers of the run", do=do)

    # ---- joining and leaving -----------------------------------------------------------------------------------------

    @contextmanager
    def following(self, servers: WatchedServers, *, wait_s: float) -> Iterator[None]:
        """Let servers join and leave during a block, as a list says; its end leaves the pool as it was constructed.

        `wait_s` is the longest wait of a session for a server where none answers.
        """
        self._wait_s = wait_s
        is_over = threading.Event()
        thread = threading.Thread(target=self._follow, args=(servers, is_over), name="env-servers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end_following(is_over)

    def _end_following(self, is_over: threading.Event) -> None:
        """Take the servers of the beginning again; sessions go on where they are, and nobody waits any more."""
        with self._changing:
            is_over.set()
            self._wait_s = 0.0
            first = {client.url for client in self._first}
            self._let_leave([client.url for client in self.clients if client.url not in first])
            used = {client.url: client for client in self.clients}
            self._first = self.clients = tuple(used.get(client.url) or client.renewed() for client in self._first)

    def _follow(self, servers: WatchedServers, is_over: threading.Event) -> None:
        while not is_over.wait(FOLLOW_S):
            changes = servers.changes([client.url for client in self.clients])
            with self._changing:
                if is_over.is_set():
                    return
                self._let_leave(changes.leaving)
            for url in changes.joining:
                try:
                    self._join(url, is_over)
                except (EnvFailure, InvalidInput) as error:
                    if not is_over.is_set():
                        servers.note_failure(url, error)

    def _let_leave(self, urls: Collection[str]) -> None:
        """Send no new sessions to some servers, and forget those that have left without any; under the lock."""
        leaving = [client for client in self.clients if client.url in urls]
        self.clients = tuple(client for client in self.clients if client.url not in urls)
        for client in leaving:
            client.has_left = True
            self._left[client.url] = client
            log_event("leave", server=client.url)
        for url, client in list(self._left.items()):
            if not client.held:
                del self._left[url]
                client.close_idle()

    def _join(self, url: str, is_over: threading.Event) -> None:
        """Use one more server, unless the block ends meanwhile.

        Raises: EnvFailure: it cannot be reached. InvalidInput: it serves something else.
        """
        client = ServerClient(url, self._token)
        try:
            for (env_id, settings), digest in list(self._digests.items()):
                if _describe(client, env_id, wire.decode(settings))["digest"] != digest:
                    raise _other(env_id, "the others", url)
            with self._changing:
                if not is_over.is_set():
                    self.clients = (*self.clients, client)
                    log_event("join", server=url)
        finally:
            if client not in self.clients:
                client.close_idle()


def _describe(client: ServerClient, env_id: str, settings: Json) -> Json:
    """Ask a server for the description of an environment. Raises: as `ServerClient.request`."""
    data = {**wire.versions(), "time": time.time(), "env": env_id, "settings": settings}
    reply = run_without_loop(client.request(BLOCKING, wire.DESCRIBE, data, reconnect_s=0))
    with wire.reading(client.url):
        check_description(reply)
    client.call_s, client.lease_s = reply["call_s"], reply["lease_s"]
    return reply


def _other(env_id: str, first: str, second: str) -> InvalidInput:
    where, do = f"{first} and {second}", "start all with one version and one --set"
    return InvalidInput.of(f"{env_id} of the servers", "be the same", "two", where=where, do=do)


def pool_of(urls: tuple[str, ...]) -> ServerPool:
    """Return the servers at these addresses; a process has one pool of them. Raises: as `ServerPool`."""
    return _pool(urls, os.environ.get(wire.TOKEN_VARIABLE))


_pool = cache(ServerPool)
