"""A memory of the last queries."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from envgym.retrieval.base import Document, Hit, Retriever

CACHED_QUERIES = 4_096


class Cached:
    """Answers an identical query from memory; a failure is not remembered."""

    def __init__(self, retriever: Retriever, size: int = CACHED_QUERIES) -> None:
        """Wrap `retriever` and keep its last `size` answers."""
        self.retriever, self.size = retriever, size
        self.blocking = retriever.blocking
        self.num_asked = 0
        """Queries that the retriever itself was asked."""
        self._answers: OrderedDict[tuple[str, int], Sequence[Hit]] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type["Cached"], tuple[Retriever, int]]:
        """Travel without the memory."""
        return Cached, (self.retriever, self.size)

    def search(self, query: str, count: int) -> Sequence[Hit]:
        """Return what the retriever finds, or found before. Raises: what the retriever raises."""
        key = (query, count)
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        hits = tuple(self.retriever.search(query, count))
        with self._lock:
            self.num_asked += 1
            self._answers[key] = hits
            if len(self._answers) > self.size:
                self._answers.popitem(last=False)
        return hits

    def find(self, document_id: str) -> Document | None:
        """Return a document by its id, or None. Raises: what the retriever raises."""
        return self.retriever.find(document_id)
