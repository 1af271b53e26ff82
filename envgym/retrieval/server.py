"""A retrieval server: any retriever that answers in the protocol of `http_client`, with the standard library alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from threading import BoundedSemaphore
from typing import TypeVar

from envgym.core.json_types import JsonObject, JsonValue, parse_json
from envgym.errors import InfrastructureError, InvalidInput, sentence
from envgym.http_server import BoundedHandler, BoundedServer
from envgym.retrieval.base import Document, Retriever
from envgym.retrieval.http_client import DOCUMENTS, HEALTH, RETRIEVE, document_to_json, hit_to_json

T = TypeVar("T")
MAX_BODY_BYTES = 2 << 20
MAX_REPLY_CHARS = 8 << 20
"""Of all documents in one reply."""
MAX_BATCH = 256
"""Queries, or ids, in one request."""
MAX_ANSWERS = 8
"""Requests that are answered at the same time; others wait, for `reply_s` at most."""
DEFAULT_HITS = 3


class RetrievalServer(BoundedServer):
    """Serves one retriever."""

    def __init__(
        self, retriever: Retriever, *, name: str, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        """Listen; port 0 takes a free one. Raises: as `BoundedServer`."""
        self.retriever, self.name = retriever, name
        self.answering = BoundedSemaphore(MAX_ANSWERS)
        super().__init__(host, port, _RetrievalHandler, token=token)


class _RetrievalHandler(BoundedHandler):
    """One connection."""

    server: RetrievalServer

    def get(self) -> None:
        """Say that the server is there."""
        if self.path != HEALTH:
            got = sentence("path", f"be {HEALTH}", self.path, where="GET", do="correct it")
            return self.refuse(HTTPStatus.NOT_FOUND, got)
        return self.send_json(HTTPStatus.OK, {"status": "ok", "retriever": self.server.name})

    def post(self) -> None:
        """Answer a request, or refuse it in one sentence."""
        answers: Mapping[str, Callable[[Retriever, JsonObject], JsonObject]] = {
            RETRIEVE: _retrieve,
            DOCUMENTS: _documents,
        }
        answer = answers.get(self.path)
        if answer is None:
            got = sentence("path", f"be one of {', '.join(answers)}", self.path, where="POST", do="correct it")
            return self.refuse(HTTPStatus.NOT_FOUND, got)
        try:
            content = self.body(MAX_BODY_BYTES)
            if not self.server.answering.acquire(timeout=self.server.reply_s):
                do = "try again later"
                raise InfrastructureError(sentence("server", "have time", "too many requests", where=self.path, do=do))
            try:
                self.send_json(HTTPStatus.OK, answer(self.server.retriever, _read(content, self.path)))
            finally:
                self.server.answering.release()
        except InvalidInput as error:
            self.refuse(HTTPStatus.BAD_REQUEST, str(error))
        except InfrastructureError as error:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))


def _read(content: bytes, where: str) -> JsonObject:
    """Decode a request. Raises: InvalidInput: it is no JSON object."""
    try:
        value = parse_json(content, 8 * MAX_BATCH)
    except ValueError as error:
        raise InvalidInput(sentence("body", "be JSON", str(error), where=where, do="correct it")) from error
    if not isinstance(value, dict):
        raise InvalidInput(sentence("body", "be a JSON object", value, where=where, do="correct it"))
    return value


def _retrieve(retriever: Retriever, body: JsonObject) -> JsonObject:
    count, has_scores = body.get("topk"), body.get("return_scores", False)
    count = DEFAULT_HITS if count is None else count
    if not isinstance(count, int) or isinstance(count, bool):
        raise InvalidInput(sentence("topk", "be a whole number", count, where=RETRIEVE, do="send e.g. 3"))
    found = _bounded(
        (retriever.search(query, count) for query in _texts(body.get("queries"), "queries", RETRIEVE)),
        lambda hits: [hit.document for hit in hits],
        RETRIEVE,
    )
    if has_scores is True:
        return {"result": [[hit_to_json(hit) for hit in hits] for hits in found]}
    return {"result": [[document_to_json(hit.document) for hit in hits] for hits in found]}


def _documents(retriever: Retriever, body: JsonObject) -> JsonObject:
    found = _bounded(
        (retriever.find(identity) for identity in _texts(body.get("ids"), "ids", DOCUMENTS)),
        lambda item: [] if item is None else [item],
        DOCUMENTS,
    )
    return {"documents": [None if item is None else document_to_json(item) for item in found]}


def _bounded(answers: Iterable[T], documents_in: Callable[[T], Iterable[Document]], where: str) -> Sequence[T]:
    """Return all answers. Raises: InvalidInput: as soon as their documents are too much for one reply."""
    kept, left = [], MAX_REPLY_CHARS
    for answer in answers:
        kept.append(answer)
        left -= sum(len(item.id) + len(item.title) + len(item.text) for item in documents_in(answer))
        if left < 0:
            must, do = f"have at most {MAX_REPLY_CHARS} characters", "request fewer documents at once"
            raise InvalidInput(sentence("reply", must, "more", where=where, do=do))
    return kept


def _texts(value: JsonValue, name: str, where: str) -> list[str]:
    """Return a list of texts. Raises: InvalidInput: it is none, or too long."""
    texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(texts) != len(value) or len(texts) > MAX_BATCH:
        raise InvalidInput(
            sentence(name, f"be a list of at most {MAX_BATCH} texts", value, where=where, do="correct it")
        )
    return texts
