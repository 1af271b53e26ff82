"""The HTTP/1.1 client of the control plane: the reader of replies, and connections that block.

It sends requests to servers of the project over connections that stay open, each within its time and its bytes.
`connections` has the connections of an event loop.
"""

import re
import socket
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from envgym.runtime.http.access import MAX_HEAD_BYTES

MAX_REPLY_BYTES: Final = 256 << 20
"""Of the body of one reply, unless a client allows less."""
_CHUNK = 1 << 16
_SIZE, _CHUNK_SIZE = re.compile(r"[0-9]{1,18}"), re.compile(rb"[0-9a-fA-F]{1,15}")


class ConnectionFailed(ConnectionError):
    """No answer came: the address cannot be reached, or the connection broke."""


class ClosedBefore(ConnectionFailed):
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
            raise (ConnectionFailed if self.has_begun else ClosedBefore)(f"the connection was closed {where}")
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
