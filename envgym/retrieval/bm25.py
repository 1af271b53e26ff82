"""BM25 over a corpus, by `bm25s`: all scores are computed when the index is built, and read through a memory map.

score(q, d) = sum over words w of q: idf(w) tf / (tf + k1 (1 - b + b |d| / mean |d|)), Lucene's idf.
Source: 2407.03618 (BM25S).
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envgym.errors import InvalidInput
from envgym.retrieval.base import Document, Hit, checked_query
from envgym.retrieval.corpus import Corpus
from envgym.runtime.cache import build_once

STOP_WORDS = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "been", "by", "did", "do", "does", "for", "from", "had", "has", "have"}
    | {"how", "in", "is", "it", "its", "of", "on", "or", "that", "the", "their", "there", "these", "this", "to", "was"}
    | {"were", "what", "when", "where", "which", "who", "whose", "will", "with"}
)
_WORD = re.compile(r"[^\W_]+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")


def words_of(text: str) -> list[str]:
    """Return the words in order: lower case, without accents, plural s and stop words; 1,234.5 is one word."""
    text = _THOUSANDS.sub("", text)
    plain = (text if text.isascii() else unicodedata.normalize("NFKD", text)).casefold()
    letters = plain if plain.isascii() else "".join(mark for mark in plain if not unicodedata.combining(mark))
    return [_singular(word) for word in _WORD.findall(letters) if word not in STOP_WORDS]


def _singular(word: str) -> str:
    """Strip a plural s: countries -> country, airports -> airport; not from us, gas, census, basis or glass."""
    if len(word) < 4 or not word.endswith("s") or word[-2] in "sui":
        return word
    return f"{word[:-3]}y" if word.endswith("ies") and len(word) > 4 else word[:-1]


K1, B = 0.9, 0.4
"""What passage retrieval commonly takes."""
_TITLE = "title:"
"""Stands before a word of the title, which counts once more there, by its rarity in titles."""
_FORMAT = 2


class Bm25:
    """Finds documents by their words; the index lies beside its corpus and is built once."""

    blocking = False

    def __init__(self, corpus: Corpus) -> None:
        """Open the index of `corpus`; the first time it is built. Raises: InvalidInput: bm25s is not installed."""
        try:
            import bm25s
        except ImportError as error:
            do = "pip install 'envgym[search]'"
            raise InvalidInput.of("BM25", "find its package", "no bm25s", where="retrieval", do=do) from error
        self.corpus = corpus
        folder = build_once(corpus.folder / f"bm25-{_FORMAT}", lambda work: _build(corpus, work))
        self._index = bm25s.BM25.load(folder, mmap=True, show_progress=False)

    def __reduce__(self) -> tuple[type["Bm25"], tuple[Corpus]]:
        return Bm25, (self.corpus,)

    def search(self, query: str, count: int) -> Sequence[Hit]:
        """Return the best documents that share a word with the query. Raises: BadQuery: as `checked_query`."""
        words = words_of(checked_query(query, count))
        token_ids = self._index.get_tokens_ids([*words, *_title_terms(words)])
        if not token_ids:
            return ()
        scores: NDArray[np.float32] = self._index.get_scores_from_ids(token_ids)
        return [Hit(document=self.corpus[row], score=float(scores[row])) for row in best_rows(scores, count)]

    def find(self, document_id: str) -> Document | None:
        return self.corpus.find(document_id)


def best_rows(scores: NDArray[np.float32], count: int) -> list[int]:
    """Return the rows of the `count` highest positive scores, best first, equal ones by row."""
    count = min(count, len(scores))
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    rows = np.flatnonzero((scores >= least) & (scores > 0))
    order = np.argsort(-scores[rows], kind="stable")[:count]
    return [int(row) for row in rows[order]]


def _build(corpus: Iterable[Document], folder: Path) -> None:
    import bm25s

    numbers: dict[str, int] = {}
    rows = []
    for item in corpus:
        title = words_of(item.title)
        words = [*title, *words_of(item.text), *_title_terms(title)]
        rows.append([numbers.setdefault(word, len(numbers)) for word in words])
    InvalidInput.unless(numbers, "corpus", "hold words", "none", where="BM25", do="check the source")
    index = bm25s.BM25(k1=K1, b=B, method="lucene")
    index.index((rows, numbers), show_progress=False)
    index.save(folder, show_progress=False)


def _title_terms(words: Iterable[str]) -> list[str]:
    return [_TITLE + word for word in words]
