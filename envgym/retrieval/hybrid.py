"""Several retrievers as one, by reciprocal rank fusion: score(d) = sum over retrievers of 1 / (60 + rank of d there).

Source: Cormack, Clarke and Büttcher, SIGIR 2009, with their constant 60.
"""

from collections.abc import Sequence

from envgym.errors import InvalidInput, sentence
from envgym.retrieval.base import MAX_HITS, Document, Hit, Retriever, checked_query

RANK_OFFSET = 60
DEPTH = 50
"""Hits that each retriever is asked for at least."""


class Hybrid:
    """Fuses what its retrievers find; they search the same corpus."""

    def __init__(self, *retrievers: Retriever) -> None:
        """Take the retrievers. Raises: InvalidInput: fewer than two."""
        if len(retrievers) < 2:
            got, do = len(retrievers), "pass e.g. a Bm25 and a Dense"
            raise InvalidInput(sentence("retrievers", "be at least two", got, where="Hybrid", do=do))
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
