"""HTTP/1.1 on asyncio for the control plane: many small requests at a time, each within its time and its bytes.

The standard server of the project (`envgym.http_server`) has a thread for each connection; a policy has hundreds of
requests under way. Messages are read by h11.
"""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

import h11

from envgym.core.json_types import JsonObject
from envgym.errors import InvalidInput
from envgym.http_server import MAX_HEAD_BYTES, is_loopback, refusal
from envgym.process_log import HEADER, Ids, about, current_ids, is_open, log_event

_log = logging.getLogger(__name__)
_CHUNK = 1 << 16
_LINGER_S = 2.0


class HttpRequest(NamedTuple):
    """A request whose sender may ask."""

    method: str
    path: str
    query: str
    body: bytes


class ServerReply(NamedTuple):
    """What is answered."""

    status: int
    body: bytes
    kind: str = "application/json"

    @classmethod
    def of(cls, value: JsonObject, status: int = HTTPStatus.OK) -> "ServerReply":
        """Answer with JSON."""
        return cls(status, json.dumps(value, separators=(",", ":")).encode())

    @classmethod
    def refuse(cls, status: int, detail: str) -> "ServerReply":
        """Answer with one sentence, as vLLM does."""
        return cls.of({"error": {"message": detail, "code": int(status)}}, status)


AnswerRequest = Callable[[HttpRequest], Awaitable[ServerReply]]


class ServerLimits(NamedTuple):
    """How much one server takes at a time."""

    connections: int = 1024
    body_bytes: int = 32 << 20
    idle_s: float = 120.0
    """Until the first byte of a request."""
    request_s: float = 30.0
    """From a request's first byte to its last."""
    reply_s: float = 30.0
    """Until the client has taken a reply."""


class AsyncHttpServer:
    """Answers requests on the event loop that starts it."""

    def __init__(self, answer: AnswerRequest, *, token: str | None = None, limits: ServerLimits | None = None) -> None:
        """Prepare to answer by `answer`, who may be cancelled when the client goes away."""
        self.answer, self.token, self.limits = answer, token, limits or ServerLimits()
        self.connections: set[_ServedConnection] = set()
        self.url, self.is_local = "", True
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one.

        Raises: OSError: the address cannot be used. InvalidInput: other machines reach it, and there is no token.
        """
        self.is_local = is_loopback(host)
        if not self.is_local and not self.token:
            do = "listen on 127.0.0.1, or set a token"
            raise InvalidInput.of("server", "have a token where others reach it", "none", where=host, do=do)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _ServedConnection(self), host, port, backlog=1024)
        address = self._server.sockets[0].getsockname()
        name = f"[{address[0]}]" if ":" in address[0] else address[0]
        self.url = f"http://{name}:{address[1]}"

    async def close(self) -> None:
        """Stop listening, and end what is under way."""
        if self._server is not None:
            self._server.close()
            for connection in list(self.connections):
                connection.abort()
            await self._server.wait_closed()


class _ServedConnection(asyncio.Protocol):
    """One connection: requests one after the other."""

    def __init__(self, server: AsyncHttpServer) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._request: h11.Request | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._is_over = False
        """The last answer was given."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "HTTP runs on TCP"
        self._transport = transport
        if len(self._server.connections) >= self._server.limits.connections:
            transport.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self._end()
            return
        self._server.connections.add(self)
        self._expect(self._server.limits.idle_s)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._expect(None)
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._request is None and self._task is None and not self._is_over:
            self._expect(self._server.limits.request_s)
        if not self._is_over:
            self._http.receive_data(data)
            self._read_events()

    def pause_writing(self) -> None:
        self._expect(self._server.limits.reply_s)

    def resume_writing(self) -> None:
        self._expect(self._server.limits.idle_s)

    def _expect(self, seconds: float | None) -> None:
        """End the connection unless something happens within so many seconds."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else loop.call_later(seconds, self._transport.abort)

    def _end(self) -> None:
        """Send no more, but read on for a while: a client that is still sending would otherwise not see the answer."""
        self._is_over = True
        self._transport.write_eof()
        self._expect(_LINGER_S)

    def _read_events(self) -> None:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self._reply(ServerReply.refuse(error.error_status_hint, str(error)), closes=True)
                return
            if event is h11.NEED_DATA:
                return
            if event is h11.PAUSED:  # the next request waits until this one is answered
                self._transport.pause_reading()
                return
            if isinstance(event, h11.ConnectionClosed):
                self._transport.close()
                return
            if isinstance(event, h11.Request):
                self._request, self._parts, self._size = event, [], 0
                if (reason := self._refusal(event)) is not None:
                    self._reply(ServerReply.refuse(*reason), closes=True)
                    return
            elif isinstance(event, h11.Data):
                self._size += len(event.data)
                if self._size > (most := self._server.limits.body_bytes):
                    detail = f"body must have at most {most} bytes, got more; send less at once."
                    self._reply(ServerReply.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail), closes=True)
                    return
                self._parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._expect(None)
                self._task = asyncio.get_running_loop().create_task(self._answer())

    def _refusal(self, request: h11.Request) -> tuple[HTTPStatus, str] | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        server = self._server
        return refusal(headers, url=server.url, is_local=server.is_local, token=server.token)

    @staticmethod
    def _ids(request: h11.Request) -> Ids:
        """Return what the client says that a request is about."""
        name = HEADER.lower().encode()
        return Ids.of_header(next((value.decode("latin-1") for key, value in request.headers if key == name), None))

    async def _answer(self) -> None:
        assert self._request is not None, "a request was read"
        method, target = self._request.method.decode("latin-1"), self._request.target.decode("latin-1")
        started = time.perf_counter()
        with about(self._ids(self._request)):
            try:
                parts = urlsplit(target)
                request = HttpRequest(method, parts.path, parts.query, b"".join(self._parts))
                reply = await self._server.answer(request)
            except Exception as error:  # noqa: BLE001  # a client that is never answered waits until its time is over
                _log.exception("%s %s failed", method, target)
                detail = f"the server failed to answer, by {type(error).__name__}: {error}".rstrip(".: ")
                reply = ServerReply.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{detail}; its log says where.")
            if method == "POST":
                path, seconds = target.partition("?")[0], time.perf_counter() - started
                log_event("request", path=path, status=int(reply.status), seconds=seconds)
        self._request, self._task = None, None
        self._reply(reply, closes=False)

    def _reply(self, reply: ServerReply, *, closes: bool) -> None:
        if self._http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self._transport.abort()
            return
        headers = [("Content-Type", reply.kind), ("Content-Length", str(len(reply.body)))]
        headers += [("Connection", "close")] if closes else []
        head = self._http.send(h11.Response(status_code=int(reply.status), headers=headers))
        data = self._http.send(h11.Data(data=reply.body))
        end = self._http.send(h11.EndOfMessage())
        self._expect(self._server.limits.idle_s)
        self._transport.write((head or b"") + (data or b"") + (end or b""))
        if closes or any(state is not h11.DONE for state in self._http.states.values()):
            self._end()
            return
        self._http.start_next_cycle()
        self._transport.resume_reading()
        self._read_events()


# ---- client ---------------------------------------------------------------------------------------------------------


class ConnectionFailed(Exception):
    """No answer came: the address cannot be reached, or the connection broke."""


@dataclass(frozen=True, slots=True, eq=False)
class _OpenConnection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection


class HttpConnections:
    """Connections to one server, kept open, for one event loop."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        """Prepare to ask the server at `url`, such as `http://127.0.0.1:8000`."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._is_encrypted = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._headers = [("Host", parts.netloc)] + ([("Authorization", f"Bearer {token}")] if token else [])
        self._idle: deque[_OpenConnection] = deque()
        self._busy: set[_OpenConnection] = set()
        self._num_drops = 0
        self._is_closed = False

    async def ask(
        self,
        method: str,
        path: str,
        body: JsonObject | None = None,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Send a request, and return status and body.

        Raises: ConnectionFailed: nothing, or no whole answer, came. TimeoutError: it did not come in time.
        """
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        head = [*self._headers, ("Content-Length", str(len(content))), *(headers or {}).items()]
        if body is not None:
            head.append(("Content-Type", "application/json"))
        if is_open():
            head.append((HEADER, current_ids().header()))
        request = h11.Request(method=method, target=self._prefix + path, headers=head)
        num_drops = self._num_drops
        async with asyncio.timeout(timeout_s):
            while self._idle:
                connection = self._idle.pop()
                if connection.reader.at_eof() or connection.writer.is_closing():
                    connection.writer.close()
                    continue
                try:
                    return await self._exchange(connection, request, content)
                except _ClosedBefore as error:
                    if num_drops != self._num_drops:
                        raise ConnectionFailed("the connection was given up") from error
                    continue  # it was kept open for too long
            try:
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, ssl=True if self._is_encrypted else None
                )
            except OSError as error:
                raise ConnectionFailed(str(error)) from error
            connection = _OpenConnection(reader, writer, h11.Connection(h11.CLIENT))
            try:
                return await self._exchange(connection, request, content)
            except _ClosedBefore as error:
                raise ConnectionFailed("the server closed the connection without an answer") from error

    def drop(self) -> None:
        """Give up what is asked at the moment: every `ask` under way fails."""
        self._num_drops += 1
        for connection in self._busy:
            connection.writer.transport.abort()

    async def close(self) -> None:
        """Close the connections that nobody uses, and those in use when their answers have come."""
        self._is_closed = True
        while self._idle:
            writer = self._idle.pop().writer
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _exchange(self, connection: _OpenConnection, request: h11.Request, content: bytes) -> tuple[int, bytes]:
        reader, writer, http = connection.reader, connection.writer, connection.http
        is_kept, status, parts = False, 0, list[bytes]()
        self._busy.add(connection)
        try:
            data = [http.send(request), http.send(h11.Data(data=content)), http.send(h11.EndOfMessage())]
            writer.write(b"".join(part for part in data if part))
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    received = await reader.read(_CHUNK)
                    if not received and not status:
                        raise _ClosedBefore
                    http.receive_data(received)
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    parts.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    break
            is_kept = all(state is h11.DONE for state in http.states.values())
            return status, b"".join(parts)
        except OSError as error:
            is_closed = isinstance(error, ConnectionError) and not status
            raise _ClosedBefore if is_closed else ConnectionFailed(str(error)) from error
        except h11.RemoteProtocolError as error:
            raise ConnectionFailed(f"the answer is no HTTP: {error}") from error
        finally:
            self._busy.discard(connection)
            if is_kept and not self._is_closed:
                http.start_next_cycle()
                self._idle.append(connection)
            else:
                writer.transport.abort()


class _ClosedBefore(Exception):
    """The connection was closed before the first byte of an answer."""
