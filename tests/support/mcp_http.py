"""A small MCP server over HTTP, in the standard library alone, whose answers a test chooses."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAIT_S = 60.0
_NOTHING = {"type": "object", "properties": {}}
_INFO = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "http", "version": "1"}}


class McpHttpServer(ThreadingHTTPServer):
    """Offers the tools `find`, and `wait`, which returns when `let` is set."""

    daemon_threads = False  # so that closing waits for them

    def __init__(self, token: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/mcp"
        self.token = token
        self.faults: dict[str, tuple[int, dict[str, Any] | None]] = {}
        """By name of a tool or method: status, and the error of the body; None: no body."""
        self.let, self.entered = threading.Event(), threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: McpHttpServer

    def do_GET(self) -> None:
        self._send(405)

    def do_DELETE(self) -> None:
        self._send(200)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.server.token is not None and self.headers["authorization"] != f"Bearer {self.server.token}":
            return self._send(401)
        if "id" not in message:
            return self._send(202)
        method, name = message["method"], message.get("params", {}).get("name", "")
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        fault = self.server.faults.get(method) or self.server.faults.get(name)
        if fault is not None:
            status, error = fault
            return self._send(status, None if error is None else {**answer, "error": error})
        result = self._result(method, name)
        error = {"code": -32601, "message": "no such method"}
        return self._send(200, {**answer, "error": error} if result is None else {**answer, "result": result})

    def _result(self, method: str, name: str) -> dict[str, Any] | None:
        if method == "initialize":
            return _INFO
        if method == "tools/list":
            return {"tools": [{"name": tool, "inputSchema": _NOTHING} for tool in ("find", "wait")]}
        if method != "tools/call":
            return None
        if name == "wait":
            self.server.entered.set()
            self.server.let.wait(WAIT_S)
        return {"content": [{"type": "text", "text": f"{name}: done"}]}

    def _send(self, status: int, body: dict[str, Any] | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("mcp-session-id", "one")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def mcp_over_http(token: str | None = None) -> Iterator[McpHttpServer]:
    """Run a server in a thread until the context ends."""
    with McpHttpServer(token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.let.set()
            server.shutdown()
            thread.join()
