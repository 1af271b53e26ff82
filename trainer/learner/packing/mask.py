"""Who attends whom in a pack, a strip of queries at a time: a mask of all pairs never exists.

A token attends itself and its ancestors, as far as the model's own mask lets a row's token look back (a sliding
window, say): that mask is asked about depths, which are the positions in a row.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

BLOCK = 128
"""Queries whose keys are gathered together; more keep the kernel busier, fewer look at fewer keys in vain."""
MAX_ENTRIES = 2**26
"""Mask entries that exist at a time, one byte each. What is above is made again for every layer."""

Within = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A model's mask over one row, as transformers states it: of batch, head, query position, key position."""


class Block(NamedTuple):
    """Some queries, in a row, and every key that one of them attends."""

    queries: slice
    keys: Int[Tensor, " K"]
    strip_QK: Bool[Tensor, "Q K"] | None
    """True where a query attends a key; None where that is not kept."""


class TreeMask:
    """The mask of one kind of layer over one pack."""

    def __init__(self, ends_N: Int[Tensor, " N"], depths_N: Int[Tensor, " N"], within: Within) -> None:
        """State the mask.

        Args:
            ends_N: see `Pack`.
            depths_N: see `Pack`.
            within: the model's mask over one row.
        """
        self._ends_N, self._depths_N, self._within = ends_N, depths_N, within
        self._zero = ends_N.new_zeros(())

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._ends_N)

    def attends(self, query: Tensor, key: Tensor) -> Tensor:
        """Return, for places that broadcast, whether the one attends the other."""
        follows = (key <= query) & (query < self._ends_N[key])
        return follows & self._within(self._zero, self._zero, self._depths_N[query], self._depths_N[key])

    def bias(self, block: Block, dtype: torch.dtype) -> Float[Tensor, "1 1 Q K"]:
        """Return what is added to a block's scores: 0 where a query attends a key, else -inf."""
        strip_QK = self._strip(block.queries, block.keys) if block.strip_QK is None else block.strip_QK
        bias_QK = torch.zeros(strip_QK.shape, dtype=dtype, device=strip_QK.device)
        return bias_QK.masked_fill_(~strip_QK, float("-inf"))[None, None]

    @cached_property
    def blocks(self) -> list[Block]:
        """All queries in blocks of BLOCK, each with its keys."""
        found: list[Block] = []
        kept = 0
        for queries in _slices(len(self), BLOCK):
            # Before the block only what it still follows; a sliding window then leaves some of that out.
            keys = (self._ends_N[: queries.stop] > queries.start).nonzero().squeeze(-1)
            strip_QK = self._strip(queries, keys)
            used = strip_QK.any(dim=0)
            keys, strip_QK = keys[used], strip_QK[:, used]
            kept += strip_QK.numel()
            found.append(Block(queries, keys, strip_QK if kept <= MAX_ENTRIES else None))
        return found

    @cached_property
    def block_mask(self) -> BlockMask:
        """The same for FlexAttention, which skips squares of BLOCK x BLOCK that hold no pair."""
        length = len(self)
        keys = torch.arange(length, device=self._ends_N.device)
        rest = -length % BLOCK
        partly, wholly = [], []
        height = max(MAX_ENTRIES // (length + rest) // BLOCK, 1) * BLOCK
        for queries in _slices(length, height):
            strip_QK = self._strip(queries, keys)
            squares = pad(strip_QK, (0, rest, 0, -len(strip_QK) % BLOCK)).unflatten(1, (-1, BLOCK))
            squares = squares.unflatten(0, (-1, BLOCK))
            full = squares.all(dim=3).all(dim=1)
            wholly.append(full)
            partly.append(squares.any(dim=3).any(dim=1) & ~full)
        some, some_at = _indices(torch.cat(partly))
        full, full_at = _indices(torch.cat(wholly))
        return BlockMask.from_kv_blocks(
            some,
            some_at,
            full,
            full_at,
            BLOCK_SIZE=BLOCK,
            mask_mod=lambda batch, head, query, key: self.attends(query, key),
            seq_lengths=(length, length),
        )

    def _strip(self, queries: slice, keys: Int[Tensor, " K"]) -> Bool[Tensor, "Q K"]:
        return self.attends(torch.arange(queries.start, queries.stop, device=keys.device)[:, None], keys)


def _slices(length: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _indices(squares: Bool[Tensor, "Q K"]) -> tuple[Int[Tensor, "1 1 Q"], Int[Tensor, "1 1 Q K"]]:
    """Return how many squares each row of squares has, and which, in the form that BlockMask reads."""
    first = squares.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return squares.sum(dim=1, dtype=torch.int32)[None, None], first.to(torch.int32)[None, None]
