"""The client of environment servers: connections, retries, patience with a busy server, and signs of life.

A request that got no reply is sent again, with its number, so that no turn is played twice. Connections are shared by
all sessions of the process; a call takes one for itself, from any thread.
"""

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from secrets import token_hex
from typing import Final
from urllib.parse import urlsplit

from envgym.errors import InfrastructureError, InvalidInput
from envgym.runtime.backoff import Backoff
from envgym.runtime.error_log import log_error
from envgym.runtime.http.client import BlockingConnection, HttpAnswer, encode_request, request_headers
from envgym.runtime.processes.log import current_ids, is_open
from envgym.serving import wire
from envgym.serving.wire import Json, ServerBusy, ServerUnreachable, SessionLost

RECONNECT_S: Final = 30.0
"""A server that cannot be reached is tried again for so long; a new session is opened elsewhere meanwhile."""
BUSY_S: Final = 600.0
"""Longest wait for a free session."""
CALL_S: Final = 600.0
"""Longest call before the server has said how long one may take."""
CLOSE_S: Final = 10.0
IDLE_S: Final = 30.0
"""A connection that was not used for so long is closed."""
_GRACE_S = 10.0
"""A server that gives a call up says so itself."""
_CONNECT_S = 10.0
_BACKOFF: Final = Backoff(0.05, 2.0)


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
        self.has_left = False
        """Whether it is asked for no new session; one that does not answer any more is not waited for."""
        self._idle: deque[BlockingConnection] = deque()
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
        self.held, self._idle, self._renewer, self._lock = {}, deque(), None, threading.Lock()

    def request(
        self, path: str, data: Json, *, within_s: float | None = None, reconnect_s: float | None = None
    ) -> Json:
        """Send a request, again where it got no reply, and return the reply.

        Args:
            path: of `envgym.serving.wire`.
            data: the message; sending it twice must do no harm.
            within_s: longest call; None: what the server says.
            reconnect_s: how long a server that cannot be reached is tried again; None: as set for this client.

        Raises: ServerUnreachable: no reply. ServerBusy: all sessions are taken. InvalidInput: the token is another.
            Whatever error the reply holds.
        """
        return self.send(self.written(path, data), within_s=within_s, reconnect_s=reconnect_s)

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

    def send(self, request: bytes, *, within_s: float | None = None, reconnect_s: float | None = None) -> Json:
        """Send what `written` returned, as `request` does."""
        answer = self._exchange(
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

    def _connect(self) -> BlockingConnection:
        return BlockingConnection(*self._place, connect_s=_CONNECT_S, body_bytes=wire.MAX_BODY_BYTES)

    def _exchange(self, request: bytes, *, within_s: float, reconnect_s: float) -> HttpAnswer:
        deadline: float | None = None  # counted from the first failure: what was sent before may have taken long
        attempt = 0
        while True:
            connection = None
            is_reused = False
            try:
                with suppress(IndexError):
                    connection = self._idle.pop()
                if connection is None:
                    connection = self._connect()
                is_reused, connection.is_used = connection.is_used, False
                answer = connection.exchange(request, within_s)
                if connection.is_used:
                    self._idle.append(connection)
                else:
                    connection.close()
                self.close_idle(IDLE_S if self.held or not self.has_left else 0.0)
                return answer
            except OSError as error:
                if connection is not None:
                    connection.close()
                if is_reused and not isinstance(error, TimeoutError):
                    continue  # the server had closed it while nobody used it
                deadline = time.monotonic() + reconnect_s if deadline is None else deadline
                is_late = connection is not None and isinstance(error, TimeoutError)
                pause_s = _BACKOFF.pause_s(attempt)
                if is_late or self.has_left or time.monotonic() + pause_s > deadline:
                    do = "look at its log, start it again, or correct the address"
                    got = str(error) or type(error).__name__
                    raise ServerUnreachable.of("environment server", "answer", got, where=self.url, do=do) from error
            time.sleep(pause_s)
            attempt += 1

    def close_idle(self, idle_s: float = 0.0) -> None:
        """Close the connections that nobody has used for so long; the one used last is used first."""
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
                    self.request(wire.RENEW, {"sessions": sessions}, within_s=CLOSE_S, reconnect_s=0)
            except (InfrastructureError, InvalidInput) as error:
                log_error(error, "the sessions of an environment server could not be renewed")


_clients: "weakref.WeakSet[ServerClient]" = weakref.WeakSet()


@atexit.register
def _close_connections() -> None:
    """Close what is kept for the next request, at the end of the process."""
    for client in list(_clients):
        client.close_idle()


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class EnvSession:
    """A session on a server, whose requests are numbered."""

    def __init__(self, client: ServerClient, session_id: str) -> None:
        self.client, self.id = client, session_id
        self._number = 0
        self._is_lost = False
        """Whether a call got no reply: nobody knows whether the env has played it."""
        self._lock = threading.Lock()
        self._finalizer: weakref.finalize[..., EnvSession] | None = None

    def hold(self) -> None:
        """Tell the server from now on that the session's client lives, until it is closed or collected."""
        self._finalizer = weakref.finalize(self, self.client.release, self.id)
        self._finalizer.atexit = False
        self.client.hold(self.id)

    def call(self, path: str, **data: object) -> Json:
        """Send the session's next request. Raises: as `ServerClient.request`. SessionLost: an earlier got no reply."""
        with self._lock:
            if self._is_lost:
                must, do = "have a reply to each call", "begin the episode again"
                raise SessionLost.of("session", must, "none to the last", where=self.client.url, do=do)
            message = {"session": self.id, "number": self._number + 1, **data, **log_ids()}
            written = self.client.written(path, message)
            self._number += 1
            try:
                return self.client.send(written)
            except ServerUnreachable:
                self._is_lost = True
                raise

    def fork(self, *, keep: bool = False) -> "EnvSession":
        """Copy the session on its server, waiting for a free one; `keep` it for whoever comes later.

        Raises: as `ServerClient.request`.
        """
        twin = EnvSession(self.client, new_session_id())
        for is_last in attempts():
            try:
                self.client.request(wire.FORK, {"session": self.id, "to": twin.id, "keep": keep})
                break
            except ServerBusy:
                if is_last:
                    raise
        if not keep:
            twin.hold()
        return twin

    def close(self) -> None:
        """End it; a server that does not hear of it ends it by itself."""
        if self._finalizer is not None:
            self._finalizer()
        with suppress(InfrastructureError):
            self.client.request(wire.CLOSE, {"session": self.id}, within_s=CLOSE_S, reconnect_s=0)


def log_ids() -> Json:
    """The ids under which the server's log has a request; none without a log."""
    return {"ids": current_ids().header()} if is_open() else {}


def new_session_id() -> str:
    """Return an id that nobody guesses; no result depends on it."""
    return token_hex(16)


def attempts() -> Iterator[bool]:
    """Yield, with growing pauses between, whether the wait for a free session is over."""
    deadline = time.monotonic() + BUSY_S
    backoff, attempt = _BACKOFF._replace(first_s=ServerBusy.retry_after_s), 0
    while (left_s := deadline - time.monotonic()) > 0:
        yield False
        time.sleep(backoff.pause_s(attempt, left_s=left_s))
        attempt += 1
    yield True
