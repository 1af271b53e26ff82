"""What is searched, what a search gives, which queries are answered; answers from memory, and of several retrievers."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from envgym.errors import InvalidInput
from envgym.runtime.cache import cached_within

MAX_QUERY_CHARS = 1_000
MAX_HITS = 100


class BadQuery(InvalidInput):
    """A query that no retriever answers; its sentence may be shown to whoever asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One page or passage."""

    id: str
    """Unique in its corpus."""
    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A document that was found."""

    document: Document
    score: float
    """Higher is better; comparable within one query only."""


class Retriever(Protocol):
    """Finds documents; safe to be used by several threads at once, and picklable."""

    blocking: bool
    """Whether a search may wait for the network."""

    def search(self, query: str, count: int) -> Sequence[Hit]:
        """Return up to `count` hits, best first; equal scores in the order of the corpus.

        Raises: BadQuery: nothing to look for, or too long. InfrastructureError: the service behind it broke.
        """
        ...

    def find(self, document_id: str) -> Document | None:
        """Return a document by its id, or None. Raises: InfrastructureError: the service behind it broke."""
        ...


def checked_query(query: str, count: int = 1) -> str:
    """Return the query, stripped. Raises: BadQuery: it is empty or too long, or `count` is out of range."""
    stripped = query.strip()
    if not any(character.isalnum() for character in stripped):
        raise BadQuery.of("query", "hold a word", repr(stripped), where="search", do="name what you look for")
    if len(stripped) > MAX_QUERY_CHARS:
        got, do = f"{len(stripped)} characters", "look for a few words"
        raise BadQuery.of("query", f"have at most {MAX_QUERY_CHARS} characters", got, where="search", do=do)
    if not 1 <= count <= MAX_HITS:
        raise BadQuery.of("number of hits", f"be 1 to {MAX_HITS}", count, where="search", do="pass e.g. 5")
    return stripped


CACHED_BYTES = 64 << 20


class Cached:
    """Answers an identical query from memory; a failure is not remembered."""

    def __init__(self, retriever: Retriever, max_bytes: int = CACHED_BYTES) -> None:
        """Wrap `retriever` and keep the answers used last, with their queries at most `max_bytes` of memory."""
        self.retriever, self.max_bytes = retriever, max_bytes
        self.blocking = retriever.blocking
        self.num_asked = 0
        """Queries that the retriever itself has answered."""
        self._search, self._lock = cached_within(max_bytes)(self._ask), Lock()

    def __reduce__(self) -> tuple[type["Cached"], tuple[Retriever, int]]:
        return Cached, (self.retriever, self.max_bytes)

    def search(self, query: str, count: int) -> Sequence[Hit]:
        """The hits of the retriever; earlier ones come from memory. Raises: as the retriever."""
        return self._search(query, count)

    def _ask(self, query: str, count: int) -> Sequence[Hit]:
        hits = tuple(self.retriever.search(query, count))
        with self._lock:
            self.num_asked += 1
        return hits

    def find(self, document_id: str) -> Document | None:
        """Return a document by its id, or None. Raises: what the retriever raises."""
        return self.retriever.find(document_id)


RANK_OFFSET = 60
DEPTH = 50
"""Hits that each retriever is asked for at least."""


class Hybrid:
    """Fuses what its retrievers find, by reciprocal rank fusion; they search the same corpus.

    score(d) = sum over retrievers of 1 / (60 + rank of d there).
    Source: Cormack, Clarke and Büttcher, SIGIR 2009, with their constant 60.
    """

    def __init__(self, *retrievers: Retriever) -> None:
        """Take the retrievers. Raises: InvalidInput: fewer than two."""
        got, do = len(retrievers), "pass e.g. a Bm25 and a Dense"
        InvalidInput.unless(len(retrievers) >= 2, "retrievers", "be at least two", got, where="Hybrid", do=do)
        self.retrievers = retrievers
        self.blocking = any(item.blocking for item in retrievers)

    def search(self, query: str, count: int) -> Sequence[Hit]:
        """Return the hits of highest score; of equal ones, those of the first retriever first.

        Raises: BadQuery: as `checked_query`. What a retriever raises.
        """
        checked_query(query, count)
        scores: dict[str, float] = {}
        documents: dict[str, Document] = {}
        for retriever in self.retrievers:
            for rank, hit in enumerate(retriever.search(query, min(MAX_HITS, max(count, DEPTH))), start=1):
                documents.setdefault(hit.document.id, hit.document)
                scores[hit.document.id] = scores.get(hit.document.id, 0.0) + 1.0 / (RANK_OFFSET + rank)
        best = sorted(scores, key=lambda name: -scores[name])[:count]
        return [Hit(document=documents[name], score=scores[name]) for name in best]

    def find(self, document_id: str) -> Document | None:
        """Return a document by its id, or None. Raises: what a retriever raises."""
        return self.retrievers[0].find(document_id)
