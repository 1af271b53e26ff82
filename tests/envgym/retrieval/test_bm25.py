"""BM25 scores as the formula says, in an order that does not change."""

import math
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.retrieval import MAX_QUERY_CHARS, BadQuery, Corpus
from envgym.retrieval.bm25 import words_of

pytest.importorskip("bm25s")

from envgym.retrieval.bm25 import K1, B, Bm25, best_rows


def test_score_is_the_formula(lakes: Corpus) -> None:
    # Words, those of the title once more for being in it: baikal 2 + 5 + 2 = 9 (deepest lake world 1642 m),
    # chad 2 + 3 + 2 = 7, geneva 2 + 5 + 2 = 9 (deep lake alp north evian), nile 1 + 2 + 1 = 4; mean 29 / 4 = 7.25.
    # "river" is once in nile alone: idf = ln(1 + (4 - 1 + 0.5) / (1 + 0.5)).
    (hit,) = Bm25(lakes).search("rivers", 3)
    idf = math.log(1 + 3.5 / 1.5)
    assert hit.document.id == "nile"
    assert hit.score == pytest.approx(idf * 1 / (1 + K1 * (1 - B + B * 4 / 7.25)), rel=1e-5)


def test_hits_come_best_first_and_equal_ones_in_the_order_of_the_corpus(lakes: Corpus) -> None:
    index = Bm25(lakes)
    assert [hit.document.id for hit in index.search("deepest lake", 2)] == ["baikal", "chad"]
    assert [hit.document.id for hit in index.search("africa", 10)] == ["nile", "chad"]  # the shorter page first
    assert [hit.document.id for hit in index.search("lake of Chad", 2)] == ["chad", "baikal"]
    assert [hit.document.id for hit in index.search("Evian", 5)] == ["geneva"]
    assert index.search("what is the", 5) == index.search("zebra", 5) == ()


def test_index_is_built_once_and_travels_as_a_path(lakes: Corpus) -> None:
    index = Bm25(lakes)
    (folder,) = lakes.folder.glob("bm25-*")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    twin = pickle.loads(pickle.dumps(Bm25(lakes)))
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert twin.search("deep lake", 4) == index.search("deep lake", 4)
    assert len(pickle.dumps(index)) < 500
    assert index.find("chad") == lakes[1]


@pytest.mark.parametrize(
    "query, count, said",
    [
        ("", 5, "query must hold a word, got '' (search); name what you look for."),
        (" ?! ", 5, "query must hold a word, got '?!'"),
        ("a" * 100_000, 5, f"query must have at most {MAX_QUERY_CHARS} characters, got 100000 characters"),
        ("lake", 0, "number of hits must be 1 to 100, got 0"),
        ("lake", 101, "number of hits must be 1 to 100, got 101"),
    ],
)
def test_a_bad_query_is_refused_in_one_sentence(lakes: Corpus, query: str, count: int, said: str) -> None:
    with pytest.raises(BadQuery, match=f"^{re.escape(said)}"):
        Bm25(lakes).search(query, count)


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 2.5]), min_size=1, max_size=12), st.integers(1, 12))
def test_best_rows_are_a_stable_sort_without_zeros(scores: list[float], count: int) -> None:
    expected = [row for row in sorted(range(len(scores)), key=lambda row: (-scores[row], row)) if scores[row] > 0]
    assert best_rows(np.array(scores, dtype=np.float32), count) == expected[:count]


@pytest.mark.parametrize(
    "text, words",
    [
        ("The coastlines of Kenya", ["coastline", "kenya"]),
        ("Countries, country; CITIES", ["country", "country", "city"]),
        ("1,642 m and 1642.5", ["1642", "m", "1642.5"]),
        ("Côte d'Ivoire", ["cote", "d", "ivoire"]),
        ("US gas census basis glass", ["us", "gas", "census", "basis", "glass"]),
        ("what is the", []),
        ("\u200b_ --", []),
    ],
)
def test_words_are_plain_and_singular(text: str, words: list[str]) -> None:
    assert words_of(text) == words
