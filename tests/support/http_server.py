"""An HTTP server in a thread of this process, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager

from envgym.runtime.event_loop import LoopThread
from envgym.runtime.http.server import HttpServer


@contextmanager
def http_thread(server: HttpServer, host: str = "127.0.0.1") -> Iterator[HttpServer]:
    thread = LoopThread("http-server")
    thread.run(server.listen(host, 0))
    try:
        yield server
    finally:
        thread.close(server.close())
