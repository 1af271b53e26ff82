"""A real HTTP server on this machine that misbehaves as it is told to."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]  # what an endpoint says

HANG = "hang"


class Server(ThreadingHTTPServer):
    """Answers with `script`, one entry a request: a body, (status, body, headers), raw text, HANG, or what makes one of
    the request's body. The last entry stays."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[object] = []
        self.page: object = {}
        """What a GET gets."""
        self.bodies: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.under_way = self.most = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        page = self.server.page
        self._send(*(page if isinstance(page, tuple) else (200, page, {})))

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.bodies.append(body)
            server.headers.append(dict(self.headers))
            server.paths.append(self.path)
            answer = server.script.pop(0) if len(server.script) > 1 else server.script[0]
            answer = answer(body) if callable(answer) else answer
            server.under_way += 1
            server.most = max(server.most, server.under_way)
        if answer == HANG:
            server.over.wait()
            self.close_connection = True
        else:
            self._send(*(answer if isinstance(answer, tuple) else (200, answer, {})))
        with server.lock:
            server.under_way -= 1

    def _send(self, status: int, content: object, headers: dict[str, str]) -> None:
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def running() -> Iterator[Server]:
    """Serve until the end, also those that hang."""
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.over.set()
    made.shutdown()
    made.server_close()
    thread.join()


class Pauses:
    """Notes pauses instead of making them."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seen.append(seconds)
