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
from functools import partial
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from envgym.core.json_types import JsonObject, well_formed
from envgym.errors import sentence
from envgym.runtime.event_loop import stop_accepting
from envgym.runtime.http.access import (
    MAX_HEAD_BYTES,
    address_url,
    check_token,
    is_loopback,
    refusal,
    unusable_address,
    unusable_socket,
)
from envgym.runtime.http.heads import NO_HEADERS, Refused, RequestHead, body_length, read_head, write_head
from envgym.runtime.http.streams import FlushWatch, HttpStream, OnSent

_log = logging.getLogger(__name__)
JSON_TYPE: Final = "application/json"
_MAX_SWEEP_S = 1.0


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
    headers: Mapping[str, str] = NO_HEADERS
    on_sent: OnSent | None = None

    @classmethod
    def of_json(cls, value: JsonObject, status: int = HTTPStatus.OK) -> "HttpReply":
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return cls(HTTPStatus(status), well_formed(text).encode())


AnyReply = HttpReply | HttpStream
Handler = Callable[[HttpRequest], AnyReply | Awaitable[AnyReply]]
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
        self.streams: set[asyncio.Future[None]] = set()
        """Replies that are being sent in parts."""
        self._socket_path: Path | None = None
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    def refusal(self, method: str, target: str, headers: Mapping[str, str]) -> tuple[HTTPStatus, str] | None:
        """Return why a request is not answered, before its body is read; None: it is answered."""
        del method, target  # for servers with further rules
        has_name = self._socket_path is None  # no page of another site reaches a Unix socket, whatever its Host
        return refusal(headers, url=self.url, is_local=self.is_local and has_name, token=self.token)

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

    async def listen_unix(self, path: Path) -> str:
        """Begin to answer on a Unix socket of this user alone; return `unix:PATH`. Raises: InvalidInput: bad path."""
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_unix_server(lambda: HttpConnection(self), path, backlog=1024)
            path.chmod(0o600)  # noqa: ASYNC240  # one system call
        except OSError as error:
            raise unusable_socket(path, error) from None
        self.url, self._socket_path = f"unix:{path}", path
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
            self._sweeper.cancel()
            await stop_accepting(self._listener)
        for connection in list(self.connections):
            connection.drop()
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)
        await asyncio.sleep(0)  # in which the connections learn that they are lost
        await asyncio.gather(*self.streams, return_exceptions=True)

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
        self._server, self._limits = server, server.limits
        self._buffer = bytearray()
        self._head = RequestHead(b"")
        """The last head that was accepted: most clients send the same again."""
        self._body_length = 0
        self._pending: asyncio.Future[AnyReply] | None = None
        """The answer that is waited for."""
        self._stream: asyncio.Future[None] | None = None
        """The reply that is sent in parts."""
        self._is_closing = self._is_choked = False
        self.deadline = monotonic() + self._limits.idle_s
        """Moment after which the connection is dropped."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or turn it away where there are too many."""
        assert isinstance(transport, asyncio.Transport), "HTTP runs on TCP"
        self.transport, self._flush = transport, FlushWatch(transport)
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
        self._flush.report(is_sent=False)
        if self._server.cancels_abandoned and self._pending is not None:
            self._pending.cancel()
        if self._stream is not None:
            self._stream.cancel()

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
        self._flush.report(is_sent=True)
        if self._is_answering:
            self.deadline = math.inf
        elif not self._is_closing:
            self._expect_request()
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

    @property
    def _is_answering(self) -> bool:
        return self._pending is not None or self._stream is not None

    def _expect_request(self) -> None:
        """Begin to count the time of the next request, of which a part may be there."""
        self.deadline = monotonic() + (self._limits.request_s if self._buffer else self._limits.idle_s)

    def _advance(self) -> None:
        """Answer requests as long as there is a whole one."""
        while not (self._is_answering or self._is_closing or self._is_choked):
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
            head, start, length = self._head, end + 4, self._body_length
            if len(self._buffer) < start + length:
                return
            body = bytes(self._buffer[start : start + length])
            del self._buffer[: start + length]
            self._answer(HttpRequest(head.method, head.path, head.query, head.headers, body))

    def _accept(self, text: bytes) -> bool:
        """Read a head; refuse what is malformed, not allowed, or too large."""
        head = read_head(text, self._server.url)
        if isinstance(head, Refused):
            return self._refuse(*head)
        refused = self._server.refusal(head.method, head.target, head.headers)
        if refused is not None:
            return self._refuse(*refused)
        length = body_length(head, self._server.url, max_bytes=self._limits.body_bytes)
        if isinstance(length, Refused):
            return self._refuse(*length)
        self._head, self._body_length = head, length
        return True

    def _answer(self, request: HttpRequest) -> None:
        try:
            reply = self._server.handler(request)
        except Exception as error:  # noqa: BLE001  # else the client waits until its time is over
            self._fail(error)
            return
        if isinstance(reply, HttpReply):
            self._send(reply, is_last=self._head.is_last)
        elif isinstance(reply, HttpStream):
            self._begin_stream(reply)
        else:
            self._pending, self.deadline = asyncio.ensure_future(reply), math.inf  # the handler's own limit counts
            self._pending.add_done_callback(self._send_later)

    def _send_later(self, pending: "asyncio.Future[AnyReply]") -> None:
        self._pending = None
        is_gone = self._is_closing or self.transport.is_closing()
        try:
            reply = pending.result()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # as in `_answer`
            if not is_gone or not pending.cancelled():
                self._fail(error)
            return
        if is_gone:
            if reply.on_sent is not None:
                reply.on_sent(False)
        elif isinstance(reply, HttpStream):
            self._begin_stream(reply)
        else:
            self._send(reply, is_last=self._head.is_last)
            self.transport.resume_reading()
            self._advance()

    def _begin_stream(self, reply: HttpStream) -> None:
        self.deadline = math.inf
        head = write_head(reply.status, reply.content_type, reply.headers, None, is_last=self._head.is_last)
        self.transport.write(head)
        self._stream = asyncio.ensure_future(self._flush.write(reply.chunks))
        self._server.streams.add(self._stream)
        self._stream.add_done_callback(partial(self._end_stream, on_sent=reply.on_sent))

    def _end_stream(self, stream: "asyncio.Future[None]", *, on_sent: OnSent | None) -> None:
        self._stream = None
        self._server.streams.discard(stream)
        error = None if stream.cancelled() else stream.exception()
        is_sent = not stream.cancelled() and error is None
        if on_sent is not None:
            on_sent(is_sent)
        if not is_sent:  # the client must not take the part that it has for the whole
            if error is not None:
                _log.error("%s %s failed", self._head.method, self._head.path, exc_info=error)
            self.drop()
        elif self._head.is_last:
            self._end()
        else:
            self._expect_request()
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
        status, body, content_type, headers, on_sent = reply
        head = write_head(status, content_type, headers, len(body), is_last=is_last)
        self.transport.write(head + body)
        if on_sent is not None:
            self._flush.watch(on_sent)
        if is_last:
            self._end()

    def _end(self) -> None:
        """Send no more; what the client is still sending is read for a while, or it would not see the answer."""
        self._is_closing = True
        self._buffer.clear()
        self.deadline = monotonic() + self._limits.request_s
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _refuse(self, status: HTTPStatus, detail: str) -> bool:
        """Answer with one sentence, and close the connection; return False."""
        self._send(self._server.error_form(status, detail), is_last=True)
        return False
