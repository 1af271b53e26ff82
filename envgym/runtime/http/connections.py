"""The connections of an event loop to one server: many small requests at a time, each within its time and its bytes."""

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from functools import partial
from urllib.parse import urlsplit

from envgym.core.json_types import JsonObject
from envgym.runtime.http.client import (
    MAX_REPLY_BYTES,
    ClosedBefore,
    ConnectionFailed,
    HttpAnswer,
    ReplyReader,
    encode_request,
    read_whole,
    request_headers,
)
from envgym.runtime.processes.log import HEADER, current_ids, is_open


class _OpenConnection(asyncio.Protocol):
    """One connection, for one request at a time."""

    transport: asyncio.Transport

    def __init__(self, body_bytes: int) -> None:
        self._body_bytes = body_bytes
        self._answer: asyncio.Future[HttpAnswer] | None = None
        """The reply that is waited for."""
        self._reader: ReplyReader | None = None
        """Reads the reply; None while nothing of it has come."""
        self.deadline = 0.0
        """Moment, by the loop's clock, at which the reply is too late."""
        self.last_used = 0.0
        """Moment, by the loop's clock, at which the last reply came."""
        self.is_open = True
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def exchange(self, request: bytes, deadline: float) -> "asyncio.Future[HttpAnswer]":
        """Send a request, and return what gets its reply."""
        self.deadline, self._reader = deadline, None
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer

    def fail(self, error: Exception) -> None:
        """Give the reply up."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "HTTP runs on TCP"
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Read a reply, or a part of one; a connection on which more comes than was asked for is closed."""
        if self._answer is None or self._answer.done():
            self.is_open = False
            self.transport.abort()
            return
        try:
            answer = read_whole(data, self._body_bytes) if self._reader is None else None
            if answer is None:
                self._reader = self._reader or ReplyReader(self._body_bytes)
                answer = self._reader.feed(data)
        except ConnectionFailed as error:
            self.fail(error)
        else:
            if answer is not None:
                self._answer.set_result(answer)

    def eof_received(self) -> None:
        """End what is waited for: by a whole reply, where its length was not told."""
        self.is_open = False
        self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is waited for; a connection that breaks before the reply may have been kept for too long."""
        self.is_open = False
        is_early = (exc is None or isinstance(exc, ConnectionError)) and self._reader is None
        self.fail((ClosedBefore if is_early else ConnectionFailed)(str(exc or "the connection was closed")))
        if not self.closed.done():
            self.closed.set_result(None)


class HttpConnections:
    """Connections to one server, kept open, for one event loop."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        connect_s: float | None = None,
        body_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        """Prepare to ask a server.

        Args:
            url: its address, such as `http://127.0.0.1:8000`.
            token: sent with each request.
            connect_s: longest wait for a connection, after which `ConnectionFailed` is raised; None: the time of the
                request.
            body_bytes: largest body of a reply.
        """
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._is_encrypted = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._headers = request_headers(parts.netloc, token)
        self._connect_s, self._body_bytes = connect_s, body_bytes
        self._idle: deque[_OpenConnection] = deque()
        self._busy: set[_OpenConnection] = set()
        self._timer: asyncio.TimerHandle | None = None
        """Fires at the earliest deadline of those that are busy, or before."""
        self._is_closed = False

    async def ask(
        self,
        method: str,
        path: str,
        body: JsonObject | bytes | None = None,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Send a request, and return the answer; a body is JSON, or bytes.

        Raises: ConnectionFailed: nothing, or no whole answer, came. TimeoutError: it did not come in time.
        """
        return await self.exchange(self._encode(method, path, body, headers), timeout_s)

    async def exchange(self, request: bytes, timeout_s: float) -> HttpAnswer:
        """Send a request that is encoded already, as `ask` does."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                continue
            try:
                return await self._exchange(connection, request, deadline)
            except ClosedBefore:
                continue  # it was kept open for too long
        connection = await self._connect(deadline)
        try:
            return await self._exchange(connection, request, deadline)
        except ClosedBefore as error:
            raise ConnectionFailed("the server closed the connection without an answer") from error

    def drop(self) -> None:
        """Give up what is asked at the moment: every `ask` under way fails."""
        for connection in self._busy:
            connection.fail(ConnectionFailed("the connection was given up"))

    def close_idle(self, idle_s: float = 0.0) -> None:
        """Close the connections that nobody has used for so long; the one used last is used first."""
        before = asyncio.get_running_loop().time() - idle_s
        while self._idle and self._idle[0].last_used <= before:
            self._idle.popleft().transport.close()

    async def close(self) -> None:
        """Close the connections that nobody uses, and those in use when their answers have come."""
        self._is_closed = True
        connections = list(self._idle)
        self._idle.clear()
        for connection in connections:  # all before the first wait, which may be cancelled
            connection.transport.close()
        for connection in connections:
            await connection.closed

    def _encode(
        self, method: str, path: str, body: JsonObject | bytes | None, headers: Mapping[str, str] | None
    ) -> bytes:
        fields, content = {**self._headers, **(headers or {})}, b""
        if isinstance(body, bytes):
            content, fields["Content-Type"] = body, "application/octet-stream"
        elif body is not None:
            content, fields["Content-Type"] = json.dumps(body, separators=(",", ":")).encode(), "application/json"
        if is_open():
            fields[HEADER] = current_ids().header()
        return encode_request(method, self._prefix + path, fields, content)

    async def _connect(self, deadline: float) -> _OpenConnection:
        ssl, loop = True if self._is_encrypted else None, asyncio.get_running_loop()
        make = partial(_OpenConnection, self._body_bytes)
        try:
            async with asyncio.timeout_at(deadline), asyncio.timeout(self._connect_s) as connecting:
                try:
                    return (await loop.create_connection(make, self._host, self._port, ssl=ssl))[1]
                except OSError as error:
                    raise ConnectionFailed(str(error)) from error
        except TimeoutError as error:
            if connecting.expired():
                raise ConnectionFailed(f"no connection within {self._connect_s:g} s") from error
            raise

    async def _exchange(self, connection: _OpenConnection, request: bytes, deadline: float) -> HttpAnswer:
        is_kept = False
        self._busy.add(connection)
        try:
            self._wake_at(deadline)
            answer = await connection.exchange(request, deadline)
            is_kept = connection.is_open and not answer.is_last
            connection.last_used = asyncio.get_running_loop().time()
            return answer
        finally:
            self._busy.discard(connection)
            if is_kept and not self._is_closed:
                self._idle.append(connection)
            else:
                connection.transport.abort()

    def _wake_at(self, deadline: float) -> None:
        """Look at the deadlines not later than this; one timer serves all requests."""
        if self._timer is None or deadline < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(deadline, self._expire, deadline)

    def _expire(self, now: float) -> None:
        self._timer = None
        for connection in self._busy:
            if connection.deadline <= now:
                connection.fail(TimeoutError())
        if later := [connection.deadline for connection in self._busy if connection.deadline > now]:
            self._wake_at(min(later))
