"""Fusion by rank, as the formula says."""

from collections.abc import Sequence

import pytest

from envgym.errors import InvalidInput
from envgym.retrieval.base import BadQuery, Document, Hit, Hybrid


class Fixed:
    def __init__(self, *ids: str, blocking: bool = False) -> None:
        self.blocking = blocking
        self.hits = [Hit(document=Document(id=name, title=name, text=""), score=1.0) for name in ids]

    def search(self, query: str, count: int) -> Sequence[Hit]:
        return self.hits[:count]

    def find(self, document_id: str) -> Document | None:
        return next((hit.document for hit in self.hits if hit.document.id == document_id), None)


def test_score_is_the_sum_of_reciprocal_ranks_and_equal_scores_keep_the_first_retrievers_order() -> None:
    # a: 1/61; b: 1/62 + 1/61; c: 1/63; d: 1/62. Best first: b, a (1/61), d (1/62), c (1/63).
    fused = Hybrid(Fixed("a", "b", "c"), Fixed("b", "d"))
    hits = fused.search("lake", 10)
    assert [hit.document.id for hit in hits] == ["b", "a", "d", "c"]
    assert [hit.score for hit in hits] == pytest.approx([1 / 61 + 1 / 62, 1 / 61, 1 / 62, 1 / 63])
    assert [hit.document.id for hit in Hybrid(Fixed("a", "b"), Fixed("c", "d")).search("lake", 3)] == ["a", "c", "b"]


def test_of_a_retriever_and_itself_the_order_is_its_own() -> None:
    one = Fixed(*"fedcba")
    assert [hit.document.id for hit in Hybrid(one, one).search("lake", 4)] == list("fedc")


def test_it_waits_where_one_waits_and_refuses_what_all_refuse() -> None:
    assert (Hybrid(Fixed(), Fixed()).blocking, Hybrid(Fixed(), Fixed(blocking=True)).blocking) == (False, True)
    found = Hybrid(Fixed("a"), Fixed("b")).find("a")
    assert found is not None
    assert found.id == "a"
    with pytest.raises(BadQuery):
        Hybrid(Fixed("a"), Fixed("b")).search("", 1)
    with pytest.raises(InvalidInput, match="at least two, got 1"):
        Hybrid(Fixed())
