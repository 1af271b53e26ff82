"""A retrieval server: any retriever that answers in the protocol of `http_client`, with the standard library alone."""

import json
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from envgym.core.json_types import JsonObject, JsonValue, well_formed
from envgym.errors import InfrastructureError, InvalidInput, sentence
from envgym.retrieval.base import Retriever
from envgym.retrieval.http_client import DOCUMENTS, HEALTH, RETRIEVE, document_to_json, hit_to_json

MAX_BODY_BYTES = 4 << 20
MAX_BATCH = 256
"""Queries, or ids, in one request."""
DEFAULT_HITS = 3
SOCKET_TIMEOUT_S = 30.0


class RetrievalServer(ThreadingHTTPServer):
    """Answers each connection in a thread of its own; `serve_forever` runs it, `shutdown` stops it."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, retriever: Retriever, *, name: str, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one. Raises: OSError: the address cannot be used."""
        self.retriever, self.name = retriever, name
        super().__init__((host, port), _RetrievalHandler)

    @property
    def url(self) -> str:
        """The address that a client is given."""
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent about a client that went away; tell of anything else."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # what the base class passed


class _RetrievalHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = SOCKET_TIMEOUT_S
    server: RetrievalServer

    def do_GET(self) -> None:
        """Say that the server is there."""
        if self.path != HEALTH:
            got = sentence("path", f"be {HEALTH}", self.path, where="GET", do="correct it")
            return self._refuse(HTTPStatus.NOT_FOUND, got)
        return self._send(HTTPStatus.OK, {"status": "ok", "retriever": self.server.name})

    def do_POST(self) -> None:
        """Answer a request, or refuse it in one sentence."""
        answers: Mapping[str, Callable[[Retriever, JsonObject], JsonObject]] = {
            RETRIEVE: _retrieve,
            DOCUMENTS: _documents,
        }
        answer = answers.get(self.path)
        if answer is None:
            got = sentence("path", f"be one of {', '.join(answers)}", self.path, where="POST", do="correct it")
            return self._refuse(HTTPStatus.NOT_FOUND, got)
        try:
            return self._send(HTTPStatus.OK, answer(self.server.retriever, self._body()))
        except InvalidInput as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except InfrastructureError as error:
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _body(self) -> JsonObject:
        """Read the request. Raises: InvalidInput: too long, or no JSON object."""
        text = self.headers.get("Content-Length", "")
        length = int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else -1
        if not 0 <= length <= MAX_BODY_BYTES:
            self.close_connection = True
            self._drain(length)
            do = "send fewer queries at once"
            raise InvalidInput(sentence("body", f"have 0 to {MAX_BODY_BYTES} bytes", text, where=self.path, do=do))
        try:
            value = json.loads(self.rfile.read(length))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(sentence("body", "be JSON", str(error), where=self.path, do="correct it")) from error
        if not isinstance(value, dict):
            raise InvalidInput(sentence("body", "be a JSON object", value, where=self.path, do="correct it"))
        return value

    def _drain(self, length: int) -> None:
        """Read what is on its way, within reason: a client that is still sending would not see the answer."""
        left = min(length, 16 * MAX_BODY_BYTES)
        while left > 0 and (chunk := self.rfile.read(min(left, 1 << 16))):
            left -= len(chunk)

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        self._send(status, {"detail": detail})

    def _send(self, status: HTTPStatus, value: JsonObject) -> None:
        body = well_formed(json.dumps(value, ensure_ascii=False)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing about each request."""


def _retrieve(retriever: Retriever, body: JsonObject) -> JsonObject:
    count, has_scores = body.get("topk"), body.get("return_scores", False)
    count = DEFAULT_HITS if count is None else count
    if not isinstance(count, int) or isinstance(count, bool):
        raise InvalidInput(sentence("topk", "be a whole number", count, where=RETRIEVE, do="send e.g. 3"))
    found = [retriever.search(query, count) for query in _texts(body.get("queries"), "queries", RETRIEVE)]
    if has_scores is True:
        return {"result": [[hit_to_json(hit) for hit in hits] for hits in found]}
    return {"result": [[document_to_json(hit.document) for hit in hits] for hits in found]}


def _documents(retriever: Retriever, body: JsonObject) -> JsonObject:
    found = [retriever.find(identity) for identity in _texts(body.get("ids"), "ids", DOCUMENTS)]
    return {"documents": [None if item is None else document_to_json(item) for item in found]}


def _texts(value: JsonValue, name: str, where: str) -> list[str]:
    """Return a list of texts. Raises: InvalidInput: it is none, or too long."""
    texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(texts) != len(value) or len(texts) > MAX_BATCH:
        raise InvalidInput(
            sentence(name, f"be a list of at most {MAX_BATCH} texts", value, where=where, do="correct it")
        )
    return texts
