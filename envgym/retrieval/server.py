"""A retrieval server: any retriever, answering in the protocol of `http_client`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final, TypeVar

from envgym.core.json_types import JsonObject, JsonValue, parse_json
from envgym.errors import InfrastructureError, InvalidInput, sentence
from envgym.retrieval.base import Document, Retriever
from envgym.retrieval.http_client import DOCUMENTS, HEALTH, RETRIEVE, document_to_json, hit_to_json
from envgym.runtime.http.server import HttpLimits, HttpReply, HttpRequest, HttpServer, detail_reply
from envgym.runtime.http.threads import ThreadedHandler

T = TypeVar("T")
LIMITS: Final = HttpLimits(connections=128, body_bytes=2 << 20, idle_s=60.0)
MAX_REPLY_CHARS = 8 << 20
"""Of all documents in one reply."""
MAX_BATCH = 256
"""Queries, or ids, in one request."""
MAX_ANSWERS = 8
"""Requests that are answered at the same time; others wait, for `LIMITS.reply_s` at most."""
DEFAULT_HITS = 3


def make_server(retriever: Retriever, *, name: str, token: str | None = None) -> HttpServer:
    """Return a server of one retriever, which is yet to listen.

    Args:
        retriever: answers, in several threads at a time.
        name: of the retriever, for `/health`.
        token: that requests must carry; None: no request needs one.
    """
    handler = ThreadedHandler(partial(_reply, retriever, name), threads=MAX_ANSWERS, wait_s=LIMITS.reply_s)
    return HttpServer(handler, token=token, limits=LIMITS)


def _reply(retriever: Retriever, name: str, request: HttpRequest) -> HttpReply:
    """Answer a request, or refuse it in one sentence."""
    answers: Mapping[str, Callable[[Retriever, JsonObject], JsonObject]]
    answers = {RETRIEVE: _retrieve, DOCUMENTS: _documents}
    if request.method == "GET" and request.path == HEALTH:
        return HttpReply.of_json({"status": "ok", "retriever": name})
    answer = answers.get(request.path)
    if request.method == "GET" or answer is None:
        must = f"be {HEALTH}" if request.method == "GET" else f"be one of {', '.join(answers)}"
        detail = sentence("path", must, request.path, where=request.method, do="correct it")
        return detail_reply(HTTPStatus.NOT_FOUND, detail)
    try:
        return HttpReply.of_json(answer(retriever, _read(request.body, request.path)))
    except InvalidInput as error:
        return detail_reply(HTTPStatus.BAD_REQUEST, str(error))
    except InfrastructureError as error:
        return detail_reply(HTTPStatus.SERVICE_UNAVAILABLE, str(error))


def _read(content: bytes, where: str) -> JsonObject:
    """Decode a request. Raises: InvalidInput: it is no JSON object."""
    try:
        value = parse_json(content, 8 * MAX_BATCH)
    except ValueError as error:
        raise InvalidInput.of("body", "be JSON", str(error), where=where, do="correct it") from error
    if not isinstance(value, dict):
        raise InvalidInput.of("body", "be a JSON object", value, where=where, do="correct it")
    return value


def _retrieve(retriever: Retriever, body: JsonObject) -> JsonObject:
    count, has_scores = body.get("topk"), body.get("return_scores", False)
    count = DEFAULT_HITS if count is None else count
    if not isinstance(count, int) or isinstance(count, bool):
        raise InvalidInput.of("topk", "be a whole number", count, where=RETRIEVE, do="send e.g. 3")
    answers = _bounded(
        (retriever.search(query, count) for query in _texts(body.get("queries"), "queries", RETRIEVE)),
        lambda hits: [hit.document for hit in hits],
        RETRIEVE,
    )
    if has_scores is True:
        return {"result": [[hit_to_json(hit) for hit in hits] for hits in answers]}
    return {"result": [[document_to_json(hit.document) for hit in hits] for hits in answers]}


def _documents(retriever: Retriever, body: JsonObject) -> JsonObject:
    documents = _bounded(
        (retriever.find(identity) for identity in _texts(body.get("ids"), "ids", DOCUMENTS)),
        lambda item: [] if item is None else [item],
        DOCUMENTS,
    )
    return {"documents": [None if item is None else document_to_json(item) for item in documents]}


def _bounded(answers: Iterable[T], documents_in: Callable[[T], Iterable[Document]], where: str) -> Sequence[T]:
    """Return all answers. Raises: InvalidInput: as soon as their documents are too much for one reply."""
    bounded, left = [], MAX_REPLY_CHARS
    for answer in answers:
        bounded.append(answer)
        left -= sum(len(item.id) + len(item.title) + len(item.text) for item in documents_in(answer))
        if left < 0:
            must, do = f"have at most {MAX_REPLY_CHARS} characters", "request fewer documents at once"
            raise InvalidInput.of("reply", must, "more", where=where, do=do)
    return bounded


def _texts(value: JsonValue, name: str, where: str) -> list[str]:
    """Return a list of texts. Raises: InvalidInput: it is none, or too long."""
    texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(texts) != len(value) or len(texts) > MAX_BATCH:
        raise InvalidInput.of(name, f"be a list of at most {MAX_BATCH} texts", value, where=where, do="correct it")
    return texts
