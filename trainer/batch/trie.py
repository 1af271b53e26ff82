"""Rows in the order of a trie, and where to cut that order into packs. Plain numbers; no tensors, no model.

Sorted by their tokens, rows stand in the depth-first order of the trie that they form, and how much of it a row adds
is its length less what it shares with the row before it. Sorting is therefore all that building a trie takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


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


def build_trie(token_ids: Sequence[Sequence[int]], chosen: Sequence[int]) -> Trie:
    """Merge the chosen rows; the result does not depend on their order but for equal rows."""
    tokens = {row: np.asarray(token_ids[row], dtype=">u4") for row in chosen}  # big end first: bytes sort as numbers
    rows = sorted(chosen, key=lambda row: (tokens[row].tobytes(), row))
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
