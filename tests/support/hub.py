"""A Hugging Face Hub of one repository on this machine: the routes that huggingface_hub asks for when it uploads."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "hf_test"
Reply = tuple[HTTPStatus, dict[str, Any] | list[dict[str, Any]]]


@dataclass
class StubHub:
    """What was uploaded, and how the next requests are answered."""

    is_private: bool | None = None
    """Of the repository; None: there is none yet."""
    repo_type: str = ""
    name: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """Path in the repository -> content, of the last commit."""
    refused: dict[str, HTTPStatus] = field(default_factory=dict)
    """Part of a path -> status of the answer to a request for it."""
    requests: list[str] = field(default_factory=list)
    """Method and path of each request."""
    url: str = ""
    _objects: dict[str, bytes] = field(default_factory=dict)

    def answer(self, method: str, path: str, authorization: str | None, body: bytes) -> Reply:
        self.requests.append(f"{method} {path}")
        if status := next((status for part, status in self.refused.items() if part in path), None):
            return status, {"error": "refused by the test"}
        if path.startswith("/api/agent"):
            return HTTPStatus.NOT_FOUND, {"error": "no such page"}
        if path.startswith("/objects/"):
            self._objects[path.removeprefix("/objects/")] = body
            return HTTPStatus.OK, {}
        if authorization != f"Bearer {TOKEN}":
            return HTTPStatus.UNAUTHORIZED, {"error": "Invalid username or password."}
        if "/commit/" in path:
            return HTTPStatus.OK, self._commit(body)
        return self._answer_json(path, json.loads(body or b"{}"))

    def _answer_json(self, path: str, body: dict[str, Any]) -> Reply:
        if path == "/api/repos/create":
            return self._create(body)
        if path == "/api/validate-yaml":
            return HTTPStatus.OK, {"errors": [], "warnings": []}
        if "/preupload/" in path:
            modes = [{"path": file["path"], "uploadMode": _mode(file["path"])} for file in body["files"]]
            return HTTPStatus.OK, {"files": [{**mode, "shouldIgnore": False} for mode in modes]}
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**item, "actions": {"upload": {"href": f"{self.url}/objects/{item['oid']}", "header": {}}}}
                for item in body["objects"]
            ]
            return HTTPStatus.OK, {"transfer": "basic", "objects": objects}
        if "/tree/" in path:
            return HTTPStatus.OK, [{"type": "file", "path": file, "size": 1, "oid": "c" * 40} for file in self.files]
        return HTTPStatus.OK, {"id": self.name, "private": bool(self.is_private), "siblings": [], "sha": "b" * 40}

    def _create(self, body: dict[str, Any]) -> Reply:
        existed = self.is_private is not None
        self.name, self.repo_type = f"{body['organization']}/{body['name']}", body.get("type", "model")
        if not existed:
            self.is_private = body.get("visibility") == "private"
        folder = "datasets/" if self.repo_type == "dataset" else ""
        status = HTTPStatus.CONFLICT if existed else HTTPStatus.OK
        return status, {"url": f"{self.url}/{folder}{self.name}", "name": self.name, "id": "1"}

    def _commit(self, body: bytes) -> dict[str, Any]:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.files[value["path"]] = self._objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del self.files[value["path"]]
        oid = "a" * 40
        return {"success": True, "commitOid": oid, "commitUrl": f"{self.url}/{self.name}/commit/{oid}"}


def _mode(path: str) -> str:
    return "lfs" if path.endswith((".safetensors", ".parquet", ".png")) else "regular"


@contextmanager
def stub_hub() -> Iterator[StubHub]:
    """Serve an empty Hub on a free port until the block ends; each connection ends with its answer."""
    hub = StubHub()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, reply = hub.answer(self.command, self.path, self.headers.get("Authorization"), body)
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _answer

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = False  # so that the end waits for them
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
