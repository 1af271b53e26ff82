"""The HTTP/1.1 of the environment server: requests in JSON over connections that stay open, in one event loop.

A request is answered where it is read, unless its handler returns a future; several sessions may share a connection,
whose requests are answered in their order. Connections are bounded in number, bytes and time, and closed to pages of
other sites, by the rules of `envgym.http_server`. A server with a thread per connection, as that one, gives half of the
requests per second: threads that wait for each other's turn in the interpreter cost more than the work.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from time import monotonic
from types import MappingProxyType
from typing import Final, NamedTuple

from envgym.errors import InvalidInput, sentence
from envgym.http_server import MAX_HEAD_BYTES, refusal
from envgym.serving.wire import MAX_BODY_BYTES, Json, encode, error_to_json

_log = logging.getLogger(__name__)
JSON_TYPE: Final = "application/json"
_MAX_SWEEP_S = 1.0
_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class HttpReply(NamedTuple):
    """What is answered."""

    status: HTTPStatus
    body: bytes
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = _HEADERS


Handler = Callable[[str, str, bytes], "HttpReply | asyncio.Future[HttpReply]"]
"""(method, path, body) -> the reply, now or later; it raises nothing."""


def json_reply(value: Json, status: HTTPStatus = HTTPStatus.OK) -> HttpReply:
    """Return a reply in JSON."""
    return HttpReply(status, encode(value))


def error_reply(error: Exception, status: HTTPStatus) -> HttpReply:
    """Return a reply that says what is wrong, and to a client that may come again, when."""
    retry_after_s = getattr(error, "retry_after_s", None)
    headers = _HEADERS if retry_after_s is None else {"Retry-After": str(math.ceil(retry_after_s))}
    return HttpReply(status, encode(error_to_json(error)), headers=headers)


class HttpLimits(NamedTuple):
    """What a connection may take."""

    connections: int = 2048
    body_bytes: int = MAX_BODY_BYTES
    idle_s: float = 600.0
    """Between two requests."""
    request_s: float = 30.0
    """From a request's first byte to its last."""
    reply_s: float = 30.0
    """Until the client has taken a reply."""


class HttpServer:
    """Listens, and hands requests to a handler."""

    def __init__(self, handler: Handler, *, token: str | None = None, limits: HttpLimits | None = None) -> None:
        """Serve nothing yet."""
        self.handler, self.token, self.limits = handler, token, limits or HttpLimits()
        self.connections: set[HttpConnection] = set()
        self.url, self.is_local = "", True

    async def listen(self, host: str, port: int, *, url: str, is_local: bool) -> int:
        """Listen; return the port. Raises: OSError, OverflowError: the address cannot be used."""
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(self), host, port, backlog=1024
        )
        found: int = self._listener.sockets[0].getsockname()[1]
        self.url, self.is_local = url.format(port=found), is_local
        self._sweeper = asyncio.ensure_future(self._sweep())
        return found

    async def close(self) -> None:
        """Listen no more, and drop every connection."""
        self._listener.close()
        self._sweeper.cancel()
        for connection in list(self.connections):
            connection.drop()

    async def _sweep(self) -> None:
        """Drop the connections whose time is over."""
        pause_s = min(_MAX_SWEEP_S, self.limits.idle_s / 4, self.limits.request_s / 4, self.limits.reply_s / 4)
        while True:
            await asyncio.sleep(pause_s)
            now = monotonic()
            for connection in list(self.connections):
                if now > connection.deadline:
                    connection.drop()


class HttpConnection(asyncio.Protocol):
    """One connection: reads a request, has it answered, reads the next."""

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        """Belong to `server`."""
        self._server, self._limits = server, server.limits
        self._buffer = bytearray()
        self._head: tuple[bytes, str, str, int] = (b"", "", "", 0)
        """The last head that was accepted, with method, path and length of the body."""
        self._is_answering = self._is_closing = self._is_choked = False
        self.deadline = monotonic() + self._limits.idle_s
        """Moment after which the connection is dropped."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or turn it away where there are too many."""
        assert isinstance(transport, asyncio.Transport), "HTTP runs on TCP"
        self.transport = transport
        self._server.connections.add(self)
        if len(self._server.connections) > self._limits.connections:
            must, do = f"have at most {self._limits.connections} connections", "try again later"
            error = InvalidInput.of("server", must, "one more", where=self._server.url, do=do)
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, error)
            self.deadline = monotonic() + _MAX_SWEEP_S

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it; what is being answered is kept for the session, which may ask again."""
        self._server.connections.discard(self)

    def drop(self) -> None:
        """Close it at once."""
        self._is_closing = True
        self.transport.abort()

    def pause_writing(self) -> None:
        """Answer nothing more until the client has taken what it got."""
        self._is_choked = True
        self.deadline = monotonic() + self._limits.reply_s

    def resume_writing(self) -> None:
        """Go on."""
        self._is_choked = False
        self._advance()

    def data_received(self, data: bytes) -> None:
        """Take in what came; nothing is kept of what follows a refusal."""
        if self._is_closing:
            return
        if not self._buffer and not self._is_answering:
            self.deadline = monotonic() + self._limits.request_s
        self._buffer += data
        if self._is_answering or self._is_choked:
            if len(self._buffer) > self._limits.body_bytes + MAX_HEAD_BYTES:
                self.transport.pause_reading()
        else:
            self._advance()

    def _advance(self) -> None:
        """Answer requests as long as there is a whole one."""
        while not (self._is_answering or self._is_closing or self._is_choked):
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0 or end > MAX_HEAD_BYTES:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    must, do = f"have at most {MAX_HEAD_BYTES} bytes", "send less"
                    error = InvalidInput.of("request header", must, "more", where=self._server.url, do=do)
                    self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, error)
                return
            head = bytes(self._buffer[:end])
            if head != self._head[0] and not self._accept(head):
                return
            _, method, path, length = self._head
            start = end + 4
            if len(self._buffer) < start + length:
                return
            body = bytes(self._buffer[start : start + length])
            del self._buffer[: start + length]
            self._answer(method, path, body)

    def _accept(self, head: bytes) -> bool:
        """Read a head; refuse what is malformed, not allowed, or too large."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            name = name.lower()
            if not colon or name in headers or name != name.strip():
                return self._refuse_head("header", "be a name, a colon and a value, each once", line)
            headers[name] = value.strip()
        if len(words) != 3 or words[0] not in ("GET", "POST") or words[2] != "HTTP/1.1":
            return self._refuse_head("request", "be a GET or POST of HTTP/1.1", lines[0])
        refused = refusal(headers, url=self._server.url, is_local=self._server.is_local, token=self._server.token)
        if refused is not None:
            self._refuse(refused[0], InvalidInput(refused[1]))
            return False
        size = headers.get("content-length", "0" if words[0] == "GET" else "")
        if "transfer-encoding" in headers or not (size.isascii() and size.isdecimal() and len(size) < 12):
            return self._refuse_head("Content-Length", "say how long the body is", size)
        if int(size) > self._limits.body_bytes:
            do = "send less at once"
            error = InvalidInput.of(
                "body", f"have at most {self._limits.body_bytes} bytes", size, where=words[1], do=do
            )
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error)
            return False
        self._head = (head, words[0], words[1], int(size))
        return True

    def _answer(self, method: str, path: str, body: bytes) -> None:
        reply = self._server.handler(method, path, body)
        if isinstance(reply, HttpReply):
            self._send(reply)
            return
        self._is_answering, self.deadline = True, math.inf  # the session's own limit counts
        reply.add_done_callback(self._send_later)

    def _send_later(self, reply: "asyncio.Future[HttpReply]") -> None:
        self._is_answering = False
        if self._is_closing or self.transport.is_closing():
            return
        try:
            self._send(reply.result())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # else the client waits until its time is over
            _log.error("a request failed", exc_info=error)
            got, do = f"{type(error).__name__}: {error}".rstrip(": "), "look into the server's log"
            failure = InvalidInput.of("request", "be answered", got, where=self._server.url, do=do)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, failure)
            return
        self.transport.resume_reading()
        self._advance()

    def _send(self, reply: HttpReply, *, closes: bool = False) -> None:
        self.deadline = monotonic() + self._limits.idle_s
        more = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items()) if reply.headers else ""
        if closes:
            more += "Connection: close\r\n"
        head = (
            f"HTTP/1.1 {reply.status.value} {reply.status.phrase}\r\nContent-Type: {reply.content_type}\r\n"
            f"Content-Length: {len(reply.body)}\r\n{more}\r\n"
        )
        self.transport.write(head.encode("latin-1") + reply.body)

    def _refuse_head(self, what: str, must: str, got: str) -> bool:
        error = InvalidInput(sentence(what, must, got, where=self._server.url, do="send what envgym sends"))
        self._refuse(HTTPStatus.BAD_REQUEST, error)
        return False

    def _refuse(self, status: HTTPStatus, error: Exception) -> None:
        """Answer and close; what the client is still sending is read for a while, or it would not see the answer."""
        self._send(error_reply(error, status), closes=True)
        self._is_closing = True
        self._buffer.clear()
        self.deadline = monotonic() + self._limits.request_s
        if self.transport.can_write_eof():
            self.transport.write_eof()
