"""The client of environment servers: connections, retries, patience with a busy server, and signs of life.

A request that got no reply is sent again, with its number, so that no turn is played twice. Connections are shared by
all sessions of the process; a call takes one for itself.

The same coroutines serve both ways of calling: `BLOCKING` waits in the calling thread, so that `run_without_loop` runs
them, and `LOOP` waits in the event loop of `env_loop`.
"""

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import urlsplit

from envgym.errors import InfrastructureError, InvalidInput
from envgym.runtime.backoff import Backoff
from envgym.runtime.error_log import log_error
from envgym.runtime.event_loop import LoopThread, run_without_loop, shared_loop
from envgym.runtime.http.client import (
    BlockingConnection,
    ConnectionFailed,
    HttpAnswer,
    encode_request,
    request_headers,
)
from envgym.runtime.http.connections import HttpConnections
from envgym.serving import wire
from envgym.serving.wire import Json, ServerUnreachable

RECONNECT_S: Final = 30.0
"""A server that cannot be reached is tried again for so long; a new session is opened elsewhere meanwhile."""
CALL_S: Final = 600.0
"""Longest call before the server has said how long one may take."""
CLOSE_S: Final = 10.0
IDLE_S: Final = 30.0
"""A connection that was not used for so long is closed."""
_GRACE_S = 10.0
"""A server that gives a call up says so itself."""
_CONNECT_S = 10.0
BACKOFF: Final = Backoff(0.05, 2.0)


class ClientIo(Protocol):
    """How calls wait."""

    async def exchange(self, client: "ServerClient", request: bytes, within_s: float) -> HttpAnswer:
        """Send a request to a server, and return the answer. Raises: OSError: as of `HttpConnections.exchange`."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class _BlockingIo:
    """Waits in the calling thread."""

    async def exchange(self, client: "ServerClient", request: bytes, within_s: float) -> HttpAnswer:
        return client.exchange_blocking(request, within_s)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # it runs without an event loop


class _LoopIo:
    """Waits in the event loop of `env_loop`."""

    async def exchange(self, client: "ServerClient", request: bytes, within_s: float) -> HttpAnswer:
        return await client.connections().exchange(request, within_s)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


BLOCKING: Final[ClientIo] = _BlockingIo()
LOOP: Final[ClientIo] = _LoopIo()


def env_loop() -> LoopThread:
    """Return the event loop for the calls of all environments on servers."""
    return shared_loop("environment-servers")


class ServerClient:
    """One server."""

    def __init__(self, url: str, token: str | None) -> None:
        """Point at a server; nothing is sent. Raises: InvalidInput: the address is none."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            port = None
        if port is None or not parts.hostname or parts.scheme != "http":
            do = "write it as in http://127.0.0.1:8700"
            raise InvalidInput.of("environment server", "have an address with a port", url, where="address", do=do)
        self.url, self._place = url, (parts.hostname, port)
        self._token = token
        self._headers = request_headers(parts.netloc, token)
        self.call_s, self.lease_s, self.reconnect_s = CALL_S, 60.0, RECONNECT_S
        self.held: dict[str, None] = {}
        """Ids of the sessions of this process."""
        self.opening: set[str] = set()
        """Ids of the sessions that are being opened."""
        self.has_left = False
        """Whether it is asked for no new session; one that does not answer any more is not waited for."""
        self._idle: deque[BlockingConnection] = deque()
        self._connections: dict[int, HttpConnections] = {}
        """Of the event loop, by process id: a forked child has another one."""
        self._renewer: threading.Thread | None = None
        self._lock = threading.Lock()
        _clients.add(self)

    def renewed(self) -> "ServerClient":
        """Return a client of the same server, as it has described itself, that holds no session and has not left."""
        client = ServerClient(self.url, self._token)
        client.call_s, client.lease_s = self.call_s, self.lease_s
        return client

    def after_fork(self) -> None:
        """Share no connection with the parent process."""
        self.held, self.opening = {}, set()
        self._idle, self._renewer, self._lock = deque(), None, threading.Lock()

    async def request(
        self, io: ClientIo, path: str, data: Json, *, within_s: float | None = None, reconnect_s: float | None = None
    ) -> Json:
        """Send a request, again where it got no reply, and return the reply.

        Args:
            io: how to wait.
            path: of `envgym.serving.wire`.
            data: the message; sending it twice must do no harm.
            within_s: longest call; None: what the server says.
            reconnect_s: how long a server that cannot be reached is tried again; None: as set for this client.

        Raises: ServerUnreachable: no reply. ServerBusy: all sessions are taken. InvalidInput: the token is another.
            Whatever error the reply holds.
        """
        return await self.send(io, self.written(path, data), within_s=within_s, reconnect_s=reconnect_s)

    def written(self, path: str, data: Json) -> bytes:
        """Return a request as it is sent. Raises: InvalidInput: it is too long, or holds what JSON has no form for.
        RecursionError: it is nested too deep.
        """
        try:
            content = wire.encode(data)
        except (TypeError, ValueError) as error:
            raise InvalidInput.of("message", "have a form in JSON", str(error), where=path, do="pass texts") from error
        if len(content) > wire.MAX_BODY_BYTES:
            must, do = f"have at most {wire.MAX_BODY_BYTES} bytes", "send less at once"
            raise InvalidInput.of("message", must, len(content), where=self.url, do=do)
        return encode_request("POST", path, self._headers, content)

    async def send(
        self, io: ClientIo, request: bytes, *, within_s: float | None = None, reconnect_s: float | None = None
    ) -> Json:
        """Send what `written` returned, as `request` does."""
        answer = await self._exchange(
            io,
            request,
            within_s=self.call_s + _GRACE_S if within_s is None else within_s,
            reconnect_s=self.reconnect_s if reconnect_s is None else reconnect_s,
        )
        try:
            reply = wire.decode(answer.body)
        except InvalidInput as error:
            raise self._stranger(f"status {answer.status} and {answer.body[:60]!r}") from error
        if answer.status == HTTPStatus.OK:
            return reply
        if answer.status == HTTPStatus.UNAUTHORIZED:
            got, do = "another" if self._token else "none", f"export its token as {wire.TOKEN_VARIABLE}"
            raise InvalidInput.of("token", "be the server's", got, where=self.url, do=do)
        raise wire.error_of(reply) or self._stranger(f"status {answer.status}")

    def _stranger(self, got: str) -> InvalidInput:
        do = "correct the address, or start `envgym serve` there"
        return InvalidInput.of("address", "be that of an environment server of envgym", got, where=self.url, do=do)

    async def _exchange(self, io: ClientIo, request: bytes, *, within_s: float, reconnect_s: float) -> HttpAnswer:
        deadline: float | None = None  # counted from the first failure: what was sent before may have taken long
        attempt = 0
        while True:
            try:
                return await io.exchange(self, request, within_s)
            except OSError as error:
                deadline = time.monotonic() + reconnect_s if deadline is None else deadline
                is_late = isinstance(error, TimeoutError)
                pause_s = BACKOFF.pause_s(attempt)
                if is_late or self.has_left or time.monotonic() + pause_s > deadline:
                    do = "look at its log, start it again, or correct the address"
                    got = str(error) or type(error).__name__
                    raise ServerUnreachable.of("environment server", "answer", got, where=self.url, do=do) from error
            await io.sleep(pause_s)
            attempt += 1

    def connections(self) -> HttpConnections:
        """Return the connections of the event loop, in which it is called; the idle ones of them are closed."""
        connections = self._connections.get(os.getpid())
        if connections is None:
            connections = self._connections[os.getpid()] = HttpConnections(
                self.url, token=self._token, connect_s=_CONNECT_S, body_bytes=wire.MAX_BODY_BYTES
            )
        connections.close_idle(self._idle_s)
        return connections

    def exchange_blocking(self, request: bytes, within_s: float) -> HttpAnswer:
        """Send a request over a connection of the calling thread, and return the answer.

        Raises: OSError: as of `HttpConnections.exchange`.
        """
        while True:
            connection = None
            with suppress(IndexError):
                connection = self._idle.pop()
            if connection is None:
                connection = self._connect()
            is_reused, connection.is_used = connection.is_used, False
            try:
                answer = connection.exchange(request, within_s)
            except OSError as error:
                connection.close()
                if is_reused and not isinstance(error, TimeoutError):
                    continue  # the server had closed it while nobody used it
                raise
            if connection.is_used:
                self._idle.append(connection)
            else:
                connection.close()
            self._close_blocking(self._idle_s)
            return answer

    def _connect(self) -> BlockingConnection:
        try:
            return BlockingConnection(*self._place, connect_s=_CONNECT_S, body_bytes=wire.MAX_BODY_BYTES)
        except TimeoutError as error:
            raise ConnectionFailed(str(error)) from error

    @property
    def _idle_s(self) -> float:
        return IDLE_S if self.held or not self.has_left else 0.0

    def close_idle(self) -> None:
        """Close the connections that nobody uses."""
        self._close_blocking(0.0)
        connections = self._connections.get(os.getpid())
        if connections is not None:
            env_loop().call(connections.close_idle)

    @property
    def has_connections(self) -> bool:
        """Whether the event loop of this process was used."""
        return os.getpid() in self._connections

    def _close_blocking(self, idle_s: float) -> None:
        """Close the connections that no thread has used for so long; the one used last is used first."""
        with suppress(IndexError):  # another thread has taken it
            while self._idle and self._idle[0].last_used <= time.monotonic() - idle_s:
                self._idle.popleft().close()

    # ---- sessions ----------------------------------------------------------------------------------------------------

    def hold(self, session_id: str) -> None:
        """Tell the server from now on that the session's client lives, as long as it is in `held`."""
        with self._lock:
            self.held[session_id] = None
            if self._renewer is None:
                self._renewer = threading.Thread(target=self._renew, name="env-server-renewal", daemon=True)
                self._renewer.start()

    def release(self, session_id: str) -> None:
        """Tell the server no more that the session's client lives; without any, a server that has left is let go."""
        self.held.pop(session_id, None)
        if self.has_left and not self.held:
            self.close_idle()

    def _renew(self) -> None:
        """Say every third of a lease which sessions are in use; the server ends the others."""
        while True:
            time.sleep(self.lease_s / 3)
            with self._lock:
                sessions = list(self.held)
                if self.has_left and not sessions:
                    self._renewer = None
                    return
            try:
                if sessions:
                    data = {"sessions": sessions}
                    run_without_loop(self.request(BLOCKING, wire.RENEW, data, within_s=CLOSE_S, reconnect_s=0))
            except (InfrastructureError, InvalidInput) as error:
                log_error(error, "the sessions of an environment server could not be renewed")


_clients: "weakref.WeakSet[ServerClient]" = weakref.WeakSet()


@atexit.register
def _close_connections() -> None:
    """Let calls of the event loop end, such as those that close sessions, and close what is kept for the next."""
    clients = list(_clients)
    if any(client.has_connections for client in clients):
        env_loop().run(_end_calls())
    for client in clients:
        client.close_idle()


async def _end_calls() -> None:
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    if calls:
        await asyncio.wait(calls, timeout=CLOSE_S)


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)
