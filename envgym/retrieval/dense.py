"""Dense retrieval: passages and queries as vectors of a sentence-transformers model, searched exactly by `faiss`.

score(q, d) = cosine of their vectors. The model runs on torch, so an environment asks a server that runs this
(`envgym serve-retriever --index dense`) and stays free of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from envgym.errors import InvalidInput
from envgym.retrieval.base import Document, Hit, checked_query
from envgym.retrieval.corpus import Corpus
from envgym.runtime.cache import build_once, source_key

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

BATCH = 64
_FORMAT = 1
_INDEX = "flat.faiss"


class Dense:
    """Finds documents by meaning; the vectors lie beside the corpus, one set for each model, and are made once."""

    blocking = True

    def __init__(self, corpus: Corpus, model: str | Path, *, device: str | None = None) -> None:
        """Load a model and open the vectors; the first time they are computed.

        Args:
            corpus: what is searched.
            model: a sentence-transformers directory, or a hub name.
            device: as torch names it; None: the best there is.

        Raises: InvalidInput: a package is not installed, or the model cannot be loaded.
        """
        self.corpus, self.model, self.device = corpus, str(model), device
        self._encoder = _load(self.model, device)
        self._lock = Lock()
        folder = build_once(corpus.folder / f"dense-{source_key(self.model)}-{_FORMAT}", self._build)
        import faiss

        self._index = faiss.read_index(str(folder / _INDEX), faiss.IO_FLAG_MMAP)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Dense, device=self.device), (self.corpus, self.model)

    def search(self, query: str, count: int) -> Sequence[Hit]:
        """Return the documents nearest to the query. Raises: BadQuery: as `checked_query`."""
        text = checked_query(query, count)
        with self._lock:
            vector = _normalize(self._encoder.encode_query([text], show_progress_bar=False))
        scores, rows = self._index.search(vector, min(count, len(self.corpus)))
        order = sorted(zip(scores[0].tolist(), rows[0].tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))
        return [Hit(document=self.corpus[row], score=score) for score, row in order if row >= 0]

    def find(self, document_id: str) -> Document | None:
        return self.corpus.find(document_id)

    def _build(self, folder: Path) -> None:
        import faiss

        index = None
        for texts in _batches(f"{item.title}\n{item.text}" for item in self.corpus):
            vectors = _normalize(self._encoder.encode_document(texts, batch_size=BATCH, show_progress_bar=False))
            index = index or faiss.IndexFlatIP(vectors.shape[1])
            index.add(vectors)
        assert index is not None, "a corpus holds documents"
        faiss.write_index(index, str(folder / _INDEX))


def _load(model: str, device: str | None) -> "SentenceTransformer":
    try:
        import faiss  # noqa: F401  # asked for early, before vectors are computed
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        got, do = f"no {error.name}", "pip install 'envgym[dense]'"
        raise InvalidInput.of("dense retrieval", "find its packages", got, where="retrieval", do=do) from error
    try:
        return SentenceTransformer(model, device=device)
    except (OSError, ValueError, KeyError) as error:
        do = "pass a sentence-transformers directory or a hub name"
        raise InvalidInput.of("model", "be loadable", model, where=type(error).__name__, do=do) from error


def _normalize(vectors: object) -> NDArray[np.float32]:
    """Return rows of length 1; a row of zeros stays one."""
    rows: NDArray[np.float32] = np.array(vectors, dtype=np.float32, order="C")
    lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    rows /= np.where(lengths > 0, lengths, 1.0)
    return rows


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    source = iter(texts)
    while batch := list(islice(source, 16 * BATCH)):
        yield batch
