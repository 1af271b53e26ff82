"""Masks: ancestors and oneself, within the model's own mask over depths; the same for both kinds of kernels."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import flex_attention

from envgym.errors import InvalidInput
from envgym.trainer.batch.packs import build_pack, build_trie
from envgym.trainer.batch.rows import pack_multiple
from envgym.trainer.learner.packing.attention import BLOCK, TILE, TreeMask, Within, attend_squares, tree_attention
from tests.trainer.learner.packing.forest import CPU

HAND = [[1, 2, 3, 5], [1, 2, 3, 4], [8], [1, 2, 6, 7]]
"""In depth-first order 1 2 3 4 | 5 | 6 7 | 8, see test_pack."""


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key <= query


def window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (key <= query) & (key > query - 2)


def wide(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (key <= query) & (key > query - 100)


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
    """Return the mask that the parts say, and assert that they say each pair once and no more than they must."""
    times = torch.zeros(len(found), len(found), dtype=torch.int64)
    own = torch.zeros(len(found), dtype=torch.int64)
    for part in found.parts:
        strip = found.strip(part)
        if strip is None:
            sides = (part.queries.stop - part.queries.start, part.keys.stop - part.keys.start)
            strip = (
                torch.ones(sides, dtype=torch.bool).tril() if part.is_causal else torch.ones(sides, dtype=torch.bool)
            )
        assert all(strip.any(dim=side)[end] for side in (0, 1) for end in (0, -1)), "trimmed at its sides"
        times[part.queries, part.keys] += strip
        own[part.queries] += part.is_own
    assert own.tolist() == [1] * len(found)
    assert int(times.max()) == 1
    return times.bool()


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=90), min_size=1, max_size=6), st.booleans())
@settings(max_examples=10)
def test_parts_and_squares_say_the_same_as_pairs(rows: list[list[int]], windowed: bool) -> None:
    found = tree_mask(rows, window if windowed else causal)
    assert torch.equal(unfolded(found), dense(found))
    squares = torch.zeros(-(-len(found) // BLOCK), -(-len(found) // BLOCK), dtype=torch.bool)
    for query, key in dense(found).nonzero().tolist():
        squares[query // BLOCK, key // BLOCK] = True
    assert torch.equal(found.block_mask.to_dense()[0, 0].bool(), squares)


def test_parts_of_long_branches_are_causal_or_whole() -> None:
    trunk, rest = [1] * BLOCK, [2] * (BLOCK + 1)
    parts = tree_mask([[*trunk, *rest], [*trunk, 3, *rest], [4]]).parts
    # Each run with itself, the short row of its own alone, and both branches with the trunk at once.
    assert [(part.queries, part.keys, part.is_causal, part.is_masked) for part in parts] == [
        *[(run, run, True, False) for run in (slice(0, 128), slice(128, 257), slice(257, 387), slice(387, 388))],
        (slice(128, 387), slice(0, 128), False, False),
    ]


def test_small_branches_go_together() -> None:
    trunk = [1] * 200
    rows = [[*trunk, branch, *[9] * 39] for branch in range(2, 6)]  # 4 of 40: three fit 128 tokens
    parts = tree_mask(rows).parts
    assert [(part.queries, part.is_masked) for part in parts if part.is_own] == [
        (slice(0, 200), False),
        (slice(200, 320), True),
        (slice(320, 360), False),
    ]
    assert [(part.queries, part.keys) for part in parts if not part.is_own] == [(slice(200, 360), slice(0, 200))]


def test_a_window_leaves_out_what_no_token_of_a_tile_sees() -> None:
    parts = tree_mask([[number % 7 for number in range(2 * TILE)]], window).parts
    first, second = slice(0, TILE), slice(TILE, 2 * TILE)
    # A window of 2: of the first tile, only its last token is seen by the second, and only by the first one there.
    assert [(part.queries, part.keys, part.is_masked) for part in parts] == [
        (first, first, True),
        (second, second, True),
        (slice(TILE, TILE + 1), slice(TILE - 1, TILE), False),
    ]


class StripShapes(TreeMask):
    """Notes how many queries and keys its strips have."""

    def __init__(self, mask: TreeMask) -> None:
        super().__init__(mask._ends_N, mask._depths_N, mask._within)
        self.shapes: list[tuple[int, ...]] = []

    def _strip(self, queries: slice, keys: slice) -> Tensor:
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
    found = tree_mask(rows, window)
    kept = [found.strip(part) for part in found.parts]
    found.parts[:] = [part._replace(strip_QK=None) for part in found.parts]
    for before, part in zip(kept, found.parts, strict=True):
        after = found.strip(part)
        assert after is before is None or (before is not None and after is not None and torch.equal(after, before))


def test_strips_are_kept_until_so_many_entries_are(monkeypatch: pytest.MonkeyPatch) -> None:
    # A row of 2,000 under a window has tiles of 512, 512, 512 and 464, and what the next sees of each is one pair.
    row = [[number % 7 for number in range(2000)]]
    for most, kept in [(262_143, 0), (262_144, 1), (786_431, 2), (786_432, 3), (1_001_728, 4)]:
        monkeypatch.setattr("envgym.trainer.learner.packing.attention.MAX_ENTRIES", most)
        masked = [part for part in tree_mask(row, window).parts if part.is_masked]
        assert [part.strip_QK is not None for part in masked] == [True] * kept + [False] * (4 - kept)


@pytest.mark.parametrize("within", [causal, window, wide])
@pytest.mark.parametrize("scaling", [None, 0.5])
def test_attention_in_a_pack_is_that_of_its_mask(scaling: float | None, within: Within) -> None:
    trunk = [number % 3 for number in range(TILE + 140)]
    found = tree_mask([trunk, [*trunk[:150], *[5] * 200], [*trunk[:150], *[6] * 20], [0, 1, *[5] * 20], [9]], within)
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    query, key, value = inputs = [draw(1, heads, len(found), 8).requires_grad_() for heads in (4, 2, 2)]
    attended, weights = tree_attention(torch.nn.Identity(), query, key, value, found, scaling=scaling)
    key, value = (states.repeat_interleave(2, dim=1) for states in (key, value))
    # Without a scale it is one over the root of the 8 dimensions.
    scores = query @ key.transpose(2, 3) * (8**-0.5 if scaling is None else scaling)
    expected = scores.masked_fill(~dense(found), -torch.inf).softmax(dim=-1) @ value
    torch.testing.assert_close(attended, expected.transpose(1, 2))
    assert weights is None
    grad = draw(attended.shape)
    expected_grads = torch.autograd.grad(expected.transpose(1, 2), inputs, grad)
    torch.testing.assert_close(torch.autograd.grad(attended, inputs, grad), expected_grads)


def test_what_is_added_to_scores_is_refused() -> None:
    found, parts = tree_mask(HAND), torch.zeros(1, 1, 8, 4)
    with pytest.raises(InvalidInput, match="attention must be plain, got position_bias"):
        tree_attention(torch.nn.Identity(), parts, parts, parts, found, s_aux=None, position_bias=parts)


def test_a_strip_is_bounded_however_long_the_pack() -> None:
    found = StripShapes(tree_mask([[number % 7 for number in range(2000)], [1] * 700]))
    assert found.parts
    assert max(rows * columns for rows, columns in found.shapes) <= 2000 * TILE


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


def test_packs_of_every_length_share_one_compiled_flex_attention() -> None:
    counter = CompileCounter()
    flex = torch.compile(flex_attention, dynamic=True, backend=counter)
    for length in (700, 3, 1100, 130):  # the second would be one square of 128 alone
        rows = [[number % 7 for number in range(length)]]
        trie, multiple = build_trie(rows, [0]), pack_multiple(torch.device("cuda"))
        pack = build_pack(rows, [[True] * length], trie, range(1), CPU, multiple=multiple)
        states = torch.zeros(1, 2, len(pack), 16)
        with torch.no_grad():
            flex(states, states, states, block_mask=TreeMask(pack.ends_N, pack.depths_N, causal).block_mask)
    assert counter.frame_count == 1
