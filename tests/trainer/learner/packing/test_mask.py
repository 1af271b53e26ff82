"""Masks: ancestors and oneself, within the model's own mask over depths; the same for both kinds of kernels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from envgym.errors import InvalidInput
from envgym.trainer.batch.packs import build_pack, build_trie
from envgym.trainer.learner.packing.attention import BLOCK, TreeMask, Within, attend_squares, tree_attention
from tests.trainer.learner.packing.forest import CPU

HAND = [[1, 2, 3, 5], [1, 2, 3, 4], [8], [1, 2, 6, 7]]
"""In depth-first order 1 2 3 4 | 5 | 6 7 | 8, see test_pack."""


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key <= query


def window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (key <= query) & (key > query - 2)


def tree_mask(rows: list[list[int]], within: Within = causal) -> TreeMask:
    trie = build_trie(rows, range(len(rows)))
    pack = build_pack(rows, [[True] * len(row) for row in rows], trie, range(len(rows)), CPU)
    return TreeMask(pack.ends_N, pack.depths_N, within)


def dense(found: TreeMask) -> Tensor:
    places = torch.arange(len(found))
    return found.attends(places[:, None], places)


def test_a_token_attends_its_ancestors_and_itself() -> None:
    expected = [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 1, 0, 0, 0],  # 5 follows 1 2 3, not 4
        [1, 1, 0, 0, 0, 1, 0, 0],  # 6 follows 1 2
        [1, 1, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 1],  # another trie
    ]
    assert dense(tree_mask(HAND)).int().tolist() == expected


def test_a_window_counts_depth_not_places() -> None:
    # A window of 2 holds the token before and itself: 5 sees 3 (two places before it), 6 sees 2 (four places).
    attended = [row.nonzero().flatten().tolist() for row in dense(tree_mask(HAND, window))]
    assert attended == [[0], [0, 1], [1, 2], [2, 3], [2, 4], [1, 5], [5, 6], [7]]


def unfolded(found: TreeMask) -> Tensor:
    """Return the mask that the blocks say, and assert that they leave out nothing but unseen keys."""
    whole = torch.zeros(len(found), len(found), dtype=torch.bool)
    for block in found.blocks:
        seen = found.bias(block, torch.float32)[0, 0] == 0
        assert bool(seen.any(dim=0).all())
        whole[block.queries.start : block.queries.stop, block.keys] = seen
    return whole


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=90), min_size=1, max_size=6), st.booleans())
@settings(max_examples=10)
def test_blocks_and_squares_say_the_same_as_pairs(rows: list[list[int]], windowed: bool) -> None:
    found = tree_mask(rows, window if windowed else causal)
    assert torch.equal(unfolded(found), dense(found))
    squares = torch.zeros(-(-len(found) // BLOCK), -(-len(found) // BLOCK), dtype=torch.bool)
    for query, key in dense(found).nonzero().tolist():
        squares[query // BLOCK, key // BLOCK] = True
    assert torch.equal(found.block_mask.to_dense()[0, 0].bool(), squares)


def test_keys_of_finished_branches_are_not_gathered() -> None:
    trunk, rest = [1] * BLOCK, [2] * BLOCK
    found = tree_mask([[*trunk, *rest], [*trunk, 3, *rest], [4]])
    # The last block ends the second branch (trunk and 129 tokens) and holds the row of its own.
    assert [len(block.keys) for block in found.blocks] == [BLOCK, 2 * BLOCK, 2 * BLOCK, BLOCK + 129 + 1]


class StripShapes(TreeMask):
    """Notes how many queries and keys its strips have."""

    def __init__(self, mask: TreeMask) -> None:
        super().__init__(mask._ends_N, mask._depths_N, mask._within)
        self.shapes: list[tuple[int, ...]] = []

    def _strip(self, queries: slice, keys: Tensor) -> Tensor:
        strip_QK = super()._strip(queries, keys)
        self.shapes.append(tuple(strip_QK.shape))
        return strip_QK


def test_squares_without_a_pair_are_skipped() -> None:
    trunk, rest = [1] * BLOCK, [2] * BLOCK
    found = tree_mask([[*trunk, *rest], [*trunk, 3, *rest], [4]]).block_mask
    # Trunk, first branch, second branch, and its last token with the row of its own.
    assert found.to_dense()[0, 0].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    assert found.full_kv_num_blocks is not None
    # Every token of a branch sees the whole trunk, and none all of its own block; the row of its own sees no trunk.
    assert found.full_kv_num_blocks[0, 0].tolist() == [0, 1, 1, 0]
    assert found.kv_num_blocks[0, 0].tolist() == [1, 1, 1, 3]


def test_squares_are_found_strip_by_strip(monkeypatch: pytest.MonkeyPatch) -> None:
    # 300 keys and 84 places up to a whole block are 384: 98,304 entries hold 256 queries, 98,303 a block of 128.
    for most, heights in [(98_304, [256, 44]), (98_303, [128, 128, 44]), (1, [128, 128, 44])]:
        monkeypatch.setattr("envgym.trainer.learner.packing.attention.MAX_ENTRIES", most)
        found = StripShapes(tree_mask([[number % 7 for number in range(300)]]))
        assert found.block_mask.to_dense()[0, 0].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
        assert found.shapes == [(height, 300) for height in heights]


def test_what_is_not_kept_is_made_again() -> None:
    rows = [[number % 3 for number in range(300)], [1] * 40, [0, 1, 5]]
    kept = [tree_mask(rows).bias(block, torch.float64) for block in tree_mask(rows).blocks]
    found = tree_mask(rows)
    found.blocks[:] = [block._replace(strip_QK=None) for block in found.blocks]
    assert all(map(torch.equal, kept, [found.bias(block, torch.float64) for block in found.blocks]))


def test_strips_are_kept_until_so_many_entries_are(monkeypatch: pytest.MonkeyPatch) -> None:
    # One row of 300: blocks of 128, 128 and 44 queries see 128, 256 and 300 keys: 16,384, 32,768 and 13,200 entries.
    row = [[number % 7 for number in range(300)]]
    for most, kept in [(16_383, 0), (16_384, 1), (49_151, 1), (49_152, 2), (62_352, 3)]:
        monkeypatch.setattr("envgym.trainer.learner.packing.attention.MAX_ENTRIES", most)
        assert [block.strip_QK is not None for block in tree_mask(row).blocks] == [True] * kept + [False] * (3 - kept)


@pytest.mark.parametrize("scaling", [None, 0.5])
def test_attention_in_a_pack_is_that_of_its_mask(scaling: float | None) -> None:
    found = tree_mask([[number % 3 for number in range(140)], [0, 1, *[5] * 20], [9]])
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, len(found), 8, generator=generator).double() for _ in range(3))
    # Without a scale it is one over the root of the 8 dimensions.
    scores = query @ key.transpose(2, 3) * (8**-0.5 if scaling is None else scaling)
    expected = scores.masked_fill(~dense(found), -torch.inf).softmax(dim=-1) @ value
    attended, weights = tree_attention(torch.nn.Identity(), query, key, value, found, scaling=scaling)
    torch.testing.assert_close(attended, expected.transpose(1, 2))
    assert weights is None


def test_what_is_added_to_scores_is_refused() -> None:
    found, parts = tree_mask(HAND), torch.zeros(1, 1, 8, 4)
    with pytest.raises(InvalidInput, match="attention must be plain, got position_bias"):
        tree_attention(torch.nn.Identity(), parts, parts, parts, found, s_aux=None, position_bias=parts)


def test_a_strip_is_bounded_however_long_the_pack() -> None:
    found = tree_mask([[number % 7 for number in range(1000)], [1] * 700])
    entries = [block.strip_QK.numel() for block in found.blocks if block.strip_QK is not None]
    assert max(entries) <= BLOCK * (1000 + BLOCK)  # one block holds the end of a row and the start of another


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("num_key_heads", [4, 2, 1])
def test_flex_attention_reads_the_same_mask(num_key_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.trainer.learner.packing.attention._flex", [flex_attention])  # as it is, not compiled
    found = tree_mask([[number % 3 for number in range(200)], [0, 1, *[5] * 150], [9]])
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, len(found), 8, generator=generator)
    key, value = (torch.randn(1, num_key_heads, len(found), 8, generator=generator) for _ in range(2))
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=dense(found), scale=0.5, enable_gqa=True
    )
    torch.testing.assert_close(attend_squares(query, key, value, found, 0.5), expected)
