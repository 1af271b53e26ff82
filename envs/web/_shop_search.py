"""BM25 over a few thousand short texts, exact and without dependencies.

A store must run with the core alone, so it does not use the retrieval layer of the search environments.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

K1, B = 1.2, 0.75
"""Saturation of a word's count and the weight of a text's length: the usual values."""
SCALE = 1_000_000
"""Scores are whole millionths, so sums and ties are the same on every machine."""
MAX_WORDS = 32
"""Different words of a query that count."""
MAX_FOUND = 50
"""Texts that a search names."""
_CACHED = 4096
_WORD = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case; `9.5`, `usb-c` and `t-shirt` are one word."""
    return tuple(_WORD.findall(text.lower().replace("'", "")))


class SearchHits(NamedTuple):
    ids: tuple[str, ...]
    """The best ones, best first."""
    total: int
    """All texts that hold a word of the query."""


class SearchIndex:
    """Ranks texts by the words of a query.

    score(d, q) = sum over w in q of idf(w) f (k1 + 1) / (f + k1 (1 - b + b |d| / mean |d|)), where f counts w in d and
    idf(w) = ln(1 + (N - n + 0.5) / (n + 0.5)) with w in n of N texts.
    Source: Robertson and Zaragoza, The Probabilistic Relevance Framework (10.1561/1500000019); idf kept positive.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Weigh every word of every text; equal scores keep the order of `texts`."""
        self._ids = tuple(texts)
        counts = [Counter(_stem(word) for word in words_of(text)) for text in texts.values()]
        lengths = np.array([sum(count.values()) for count in counts], dtype=np.float64)
        norms = K1 * (1 - B + B * lengths / max(lengths.mean(), 1.0))
        vocabulary = sorted(set().union(*counts))
        self._rows = {word: row for row, word in enumerate(vocabulary)}
        self._weights = np.zeros((len(vocabulary), len(counts)), dtype=np.int32)
        frequencies = Counter(word for count in counts for word in count)
        for column, count in enumerate(counts):
            for word, times in count.items():
                idf = math.log(1 + (len(counts) - frequencies[word] + 0.5) / (frequencies[word] + 0.5))
                weight = idf * times * (K1 + 1) / (times + norms[column])
                self._weights[self._rows[word], column] = round(weight * SCALE)
        self.search: Callable[[str], SearchHits] = lru_cache(maxsize=_CACHED)(self._search)
        """Find the texts that hold a word of the query."""

    def _search(self, query: str) -> SearchHits:
        stems = dict.fromkeys(_stem(word) for word in words_of(query))
        rows = [self._rows[word] for word in stems if word in self._rows][:MAX_WORDS]
        scores = self._weights[rows].sum(axis=0, dtype=np.int64)
        total = int(np.count_nonzero(scores))
        order = np.argsort(-scores, kind="stable")[: min(total, MAX_FOUND)]
        return SearchHits(tuple(self._ids[place] for place in order.tolist()), total)


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
