"""The HTTP protocol of retrieval servers: that of Search-R1, and one request more to open a document by its id.

    POST /retrieve   {"queries": [text], "topk": k, "return_scores": true}
                     -> {"result": [[{"document": {"id", "contents"}, "score"}]]}, one list per query, best first
    POST /documents  {"ids": [id]} -> {"documents": [{"id", "contents"} or null]}
    GET  /health     -> {"status": "ok", "retriever": name}

`contents` is the title in quotes, a line break, and the text. Source: 2503.09516 (Search-R1).
"""

from collections.abc import Sequence

from envgym.core.json_types import JsonObject, JsonValue
from envgym.errors import InvalidInput, sentence
from envgym.retrieval.base import Document, Hit
from envgym.retrieval.corpus import document_of

RETRIEVE, DOCUMENTS, HEALTH = "/retrieve", "/documents", "/health"


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
        raise InvalidInput(sentence("reply", "hold one list of results", reply, where=where, do=do))
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
