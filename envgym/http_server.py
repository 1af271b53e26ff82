"""A small HTTP server, bounded in connections, time and bytes, and closed to pages of other sites.

Who may ask: on a loopback address, requests that name this machine as their `Host` (a page of a name that was pointed
here, DNS rebinding, names its own); on any other address, those that carry the server's token. Requests that a
browser sends for a page of another origin are refused everywhere.
"""

import io
import json
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from email.message import Message
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socketserver import TCPServer
from threading import BoundedSemaphore
from types import MappingProxyType
from urllib.parse import urlsplit

from envgym.core.json_types import JsonObject, well_formed
from envgym.errors import InvalidInput, sentence

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers together."""
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def is_loopback(address: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def refusal(
    headers: Mapping[str, str] | Message, *, url: str, is_local: bool, token: str | None
) -> tuple[HTTPStatus, str] | None:
    """Return why a server does not answer a request, if it does not; None: it does.

    Args:
        headers: of the request; names in lower case, or in any.
        url: the server's address.
        is_local: whether only this machine reaches it.
        token: what the client must know; None: nothing.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if is_local and not is_loopback(_name(host)):
        do = "request it by the address of the server"
        return HTTPStatus.FORBIDDEN, sentence("Host", "name this machine", host, where=url, do=do)
    if origin is not None and origin.lower() != f"http://{host}".lower():
        do = "send the request without a browser"
        return HTTPStatus.FORBIDDEN, sentence("Origin", "be this server", origin, where=url, do=do)
    given = headers.get("authorization", "").encode(errors="replace")
    if token and not compare_digest(given, f"Bearer {token}".encode()):
        got, do = "another" if given else "none", "send the token that the server was started with"
        where = "Authorization: Bearer TOKEN"
        return HTTPStatus.UNAUTHORIZED, sentence("token", "be the server's", got, where=where, do=do)
    return None


class BoundedServer(ThreadingHTTPServer):
    """Answers each connection in a thread of its own; `serve_forever` runs it, `shutdown` stops it."""

    daemon_threads = True
    request_queue_size = 128
    max_connections = 128
    idle_s = 60.0
    """Until the first byte of a request."""
    request_s = 30.0
    """From a request's first byte to its last."""
    reply_s = 30.0
    """Until the client has taken a reply."""

    def __init__(self, host: str, port: int, handler: type["BoundedHandler"], *, token: str | None = None) -> None:
        """Listen; port 0 takes a free one.

        Raises: OSError: the address cannot be used. InvalidInput: other machines reach it, and there is no token.
        """
        self.token = token
        self._connections = BoundedSemaphore(self.max_connections)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        """Take the address, without asking the network for its name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.is_local = is_loopback(self.server_name)
        if not self.is_local and not self.token:
            do = "listen on 127.0.0.1, or set a token"
            raise InvalidInput(
                sentence("server", "have a token where others reach it", "none", where=self.server_name, do=do)
            )

    @property
    def url(self) -> str:
        """The address that a client is given."""
        return f"http://{f'[{self.server_name}]' if ':' in self.server_name else self.server_name}:{self.server_port}"

    def process_request(self, request: object, client_address: object) -> None:
        """Answer in a thread; turn the client away where there are too many."""
        assert isinstance(request, socket.socket), "HTTP runs on TCP"
        if not self._connections.acquire(blocking=False):
            with suppress(OSError):
                request.settimeout(0)
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._connections.release()
            raise

    def process_request_thread(self, request: object, client_address: object) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]  # what the base class passed
        finally:
            self._connections.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent about a client that went away; tell of anything else."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # what the base class passed


class BoundedHandler(BaseHTTPRequestHandler, ABC):
    """One connection. A subclass has `get` and `post`; `body` reads a request and `send` answers it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: BoundedServer

    def setup(self) -> None:
        """Read through `_Incoming`."""
        super().setup()
        self.rfile.close()
        self._incoming = _Incoming(self.connection, self.server)
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        """Begin to count time and bytes anew."""
        self._incoming.begin()
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Read the head, and refuse who may not ask."""
        if not super().parse_request():
            return False
        refusal = self._refusal()
        if refusal is None:
            return True
        self.close_connection = True
        self._drain()
        self.refuse(*refusal)
        return False

    def _refusal(self) -> tuple[HTTPStatus, str] | None:
        """Return why a request is not answered, if it is not."""
        server = self.server
        return refusal(self.headers, url=server.url, is_local=server.is_local, token=server.token)

    def do_GET(self) -> None:
        """Answer as the subclass does."""
        self.get()

    def do_POST(self) -> None:
        """Answer as the subclass does."""
        self.post()

    @abstractmethod
    def get(self) -> None:
        """Answer a GET."""

    @abstractmethod
    def post(self) -> None:
        """Answer a POST."""

    def body(self, most: int) -> bytes:
        """Read the request's body. Raises: InvalidInput: it is longer than `most` bytes, or does not say how long."""
        length = self._length()
        if not 0 <= length <= most or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            self._drain()
            got, do = self.headers.get("Content-Length", "no Content-Length"), "send less at once"
            raise InvalidInput(sentence("body", f"have 0 to {most} bytes", got, where=self.path, do=do))
        self._incoming.allow(length)
        return self.rfile.read(length)

    def _length(self) -> int:
        text = self.headers.get("Content-Length", "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else -1

    def _drain(self, most: int = 64 << 20) -> None:
        """Read what is on its way, within reason: a client that is still sending would not see the answer."""
        left = min(self._length(), most)
        self._incoming.allow(max(0, left))
        while left > 0 and (chunk := self.rfile.read(min(left, 1 << 16))):
            left -= len(chunk)

    def refuse(self, status: HTTPStatus, detail: str) -> None:
        """Answer with one sentence."""
        self.send_json(status, {"detail": detail})

    def send_json(self, status: HTTPStatus, value: JsonObject) -> None:
        """Answer with JSON."""
        self.send(status, "application/json", well_formed(json.dumps(value, ensure_ascii=False)).encode())

    def send(
        self, status: HTTPStatus, kind: str, body: bytes, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Answer."""
        self.connection.settimeout(self.server.reply_s)
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing about each request."""


class _Incoming(io.RawIOBase):
    """What a client sends: no later than its time, and no more than it may."""

    def __init__(self, connection: socket.socket, server: BoundedServer) -> None:
        self._connection, self._server = connection, server
        self.begin()

    def begin(self) -> None:
        """Expect a request."""
        self._deadline: float | None = None
        self._left = MAX_HEAD_BYTES

    def allow(self, size: int) -> None:
        """Expect that many bytes more."""
        self._left += size

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # a BufferedReader passes a memoryview
        """Receive. Raises: TimeoutError: the time is over. ConnectionError: it is too much."""
        if self._left <= 0:
            raise ConnectionAbortedError("the request header is too long")
        wait_s = self._server.idle_s if self._deadline is None else self._deadline - time.monotonic()
        if wait_s <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(wait_s)
        count = self._connection.recv_into(buffer, min(len(buffer), self._left))
        if self._deadline is None:
            self._deadline = time.monotonic() + self._server.request_s
        self._left -= count
        return count


def _name(host: str) -> str:
    """Return the name or address in a `Host` header; empty where there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
