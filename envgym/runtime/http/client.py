"""The HTTP/1.1 client of the control plane: one reader of replies, behind a blocking and an asynchronous connection.

It asks servers of the project, many small requests at a time over connections that stay open, each within its time and
its bytes.
"""

import asyncio
import json
import re
import socket
import time
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import closing
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from envgym.core.json_types import JsonObject
from envgym.runtime.http.access import MAX_HEAD_BYTES
from envgym.runtime.processes.log import HEADER, current_ids, is_open

MAX_REPLY_BYTES: Final = 256 << 20
"""Of the body of one reply, unless a client allows less."""
_CHUNK = 1 << 16
_SIZE, _CHUNK_SIZE = re.compile(r"[0-9]{1,18}"), re.compile(rb"[0-9a-fA-F]{1,15}")


class ConnectionFailed(ConnectionError):
    """No answer came: the address cannot be reached, or the connection broke."""


class _ClosedBefore(ConnectionFailed):
    """The connection was closed before the first byte of an answer."""


class HttpAnswer(NamedTuple):
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    is_last: bool
    """Whether the connection ends with it."""


@lru_cache(maxsize=512)
def _parse_head(head: bytes) -> tuple[int, Mapping[str, str], bool]:
    """Return status, headers and whether the connection ends; a server sends the same head again and again.

    Raises: ConnectionFailed: it is no head of HTTP.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    version, status = first[:7].upper(), int(first[9:12]) if first[9:12].isdecimal() else 0
    if version != "HTTP/1." or not first.isascii() or status < 100:
        raise ConnectionFailed(f"the reply is no HTTP: {first[:60]!r}")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return status, headers, headers.get("connection", "").lower() == "close" or first[7] == "0"


def read_whole(data: bytes, body_bytes: int) -> HttpAnswer | None:
    """Read a reply of a known length that came at once, as most do; None: `ReplyReader` must decide.

    Raises: ConnectionFailed: it is no reply.
    """
    end = data.find(b"\r\n\r\n")
    if not 0 <= end <= MAX_HEAD_BYTES:
        return None
    status, headers, is_last = _parse_head(data[:end])
    size, body = headers.get("content-length", ""), data[end + 4 :]
    is_plain = status >= 200 and "transfer-encoding" not in headers and size == str(len(body))
    return HttpAnswer(status, headers, body, is_last) if is_plain and len(body) <= body_bytes else None


Steps = Generator[None, bytes, None]


class ReplyReader:
    """Reads one reply from bytes as they come; it does no I/O."""

    def __init__(self, body_bytes: int) -> None:
        self._buffer, self._body_bytes = bytearray(), body_bytes
        self.has_begun = False
        self._steps = self._read()
        next(self._steps)

    def feed(self, data: bytes) -> HttpAnswer | None:
        """Take in what came, nothing where the connection was closed; return the reply as soon as it is whole.

        Raises: ConnectionFailed: it is no reply, too long, or not whole.
        """
        try:
            self._steps.send(data)
        except StopIteration as end:
            answer: HttpAnswer = end.value
            return answer
        return None

    def _read(self) -> Generator[None, bytes, HttpAnswer]:
        status = 100
        while status < 200:  # that a request may go on
            status, headers, is_last = _parse_head((yield from self._take_until(b"\r\n\r\n")))
        coding, size = headers.get("transfer-encoding", "").lower(), headers.get("content-length")
        if coding == "chunked":
            body = yield from self._take_chunks()
        elif coding or (size is not None and not _SIZE.fullmatch(size)):
            raise ConnectionFailed(f"the reply has no known length: {coding or size!r}")
        elif size is not None or status in (204, 304):
            body = yield from self._take(self._checked(int(size or 0)))
        else:
            body, is_last = (yield from self._take_rest()), True
        if self._buffer:
            raise ConnectionFailed("the reply is longer than it says")
        return HttpAnswer(status, headers, body, is_last)

    def _checked(self, size: int) -> int:
        if size > self._body_bytes:
            raise ConnectionFailed(f"the reply has {size} bytes, more than {self._body_bytes}")
        return size

    def _receive(self) -> Steps:
        data = yield
        if not data:
            where = "in the middle of the reply" if self.has_begun else "before the reply"
            raise (ConnectionFailed if self.has_begun else _ClosedBefore)(f"the connection was closed {where}")
        self.has_begun = True
        self._buffer += data

    def _take(self, size: int) -> Generator[None, bytes, bytes]:
        while len(self._buffer) < size:
            yield from self._receive()
        part = bytes(self._buffer[:size])
        del self._buffer[:size]
        return part

    def _take_until(self, mark: bytes) -> Generator[None, bytes, bytes]:
        while (end := self._buffer.find(mark)) < 0 and len(self._buffer) <= MAX_HEAD_BYTES:
            yield from self._receive()
        if not 0 <= end <= MAX_HEAD_BYTES:
            raise ConnectionFailed(f"the header of the reply has more than {MAX_HEAD_BYTES} bytes")
        part = bytes(self._buffer[:end])
        del self._buffer[: end + len(mark)]
        return part

    def _take_chunks(self) -> Generator[None, bytes, bytes]:
        body = bytearray()
        while True:
            size = (yield from self._take_until(b"\r\n")).partition(b";")[0].strip()
            if not _CHUNK_SIZE.fullmatch(size):
                raise ConnectionFailed(f"the reply has a chunk of no known length: {size[:60]!r}")
            if not int(size, 16):
                break
            self._checked(len(body) + int(size, 16))
            body += yield from self._take(int(size, 16))
            if (yield from self._take(2)) != b"\r\n":
                raise ConnectionFailed("the reply has a chunk that is longer than it says")
        while (yield from self._take_until(b"\r\n")):
            pass  # headers that follow the body
        return bytes(body)

    def _take_rest(self) -> Generator[None, bytes, bytes]:
        while data := (yield):
            self._buffer += data
            self._checked(len(self._buffer))
        return (yield from self._take(self._checked(len(self._buffer))))


def request_headers(host: str, token: str | None) -> dict[str, str]:
    """Return the headers of every request to a server."""
    return {"Host": host, **({"Authorization": f"Bearer {token}"} if token else {})}


def encode_request(method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Return a request as it is sent."""
    lines = _header_lines(tuple(headers.items()))
    return f"{method} {target} HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


@lru_cache(maxsize=512)
def _header_lines(headers: tuple[tuple[str, str], ...]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers])


# ---- blocking -------------------------------------------------------------------------------------------------------


class BlockingConnection:
    """One connection, for one request at a time."""

    def __init__(self, host: str, port: int, *, connect_s: float, body_bytes: int = MAX_REPLY_BYTES) -> None:
        self._socket = socket.create_connection((host, port), timeout=connect_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._body_bytes = body_bytes
        self.is_used, self.last_used = False, 0.0

    def exchange(self, request: bytes, within_s: float) -> HttpAnswer:
        """Send a request, and return its reply. Raises: OSError: the connection broke, or it took too long."""
        deadline = time.monotonic() + within_s
        self._socket.settimeout(within_s)
        self._socket.sendall(request)
        data = self._socket.recv(_CHUNK)
        answer = read_whole(data, self._body_bytes)
        if answer is None:
            reader = ReplyReader(self._body_bytes)
            while (answer := reader.feed(data)) is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("the reply took too long")
                self._socket.settimeout(left)
                data = self._socket.recv(_CHUNK)
        self.is_used, self.last_used = not answer.is_last, time.monotonic()
        return answer

    def close(self) -> None:
        self._socket.close()


def get(url: str, path: str, *, token: str | None, within_s: float) -> HttpAnswer:
    """Request a path over a connection of its own. Raises: OSError: no answer came in time."""
    parts = urlsplit(url)
    with closing(BlockingConnection(parts.hostname or "", parts.port or 80, connect_s=within_s)) as connection:
        return connection.exchange(encode_request("GET", path, request_headers(parts.netloc, token)), within_s)


# ---- asynchronous ---------------------------------------------------------------------------------------------------


class _OpenConnection(asyncio.Protocol):
    """One connection, for one request at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._answer: asyncio.Future[HttpAnswer] | None = None
        """The reply that is waited for."""
        self._reader: ReplyReader | None = None
        """Reads the reply; None while nothing of it has come."""
        self.deadline = 0.0
        """Moment, by the loop's clock, at which the reply is too late."""
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
            answer = read_whole(data, MAX_REPLY_BYTES) if self._reader is None else None
            if answer is None:
                self._reader = self._reader or ReplyReader(MAX_REPLY_BYTES)
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
        self.fail((_ClosedBefore if is_early else ConnectionFailed)(str(exc or "the connection was closed")))
        if not self.closed.done():
            self.closed.set_result(None)


class HttpConnections:
    """Connections to one server, kept open, for one event loop."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        """Prepare to ask the server at `url`, such as `http://127.0.0.1:8000`."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._is_encrypted = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._headers = request_headers(parts.netloc, token)
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
        request = self._encode(method, path, body, headers)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                continue
            try:
                return await self._exchange(connection, request, deadline)
            except _ClosedBefore:
                continue  # it was kept open for too long
        connection = await self._connect(deadline)
        try:
            return await self._exchange(connection, request, deadline)
        except _ClosedBefore as error:
            raise ConnectionFailed("the server closed the connection without an answer") from error

    def drop(self) -> None:
        """Give up what is asked at the moment: every `ask` under way fails."""
        for connection in self._busy:
            connection.fail(ConnectionFailed("the connection was given up"))

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
        async with asyncio.timeout_at(deadline):
            try:
                return (await loop.create_connection(_OpenConnection, self._host, self._port, ssl=ssl))[1]
            except OSError as error:
                raise ConnectionFailed(str(error)) from error

    async def _exchange(self, connection: _OpenConnection, request: bytes, deadline: float) -> HttpAnswer:
        is_kept = False
        self._busy.add(connection)
        try:
            self._wake_at(deadline)
            answer = await connection.exchange(request, deadline)
            is_kept = connection.is_open and not answer.is_last
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
