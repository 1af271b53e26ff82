"""The server of the app: uvicorn, with a bound on connections and on the time that a request may take to arrive."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from envgym.errors import InvalidInput
from envgym.http_server import MAX_HEAD_BYTES, is_loopback
from envgym.viewer.access import AccessCheck
from envgym.viewer.app import create_app
from envgym.viewer.index import RequestCount
from envgym.viewer.viewed_run import ViewedRun

MAX_CONNECTIONS: Final = 200
"""One more, and the connection that has waited longest for its request is closed."""
REQUEST_S: Final = 20.0
"""From the start of a connection, or of a request on it, until the request is whole."""
_KEEP_ALIVE_S: Final = 15
_BACKLOG: Final = 512


class BoundedProtocol(H11Protocol):
    """One connection. Those that are half open never keep others out: the oldest of them gives way."""

    def connection_made(self, transport: Any) -> None:
        """Begin to count time; make room where there is none."""
        super().connection_made(transport)
        self._began = self.loop.time()
        self._timer = self.loop.call_later(REQUEST_S, self._expire)
        others = (other for other in self.connections if isinstance(other, BoundedProtocol))
        open_ones = [other for other in others if not other.transport.is_closing()]
        waiting = [other for other in open_ones if other.is_waiting]
        if len(open_ones) > MAX_CONNECTIONS and waiting:
            min(waiting, key=lambda other: other._began).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time."""
        self._timer.cancel()
        super().connection_lost(exc)

    @property
    def is_waiting(self) -> bool:
        """Whether the client has still to send, be it a request or the rest of one."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request, whatever its type says
        return cycle is None or cycle.response_complete or cycle.more_body

    def on_response_complete(self) -> None:
        """Begin to count the time of the next request."""
        self._began = self.loop.time()
        super().on_response_complete()

    def _expire(self) -> None:
        left = self._began + REQUEST_S - self.loop.time()
        if self.is_waiting and left <= 0:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(max(left, 1.0), self._expire)


class ViewerServer:
    """The app on an address."""

    def __init__(self, runs: Sequence[ViewedRun], *, host: str, port: int, token: str | None, problems: Sequence[str]):
        """Listen; port 0 takes a free one.

        Raises: InvalidInput: other machines reach the address and there is no token, or it cannot be used.
        """
        do = "listen on 127.0.0.1, or set a token"
        InvalidInput.unless(
            is_loopback(host) or token, "viewer", "have a token where others reach it", "none", where=host, do=do
        )
        self.runs = runs
        requests = RequestCount()
        for run in runs:
            run.index.requests = requests
            run.refresh()
        self.socket = _listen(host, port)
        name, number = self.socket.getsockname()[:2]
        self.url = f"http://{f'[{name}]' if ':' in name else name}:{number}"
        self.app = create_app(runs, problems=problems)
        checked = AccessCheck(self.app, url=self.url, is_local=is_loopback(name), token=token, requests=requests)
        config = uvicorn.Config(
            checked,
            http=BoundedProtocol,
            ws="none",
            log_level="critical",
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            backlog=_BACKLOG,
        )
        self.server = _Server(config)

    async def serve(self) -> None:
        """Serve until `stop`, or until it is cancelled, and read the details of episodes meanwhile."""
        for run in self.runs:
            threading.Thread(target=run.read_ahead, name=f"read {run.run.name}", daemon=True).start()
        try:
            await self.server.serve(sockets=[self.socket])
        finally:
            for run in self.runs:
                run.close()
            self.app.state.plays.close()
            self.socket.close()

    def stop(self) -> None:
        """End `serve`."""
        self.server.should_exit = True


class _Server(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named: else asyncio leaves Nagle's delay on
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        made.close()
        do = "choose another --port, or 0 for any free one"
        where = "envgym view"
        raise InvalidInput.of(
            "address", "be free and of this machine", f"{host}:{port} ({error})", where=where, do=do
        ) from None
    return made


@contextmanager
def running(server: ViewerServer) -> Iterator[Callable[[], None]]:
    """Serve in a thread until the block ends; for tests, and for scripts that take pictures."""
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), name="viewer")
    thread.start()
    try:
        yield server.stop
    finally:
        server.stop()
        thread.join()
