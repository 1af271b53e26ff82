"""A session on an environment server, as its client holds it."""

import asyncio
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from secrets import token_hex
from typing import Final

from envgym.errors import InfrastructureError
from envgym.runtime.processes.log import current_ids, is_open
from envgym.serving import wire
from envgym.serving.client import BACKOFF, CLOSE_S, LOOP, ClientIo, ServerClient, env_loop
from envgym.serving.wire import Json, ServerBusy, ServerUnreachable, SessionLost

BUSY_S: Final = 600.0
"""Longest wait for a free session."""
_SOON_S = 0.001


class EnvSession:
    """A session on a server, whose requests are numbered."""

    def __init__(self, client: ServerClient, session_id: str) -> None:
        self.client, self.id = client, session_id
        self._number = 0
        self.is_lost = False
        """Whether the caller of a request got no reply: it does not know whether the env has played the turn."""
        self._lock = threading.Lock()
        self._finalizer: weakref.finalize[..., EnvSession] | None = None

    def hold(self) -> None:
        """Tell the server from now on that the session's client lives, until it is closed or collected."""
        self._finalizer = weakref.finalize(self, self.client.release, self.id)
        self._finalizer.atexit = False
        self.client.hold(self.id)

    async def call(self, io: ClientIo, path: str, **data: object) -> Json:
        """Send the session's next request. Raises: as `ServerClient.request`. SessionLost: an earlier got no reply."""
        while not self._lock.acquire(blocking=False):
            await io.sleep(_SOON_S)
        try:
            if self.is_lost:
                must, do = "have a reply to each call", "begin the episode again"
                raise SessionLost.of("session", must, "none to the last", where=self.client.url, do=do)
            message = {"session": self.id, "number": self._number + 1, **data, **log_ids()}
            written = self.client.written(path, message)
            self._number += 1
            try:
                return await self.client.send(io, written)
            except (ServerUnreachable, asyncio.CancelledError):
                self.is_lost = True
                raise
        finally:
            self._lock.release()

    async def fork(self, io: ClientIo, *, keep: bool = False) -> "EnvSession":
        """Copy the session on its server, waiting for a free one; `keep` it for whoever comes later.

        Raises: as `ServerClient.request`.
        """
        twin = EnvSession(self.client, new_session_id())
        patience = pauses()
        while True:
            try:
                await self.client.request(io, wire.FORK, {"session": self.id, "to": twin.id, "keep": keep})
                break
            except ServerBusy:
                pause_s = next(patience, None)
                if pause_s is None:
                    raise
                await io.sleep(pause_s)
            except asyncio.CancelledError:
                twin.close_soon()  # the server may have made it
                raise
        if not keep:
            twin.hold()
        return twin

    def close_soon(self) -> "Future[None]":
        """Begin to end it in the event loop, and return what is done then."""
        return env_loop().begin(self.close(LOOP))

    async def close(self, io: ClientIo) -> None:
        """End it; a server that does not hear of it ends it by itself."""
        if self._finalizer is not None:
            self._finalizer()
        with suppress(InfrastructureError):
            await self.client.request(io, wire.CLOSE, {"session": self.id}, within_s=CLOSE_S, reconnect_s=0)


def log_ids() -> Json:
    """The ids under which the server's log has a request; none without a log."""
    return {"ids": current_ids().header()} if is_open() else {}


def new_session_id() -> str:
    """Return an id that nobody guesses; no result depends on it."""
    return token_hex(16)


def pauses() -> Iterator[float]:
    """Yield growing pauses between attempts to get a free session; the end: the wait is over."""
    deadline = time.monotonic() + BUSY_S
    backoff, attempt = BACKOFF._replace(first_s=ServerBusy.retry_after_s), 0
    while (left_s := deadline - time.monotonic()) > 0:
        yield backoff.pause_s(attempt, left_s=left_s)
        attempt += 1
