"""A retriever that asks a server over HTTP, and the protocol between them.

It is that of Search-R1, and one request more to open a document by its id:

    POST /retrieve   {"queries": [text], "topk": k, "return_scores": true}
                     -> {"result": [[{"document": {"id", "contents"}, "score"}]]}, one list per query, best first
    POST /documents  {"ids": [id]} -> {"documents": [{"id", "contents"} or null]}
    GET  /health     -> {"status": "ok", "retriever": name}

`contents` is the title in quotes, a line break, and the text. Source: 2503.09516 (Search-R1).
"""

import os
import time
import weakref
from collections.abc import Sequence
from functools import partial

import httpx

from envgym.core.json_types import JsonObject, JsonValue, parse_json
from envgym.errors import InvalidInput, ToolInfraFailure
from envgym.retrieval.base import Document, Hit, checked_query
from envgym.retrieval.corpus import document_of
from envgym.runtime.backoff import PASSING, Backoff

RETRIEVE, DOCUMENTS, HEALTH = "/retrieve", "/documents", "/health"
TOKEN_VARIABLE = "ENVGYM_RETRIEVER_TOKEN"
"""The environment variable with the token that a server demands and a client sends."""


def document_to_json(item: Document) -> JsonObject:
    """Write a document."""
    return {"id": item.id, "contents": f'"{item.title}"\n{item.text}'}


def hit_to_json(hit: Hit) -> JsonObject:
    """Write a hit."""
    return {"document": document_to_json(hit.document), "score": hit.score}


def hits_of(reply: JsonValue, where: str) -> Sequence[Hit]:
    """Read the answer to one query, with or without scores. Raises: InvalidInput: it has another form."""
    result = reply.get("result") if isinstance(reply, dict) else None
    rows = result[0] if isinstance(result, list) and len(result) == 1 else None
    if not isinstance(rows, list):
        do = "check that the server speaks Search-R1's protocol"
        raise InvalidInput.of("reply", "hold one list of results", reply, where=where, do=do)
    return [_hit(row, place, where) for place, row in enumerate(rows)]


def _hit(row: JsonValue, place: int, where: str) -> Hit:
    """Read one result: `{"document", "score"}`, or a bare document, which scores by its place."""
    document = row.get("document", row) if isinstance(row, dict) else row
    score = row.get("score") if isinstance(row, dict) else None
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    return Hit(
        document=document_of(document, f"result-{place}", where=where),
        score=float(score) if is_number else 1.0 / (1 + place),  # type: ignore[arg-type]  # checked by is_number
    )


_BACKOFF = Backoff(0.1)
MAX_REPLY_BYTES = 32 << 20
_MAX_PARTS = 100_000
"""Of the JSON of a reply: a hit has about 15."""
_NO_SUCH_REQUEST = frozenset({404, 405, 501})


class HttpRetriever:
    """Asks a retrieval server, several times where it is busy or away, but never for longer than the time limit."""

    blocking = True

    def __init__(self, url: str, *, timeout_s: float = 30.0, retries: int = 3) -> None:
        """Point at a server; it is sent the token in `$ENVGYM_RETRIEVER_TOKEN`, where there is one.

        Args:
            url: its address, as in http://127.0.0.1:8000, with or without /retrieve.
            timeout_s: for one search, all attempts together.
            retries: further attempts after the first.

        Raises: InvalidInput: the address is none, or a number is out of range.
        """
        base = url.rstrip("/").removesuffix(RETRIEVE)
        if not base.startswith(("http://", "https://")):
            do = "pass e.g. http://127.0.0.1:8000"
            raise InvalidInput.of("url", "start with http:// or https://", url, where="HttpRetriever", do=do)
        if timeout_s <= 0 or retries < 0:
            got, do = (timeout_s, retries), "pass e.g. timeout_s=30, retries=3"
            raise InvalidInput.of("(timeout_s, retries)", "be positive", got, where="HttpRetriever", do=do)
        self.url, self.timeout_s, self.retries = base, timeout_s, retries
        self._has_documents = True
        self._connect()

    def __reduce__(self) -> tuple[object, ...]:
        return partial(HttpRetriever, timeout_s=self.timeout_s, retries=self.retries), (self.url,)

    def search(self, query: str, count: int) -> Sequence[Hit]:
        """The hits of the server.

        Raises: BadQuery: as `checked_query`. ToolInfraFailure: it does not answer in time, or not in the protocol.
        """
        request: JsonObject = {"queries": [checked_query(query, count)], "topk": count, "return_scores": True}
        reply = self._post(RETRIEVE, request)
        try:
            return hits_of(reply, self.url)[:count]
        except InvalidInput as error:
            raise ToolInfraFailure(str(error)) from error

    def find(self, document_id: str) -> Document | None:
        """Return a document by its id; None too where the server cannot be asked for one.

        Raises: ToolInfraFailure: as `search`.
        """
        reply = self._post(DOCUMENTS, {"ids": [document_id]}) if self._has_documents else None
        documents = reply.get("documents") if isinstance(reply, dict) else None
        if not isinstance(documents, list) or not documents or documents[0] is None:
            return None
        try:
            return document_of(documents[0], document_id, where=self.url)
        except InvalidInput as error:
            raise ToolInfraFailure(str(error)) from error

    def close(self) -> None:
        """Close the connections; a later search opens new ones."""
        self._disconnect()
        self._connect()

    def _connect(self) -> None:
        """Make the client; it is closed with the last reference to this retriever, or when Python ends."""
        token = os.environ.get(TOKEN_VARIABLE)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(timeout=self.timeout_s, trust_env=False, headers=headers)
        self._disconnect = weakref.finalize(self, self._client.close)

    def _post(self, path: str, request: JsonObject) -> JsonValue:
        """Send a request until it is answered; None where the server does not know `/documents`."""
        deadline = time.monotonic() + self.timeout_s
        problem = ""
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(_BACKOFF.pause_s(attempt - 1, left_s=deadline - time.monotonic()))
            if time.monotonic() >= deadline:
                problem = f"nothing within {self.timeout_s:g} s"
                break
            try:
                status, content = self._send(path, request, deadline)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if path == DOCUMENTS and status in _NO_SUCH_REQUEST:
                self._has_documents = False
                return None
            if status not in PASSING:
                return _decode(status, content, self.url + path)
            problem = f"status {status}"
        do = "start it with `envgym serve-retriever`, or raise the time limit"
        raise ToolInfraFailure.of("retrieval server", "answer", problem, where=self.url, do=do)

    def _send(self, path: str, request: JsonObject, deadline: float) -> tuple[int, bytes]:
        """Send a request once and return status and body. Raises: TransportError: no answer by the deadline."""
        left_s = deadline - time.monotonic()
        content = b""
        with self._client.stream("POST", self.url + path, json=request, timeout=left_s) as response:
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > MAX_REPLY_BYTES:
                    raise httpx.ReadError(f"more than {MAX_REPLY_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the reply drips")
        return response.status_code, content


def _decode(status: int, content: bytes, where: str) -> JsonValue:
    """Return the JSON of a good response. Raises: ToolInfraFailure: a bad status, or no JSON."""
    text = content[:1_000].decode(errors="replace")
    if status != httpx.codes.OK:
        got, do = f"status {status}: {text}", "check its address and its log"
        raise ToolInfraFailure.of("retrieval server", "accept the request", got, where=where, do=do)
    try:
        return parse_json(content, _MAX_PARTS)
    except ValueError as error:
        do = "check that it is a retrieval server"
        raise ToolInfraFailure.of("reply", "be JSON", text, where=where, do=do) from error
