"""Tries: sorting rows merges every shared prefix, and cuts repeat as little as they can."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.batch.packs import Trie, build_trie, cut

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=12)


def prefixes(rows: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}


def test_a_tree_of_two_levels_by_hand() -> None:
    #        1 - 2 - 3 - 4      row 1
    #             \   \ 5       row 0
    #              6 - 7        row 3
    #        8                  row 2
    rows = [[1, 2, 3, 5], [1, 2, 3, 4], [8], [1, 2, 6, 7]]
    trie = build_trie(rows, range(4))
    assert trie == Trie(rows=(1, 0, 3, 2), lengths=(4, 4, 4, 1), shared=(0, 3, 2, 0))
    assert trie.num_tokens == 8


def test_a_row_that_another_continues_adds_no_token() -> None:
    assert build_trie([[1, 2, 3], [1, 2], [1, 2, 3]], range(3)).shared == (0, 2, 3)


def test_tokens_sort_as_numbers_of_any_size() -> None:
    assert build_trie([[256], [255], [70_000]], range(3)).rows == (1, 0, 2)


@given(ROWS)
@settings(max_examples=50)
def test_every_prefix_stands_once(rows: list[list[int]]) -> None:
    assert build_trie(rows, range(len(rows))).num_tokens == len(prefixes(rows))


@given(ROWS, st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_the_order_of_the_rows_does_not_matter(rows: list[list[int]], rng: random.Random) -> None:
    chosen = list(range(len(rows)))
    rng.shuffle(chosen)
    assert build_trie(rows, chosen) == build_trie(rows, range(len(rows)))


def test_nothing_makes_an_empty_trie() -> None:
    assert build_trie([], []) == Trie(rows=(), lengths=(), shared=())
    assert cut(build_trie([], []), 8) == []


def test_a_full_run_ends_where_the_fewest_tokens_are_repeated() -> None:
    # The rows add 5, 1, 1, 3 and 1 tokens. Of 10 tokens the fifth row is one too many: a cut before it would repeat
    # the 4 tokens that it shares, one before the fourth row repeats 2.
    trie = Trie(rows=(0, 1, 2, 3, 4), lengths=(5, 5, 5, 5, 5), shared=(0, 4, 4, 2, 4))
    assert cut(trie, 10) == [range(3), range(3, 5)]
    assert cut(trie, 11) == [range(5)]


def test_a_full_run_keeps_its_first_half_and_ends_late_where_cuts_cost_the_same() -> None:
    # The rows add 10, 1, 1, 10, 1, 2 and 1 tokens; the seventh would be the 26th. The second half of the six begins at
    # place 4, so the cheap cut at place 3 is out; of places 4, 5 and 6, place 5 repeats 8 tokens, the others 9.
    trie = Trie(rows=tuple(range(7)), lengths=(10,) * 7, shared=(0, 9, 9, 0, 9, 8, 9))
    assert cut(trie, 25) == [range(5), range(5, 7)]
    equal = Trie(rows=tuple(range(7)), lengths=(10,) * 7, shared=(0, 9, 9, 9, 9, 9, 9))
    assert cut(equal, 15) == [range(6), range(6, 7)]
    # The second run holds places 2 to 7 (10 + 5 + 1 + 2 + 1 + 1 tokens): its second half is that of its own six.
    two = Trie(rows=tuple(range(9)), lengths=(10,) * 9, shared=(0, 0, 0, 5, 9, 8, 9, 9, 9))
    assert cut(two, 20) == [range(2), range(2, 8), range(8, 9)]


def test_a_row_longer_than_the_limit_stands_alone() -> None:
    trie = build_trie([[1, 2, 3, 4, 5], [1, 9], [7]], range(3))
    assert cut(trie, 3) == [range(1), range(1, 3)]


@given(ROWS, st.integers(1, 20))
@settings(max_examples=50)
def test_runs_hold_every_row_once_and_respect_the_limit(rows: list[list[int]], limit: int) -> None:
    trie = build_trie(rows, range(len(rows)))
    runs = cut(trie, limit)
    assert [place for run in runs for place in run] == list(range(len(rows)))
    for run in runs:
        held = [rows[trie.rows[place]] for place in run]
        assert len(held) == 1 or len(prefixes(held)) <= limit
