"""The HTTP/1.1 server of all parts: requests over connections that stay open, answered in one event loop.

A request is answered where it is read, unless its handler returns something to wait for; the requests of a connection
are answered in their order. Connections are bounded in number, bytes and time, and closed to pages of other sites, by
the rules of `envgym.runtime.http.access`. A thread per connection would give half of the requests per second: threads
that wait for each other's turn in the interpreter cost more than the work.
"""

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from time import monotonic
from types import MappingProxyType
from typing import Final, NamedTuple

from envgym.core.json_types import JsonObject, well_formed
from envgym.errors import sentence
from envgym.runtime.http.access import (
    MAX_HEAD_BYTES,
    address_url,
    check_token,
    is_loopback,
    refusal,
    unusable_address,
)

_log = logging.getLogger(__name__)
JSON_TYPE: Final = "application/json"
_MAX_SWEEP_S = 1.0
_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class HttpRequest(NamedTuple):
    """A request whose sender may ask."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class HttpReply(NamedTuple):
    """What is answered."""

    status: HTTPStatus
    body: bytes
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = _HEADERS

    @classmethod
    def of_json(cls, value: JsonObject, status: int = HTTPStatus.OK) -> "HttpReply":
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return cls(HTTPStatus(status), well_formed(text).encode())


Handler = Callable[[HttpRequest], HttpReply | Awaitable[HttpReply]]
"""Answers a request, at once or later."""
ErrorForm = Callable[[HTTPStatus, str], HttpReply]
"""Makes the reply of a status and a sentence."""


def detail_reply(status: HTTPStatus, detail: str) -> HttpReply:
    """Return a reply of one sentence."""
    return HttpReply.of_json({"detail": detail}, status)


class HttpLimits(NamedTuple):
    """What clients may take."""

    connections: int = 2048
    evicts_waiting: bool = False
    """Whether one more closes the connection that has waited longest for its request; else it is refused."""
    body_bytes: int = 16 << 20
    """Of one request."""
    idle_s: float = 600.0
    """Between two requests."""
    request_s: float = 30.0
    """From a request's first byte to its last."""
    reply_s: float = 30.0
    """Until the client has taken a reply."""


class HttpServer:
    """Listens, and hands requests to a handler."""

    def __init__(
        self,
        handler: Handler,
        *,
        token: str | None = None,
        limits: HttpLimits | None = None,
        error_form: ErrorForm = detail_reply,
        cancels_abandoned: bool = False,
    ) -> None:
        """Serve nothing yet.

        Args:
            handler: answers the requests of those who may ask.
            token: that requests must carry; None: no request needs one.
            limits: of connections.
            error_form: makes the replies to requests that do not reach the handler, or fail there.
            cancels_abandoned: whether an answer is cancelled when its client closes the connection.
        """
        self.handler, self.token, self.limits = handler, token, limits or HttpLimits()
        self.error_form, self.cancels_abandoned = error_form, cancels_abandoned
        self.connections: set[HttpConnection] = set()
        self.url, self.is_local = "", True
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    def refusal(self, method: str, target: str, headers: Mapping[str, str]) -> tuple[HTTPStatus, str] | None:
        """Return why a request is not answered, before its body is read; None: it is answered."""
        del method, target  # for servers with further rules
        return refusal(headers, url=self.url, is_local=self.is_local, token=self.token)

    async def listen(self, host: str, port: int) -> str:
        """Begin to answer, and return the address; port 0 takes a free one.

        Raises: InvalidInput: the address cannot be used, or other machines reach it and there is no token.
        """
        check_token(host, self.token)
        self.is_local = is_loopback(host)
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(lambda: HttpConnection(self), host, port, backlog=1024)
        except (OSError, OverflowError) as error:
            raise unusable_address(host, port, error) from None
        self.url = address_url(*self._listener.sockets[0].getsockname()[:2])
        self._sweeper = asyncio.ensure_future(self._sweep())
        return self.url

    async def serve(self, host: str, port: int, on_ready: Callable[[str], None]) -> None:
        """Listen, call `on_ready` with the address, and answer until cancelled. Raises: as `listen`."""
        on_ready(await self.listen(host, port))
        try:
            await asyncio.Event().wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """Listen no more, and drop every connection; may be called twice."""
        if self._listener is not None and self._sweeper is not None:
            self._listener.close()
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.drop()
        await asyncio.sleep(0)  # in which the connections learn that they are lost

    async def _sweep(self) -> None:
        """Drop the connections whose time is over."""
        pause_s = min(_MAX_SWEEP_S, self.limits.idle_s / 4, self.limits.request_s / 4, self.limits.reply_s / 4)
        while True:
            await asyncio.sleep(pause_s)
            now = monotonic()
            for connection in list(self.connections):
                if now > connection.deadline:
                    connection.drop()


class _Head(NamedTuple):
    """A head that was accepted."""

    text: bytes
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body_bytes: int
    is_last: bool
    """Whether the client wants the connection closed after the reply."""


class HttpConnection(asyncio.Protocol):
    """One connection: reads a request, has it answered, reads the next."""

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server, self._limits = server, server.limits
        self._buffer = bytearray()
        self._head = _Head(b"", "", "", "", _HEADERS, 0, is_last=False)
        """The last head that was accepted: most clients send the same again."""
        self._pending: asyncio.Future[HttpReply] | None = None
        """The answer that is waited for."""
        self._is_closing = self._is_choked = False
        self.deadline = monotonic() + self._limits.idle_s
        """Moment after which the connection is dropped."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or turn it away where there are too many."""
        assert isinstance(transport, asyncio.Transport), "HTTP runs on TCP"
        self.transport = transport
        connections = self._server.connections
        if len(connections) < self._limits.connections:
            connections.add(self)
            return
        waiting = [other for other in connections if other.deadline < math.inf] if self._limits.evicts_waiting else []
        connections.add(self)
        if waiting:
            min(waiting, key=lambda other: other.deadline).drop()
        else:
            must, do = f"have at most {self._limits.connections} connections", "try again later"
            detail = sentence("server", must, "one more", where=self._server.url, do=do)
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, detail)
            self.deadline = monotonic() + _MAX_SWEEP_S

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it; an answer goes on, unless the server cancels those that nobody waits for."""
        self._server.connections.discard(self)
        if self._server.cancels_abandoned and self._pending is not None:
            self._pending.cancel()

    def drop(self) -> None:
        """Close it at once."""
        self._is_closing = True
        self._server.connections.discard(self)
        self.transport.abort()

    def pause_writing(self) -> None:
        """Answer nothing more until the client has taken what it got."""
        self._is_choked = True
        self.deadline = monotonic() + self._limits.reply_s

    def resume_writing(self) -> None:
        """Go on."""
        self._is_choked = False
        if not self._is_closing:
            self._expect_request()
            self._advance()

    def data_received(self, data: bytes) -> None:
        """Take in what came; nothing is kept of what follows a refusal."""
        if self._is_closing:
            return
        if not self._buffer and self._pending is None:
            self.deadline = monotonic() + self._limits.request_s
        self._buffer += data
        if self._pending is not None or self._is_choked:
            if len(self._buffer) > self._limits.body_bytes + MAX_HEAD_BYTES:
                self.transport.pause_reading()
        else:
            self._advance()

    def _expect_request(self) -> None:
        """Begin to count the time of the next request, of which a part may be there."""
        self.deadline = monotonic() + (self._limits.request_s if self._buffer else self._limits.idle_s)

    def _advance(self) -> None:
        """Answer requests as long as there is a whole one."""
        while not (self._pending is not None or self._is_closing or self._is_choked):
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0 or end > MAX_HEAD_BYTES:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    must, do = f"have at most {MAX_HEAD_BYTES} bytes", "send less"
                    detail = sentence("request header", must, "more", where=self._server.url, do=do)
                    self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
                return
            text = bytes(self._buffer[:end])
            if text != self._head.text and not self._accept(text):
                return
            _, method, path, query, headers, length, _ = self._head
            start = end + 4
            if len(self._buffer) < start + length:
                return
            body = bytes(self._buffer[start : start + length])
            del self._buffer[: start + length]
            self._answer(HttpRequest(method, path, query, headers, body))

    def _accept(self, text: bytes) -> bool:
        """Read a head; refuse what is malformed, not allowed, or too large."""
        lines = text.decode("latin-1").split("\r\n")
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
        refused = self._server.refusal(words[0], words[1], headers)
        if refused is not None:
            self._refuse(*refused)
            return False
        size = headers.get("content-length", "0" if words[0] == "GET" else "")
        if "transfer-encoding" in headers or not (size.isascii() and size.isdecimal() and len(size) < 12):
            return self._refuse_head("Content-Length", "say how long the body is", size)
        if int(size) > self._limits.body_bytes:
            must, do = f"have at most {self._limits.body_bytes} bytes", "send less at once"
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence("body", must, size, where=words[1], do=do))
            return False
        path, _, query = words[1].partition("?")
        is_last = headers.get("connection", "").lower() == "close"
        self._head = _Head(text, words[0], path, query, headers, int(size), is_last)
        return True

    def _answer(self, request: HttpRequest) -> None:
        try:
            reply = self._server.handler(request)
        except Exception as error:  # noqa: BLE001  # else the client waits until its time is over
            self._fail(error)
            return
        if isinstance(reply, HttpReply):
            self._send(reply, is_last=self._head.is_last)
            return
        self._pending, self.deadline = asyncio.ensure_future(reply), math.inf  # the handler's own limit counts
        self._pending.add_done_callback(self._send_later)

    def _send_later(self, pending: "asyncio.Future[HttpReply]") -> None:
        self._pending = None
        is_gone = self._is_closing or self.transport.is_closing()
        try:
            reply = pending.result()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # as in `_answer`
            if not is_gone or not pending.cancelled():
                self._fail(error)
            return
        if not is_gone:
            self._send(reply, is_last=self._head.is_last)
            self.transport.resume_reading()
            self._advance()

    def _fail(self, error: BaseException) -> None:
        _log.error("%s %s failed", self._head.method, self._head.path, exc_info=error)
        if not (self._is_closing or self.transport.is_closing()):
            got, do = f"{type(error).__name__}: {error}".rstrip(": "), "look into the server's log"
            detail = sentence("request", "be answered", got, where=self._server.url, do=do)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, detail)

    def _send(self, reply: HttpReply, *, is_last: bool = False) -> None:
        self._expect_request()
        more = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items()) if reply.headers else ""
        if is_last:
            more += "Connection: close\r\n"
        head = (
            f"HTTP/1.1 {reply.status.value} {reply.status.phrase}\r\nContent-Type: {reply.content_type}\r\n"
            f"Content-Length: {len(reply.body)}\r\n{more}\r\n"
        )
        self.transport.write(head.encode("latin-1") + reply.body)
        if is_last:
            self._end()

    def _end(self) -> None:
        """Send no more; what the client is still sending is read for a while, or it would not see the answer."""
        self._is_closing = True
        self._buffer.clear()
        self.deadline = monotonic() + self._limits.request_s
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _refuse_head(self, what: str, must: str, got: str) -> bool:
        detail = sentence(what, must, got, where=self._server.url, do="send plain HTTP/1.1")
        self._refuse(HTTPStatus.BAD_REQUEST, detail)
        return False

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Answer with one sentence, and close the connection."""
        self._send(self._server.error_form(status, detail), is_last=True)


class ThreadedHandler:
    """Answers requests by a function that blocks, in a bounded number of threads."""

    def __init__(
        self,
        answer: Callable[[HttpRequest], HttpReply],
        *,
        threads: int,
        wait_s: float,
        error_form: Callable[[HTTPStatus, str], HttpReply] = detail_reply,
    ) -> None:
        """Answer so many requests at a time; a request that gets no thread within `wait_s` is refused."""
        self._answer, self._wait_s, self._error_form = answer, wait_s, error_form
        self._free = asyncio.Semaphore(threads)
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="http")

    async def __call__(self, request: HttpRequest) -> HttpReply:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError:
            detail = sentence("server", "have time", "too many requests", where=request.path, do="try again later")
            return self._error_form(HTTPStatus.SERVICE_UNAVAILABLE, detail)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, request)
        finally:
            self._free.release()
