"""Packs: one sequence for many rows, with the way back."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.batch.packs import Pack, build_pack, build_trie

CPU = torch.device("cpu")
ROWS = [[1, 2, 3, 5], [1, 2, 3, 4], [8], [1, 2, 6, 7]]


def pack_of(rows: list[list[int]], masks: list[list[bool]] | None = None) -> tuple[Pack, tuple[int, ...]]:
    trie = build_trie(rows, range(len(rows)))
    masks = masks or [[True] * len(row) for row in rows]
    return build_pack(rows, masks, trie, range(len(rows)), CPU), trie.rows


def test_a_tree_of_two_levels_by_hand() -> None:
    pack, order = pack_of(ROWS)
    assert order == (1, 0, 3, 2)
    # place:                          0  1  2  3  4  5  6  7
    assert pack.input_ids_N.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert pack.depths_N.tolist() == [0, 1, 2, 3, 3, 2, 3, 0]
    # 1 and 2 are followed by all of places 1 to 6, 3 by places 3 and 4, 6 by place 6.
    assert pack.ends_N.tolist() == [7, 7, 5, 4, 5, 7, 7, 8]
    # Token 5 (place 4) follows 3 (place 2), and token 6 (place 5) follows 2 (place 1): not the tokens beside them.
    assert pack.trained_S.tolist() == [1, 2, 3, 4, 5, 6]
    assert pack.parents_S.tolist() == [0, 1, 2, 2, 1, 5]
    assert pack.places_BT.tolist() == [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 5, 6], [7, 0, 0, 0]]


def test_a_token_is_scored_where_one_of_its_rows_trains_it() -> None:
    masks = [[False, False, True, True], [False, False, False, True], [True], [False, False, False, False]]
    pack, _ = pack_of(ROWS, masks)
    assert pack.trained_S.tolist() == [2, 3, 4]  # a row's first token follows nothing


def test_a_run_repeats_the_prefix_that_an_earlier_run_holds() -> None:
    trie = build_trie(ROWS, range(4))
    pack = build_pack(ROWS, [[True] * len(row) for row in ROWS], trie, range(2, 4), CPU)
    assert pack.input_ids_N.tolist() == [1, 2, 6, 7, 8]


def test_padding_follows_nothing_and_is_of_no_row() -> None:
    trie, masks = build_trie(ROWS, range(4)), [[True] * len(row) for row in ROWS]
    plain, padded = (build_pack(ROWS, masks, trie, range(4), CPU, multiple=multiple) for multiple in (8, 5))
    assert (len(plain), len(padded)) == (8, 10)
    assert padded.input_ids_N[:8].equal(plain.input_ids_N)
    assert padded.depths_N.tolist() == [*plain.depths_N.tolist(), 0, 0]
    assert padded.ends_N.tolist() == [*plain.ends_N.tolist(), 9, 10]  # places 8 and 9 are seen by themselves alone
    for name in ("trained_S", "parents_S", "places_BT"):
        assert getattr(padded, name).equal(getattr(plain, name))


def test_values_reach_every_row_and_gradients_come_back_as_sums() -> None:
    pack, _ = pack_of(ROWS)
    values = torch.arange(8.0, requires_grad=True)
    mask = torch.tensor([[True] * 4, [True] * 4, [False, True, True, True], [True, False, False, False]])
    rows = pack.to_rows(values, mask)
    assert rows.tolist() == [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 5, 6], [7, 0, 0, 0]]
    rows.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [2, 3, 2, 1, 1, 1, 1, 1]  # place 0 is masked in one of its three rows


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=8))
@settings(max_examples=50)
def test_the_pack_says_who_follows_whom(rows: list[list[int]]) -> None:
    pack, order = pack_of(rows)
    follows = {(k, q) for path in _paths(pack, rows, order) for at, q in enumerate(path) for k in path[: at + 1]}
    ends = pack.ends_N.tolist()
    assert follows == {(k, q) for k in range(len(pack)) for q in range(k, ends[k])}
    for path, row in zip(_paths(pack, rows, order), order, strict=True):
        assert pack.input_ids_N[path].tolist() == rows[row]
        assert pack.depths_N[path].tolist() == list(range(len(path)))


def _paths(pack: Pack, rows: list[list[int]], order: tuple[int, ...]) -> list[list[int]]:
    return [pack.places_BT[number, : len(rows[row])].tolist() for number, row in enumerate(order)]
