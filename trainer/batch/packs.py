"""Packs: rows as one sequence in which every shared prefix stands once, and the way from there back to rows.

Sorted by their tokens, rows stand in the depth-first order of the trie that they form, and how much of it a row adds is
its length less what it shares with the row before it. Sorting is therefore all that building a trie takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from envgym.trainer.methods.tensors import to_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Trie:
    """Rows merged by token equality; a forest where they begin differently."""

    rows: tuple[int, ...]
    """Which rows, in depth-first order."""
    lengths: tuple[int, ...]
    """Tokens of each."""
    shared: tuple[int, ...]
    """Tokens at the start of each that are also those of the row before it; 0 for the first."""

    @property
    def num_tokens(self) -> int:
        """Tokens left when each shared prefix stands once."""
        return sum(self.lengths) - sum(self.shared)


def build_trie(token_ids: Sequence[Sequence[int]], indices: Sequence[int]) -> Trie:
    """Merge the chosen rows; the result does not depend on their order but for equal rows."""
    tokens = {row: np.asarray(token_ids[row], dtype=">u4") for row in indices}  # big end first: bytes sort as numbers
    rows = sorted(indices, key=lambda row: (tokens[row].tobytes(), row))
    shared = [num_shared(tokens[before], tokens[row]) for before, row in pairwise(rows)]
    return Trie(rows=tuple(rows), lengths=tuple(len(tokens[row]) for row in rows), shared=(0, *shared)[: len(rows)])


def num_shared(left: NDArray[np.uint32], right: NDArray[np.uint32]) -> int:
    """Return how many tokens two rows begin with in common."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length


def cut(trie: Trie, max_tokens: int) -> list[range]:
    """Cut a trie into runs of rows whose own tries hold at most `max_tokens` tokens (or one row).

    A run repeats what its first row shares with the row before it. So a run that is full ends where that is least,
    in its second half: between two tries, or else at a branch near the root.
    """
    cuts: list[range] = []
    start = size = 0
    place = 0
    while place < len(trie.rows):
        added = trie.lengths[place] - (trie.shared[place] if place > start else 0)
        if place > start and size + added > max_tokens:
            end = _cheapest_end(trie, start, place)
            cuts.append(range(start, end))
            start = place = end
            size = 0
            continue
        size += added
        place += 1
    return [*cuts, range(start, place)] if place > start else cuts


def _cheapest_end(trie: Trie, start: int, full: int) -> int:
    """Return the place in the second half of a full run before which a cut repeats the fewest tokens; late if equal."""
    return min(range(full, start + (full - start) // 2, -1), key=lambda place: trie.shared[place])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Some rows' trie in depth-first order: N tokens, each after all of its ancestors, on one device.

    Token q follows token k in some row exactly where k <= q < ends[k]. Padding comes last: tokens of no row, each of
    which follows itself alone.
    """

    input_ids_N: Int[Tensor, " N"]
    depths_N: Int[Tensor, " N"]
    """Tokens before each in its rows: its position."""
    ends_N: Int[Tensor, " N"]
    """Where the tokens that follow each end."""
    trained_S: Int[Tensor, " S"]
    """Places of the tokens that some row trains, ascending."""
    parents_S: Int[Tensor, " S"]
    """Place of the token before each of those: its hidden state predicts them, several where the trie branches."""
    places_BT: Int[Tensor, "B T"]
    """Place of each row's tokens; 0 where a row has ended."""

    def __len__(self) -> int:
        """Return the number of tokens that are computed."""
        return len(self.input_ids_N)

    def to_rows(self, values_N: Float[Tensor, " N"], mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Deal one number a token out to every row that holds the token, and 0 outside the mask.

        The gradient of a shared token is the sum over its rows; whatever is computed from rows stays exact.
        """
        values_BT = values_N.index_select(0, self.places_BT.flatten()).view(self.places_BT.shape)
        return torch.where(mask_BT, values_BT, values_BT.new_zeros(()))


def build_pack(
    token_ids: Sequence[Sequence[int]],
    loss_masks: Sequence[Sequence[bool]],
    trie: Trie,
    run: range,
    device: torch.device,
    *,
    multiple: int = 1,
) -> Pack:
    """Lay a run of a trie's rows out as one sequence.

    Args:
        token_ids: of all rows.
        loss_masks: of all rows; a row's first token follows nothing and is never scored.
        trie: of the rows.
        run: places in the trie's order; these rows become rows 0, 1, ... of the pack.
        device: where the tensors go.
        multiple: the number of tokens is padded to a multiple of this.
    """
    shared = [0 if place == run.start else trie.shared[place] for place in run]
    lengths = [trie.lengths[place] for place in run]
    starts = np.cumsum([0, *(length - same for length, same in zip(lengths, shared, strict=True))])
    num_tokens = int(starts[-1])
    num_places = -(-num_tokens // multiple) * multiple
    ids_N, depths_N, parents_N = (np.zeros(num_places, dtype=np.int64) for _ in range(3))
    ends_N = np.arange(1, num_places + 1)
    ends_N[:num_tokens] = num_tokens
    trained_N = np.zeros(num_places, dtype=np.bool_)
    places_BT = np.zeros((len(run), max(lengths)), dtype=np.int64)
    before = places_BT[0, :0]
    for number, (place, same) in enumerate(zip(run, shared, strict=True)):
        row, length, new = trie.rows[place], lengths[number], slice(starts[number], starts[number + 1])
        path = places_BT[number, :length]
        path[:same] = before[:same]
        path[same:] = np.arange(new.start, new.stop)
        ids_N[new] = token_ids[row][same:]
        depths_N[new] = np.arange(same, length)
        ends_N[before[same:]] = new.start
        parents_N[path[1:]] = path[:-1]
        trained_N[path[1:]] |= np.asarray(loss_masks[row], dtype=np.bool_)[1:]
        before = path
    trained_S = trained_N.nonzero()[0]
    pack = Pack(
        input_ids_N=torch.from_numpy(ids_N),
        depths_N=torch.from_numpy(depths_N),
        ends_N=torch.from_numpy(ends_N),
        trained_S=torch.from_numpy(trained_S),
        parents_S=torch.from_numpy(parents_N[trained_S]),
        places_BT=torch.from_numpy(places_BT),
    )
    return to_device(pack, device)
