"""Which tokens each row of a key-value cache holds, and what new contexts take over from them: numbers, no tensor.

Rows 0 .. n-1 are in use, as in the cache. After them lies what sequences that are over have computed, until the room
is needed: the next turn of an episode finds all of its last one there, and another task the system prompt.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from envgym.agents.policies.engine.requests import Bools, Ints

MIN_SHARED = 32
"""Fewer tokens are computed again rather than copied, or waited for."""
_NOTHING = -1
"""Stands after a row's last token; no token has this id."""


class PrefillWave(NamedTuple):
    """Contexts to compute together, in the rows from `first_row` on."""

    first_row: int
    contexts: list[int]
    """Which ones, by row."""
    starts: list[int]
    """How many tokens of each are there already, once the rows are copied."""
    targets: Ints
    """Rows to copy before; all sources are read before any target is written."""
    sources: Ints


class _Origin(NamedTuple):
    depth: int
    """Waves before its own."""
    start: int
    """Tokens found."""
    row: int | None = None
    """The cache's row that holds them (depth 0)."""
    context: int | None = None
    """The new context that is computed before and holds them (depth above 0)."""


class PrefixTable:
    """The tokens in up to `capacity` rows."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tokens: Ints = np.full((capacity, 0), _NOTHING, np.int64)
        self._lengths: Ints = np.zeros(capacity, np.int64)
        self._ages: Ints = np.zeros(capacity, np.int64)
        """When a row's sequence was over, by a clock that counts such moments."""
        self._clock = 0

    def __len__(self) -> int:
        """Return how many rows the cache needs for what is known."""
        return int(np.flatnonzero(self._lengths)[-1]) + 1 if self._lengths.any() else 0

    @property
    def width(self) -> int:
        return int(self._lengths.max())

    def forget(self) -> None:
        """Drop everything: the weights are new, or the rows were overwritten."""
        self._tokens[:], self._lengths[:] = _NOTHING, 0

    def retire(self, row: int, tokens: Ints) -> None:
        """Note all that the row of an ended sequence holds."""
        self._clock += 1
        self._ages[row] = self._clock
        self._write(row, tokens)

    def swap(self, rows: Ints, others: Ints) -> None:
        """Exchange rows, as the cache does."""
        self._copy(np.concatenate([rows, others]), np.concatenate([others, rows]))

    def admit(self, contexts: Sequence[tuple[int, ...]], first: int) -> list[PrefillWave]:
        """Give every context a row after the `first` rows in use; return what is to be copied and computed.

        Of the rows that are over, those that a new context contains go, then those that have been over for longest.
        """
        arrays = [np.array(context, np.int64) for context in contexts]
        end = first + len(arrays)
        origins, is_contained = self._origins(contexts, arrays)
        order = sorted(range(end - first), key=lambda i: (origins[i].depth, len(arrays[i]) - origins[i].start, i))
        row_of = {index: first + place for place, index in enumerate(order)}
        moves = self._moves(~is_contained, first, end)
        self._copy(moves[:, 0], moves[:, 1])
        self._tokens[first:end], self._lengths[first:end] = _NOTHING, 0
        for index, array in enumerate(arrays):
            self._write(row_of[index], array)
        waves: list[PrefillWave] = []
        for depth in range(max(origin.depth for origin in origins) + 1):
            members = [index for index in order if origins[index].depth == depth]
            copies = [] if depth else moves.tolist()
            for index in members:
                origin = origins[index]
                source = origin.row if origin.context is None else row_of[origin.context]
                if source is not None and source != row_of[index]:
                    copies.append((row_of[index], source))
            table = np.array(copies, np.int64).reshape(-1, 2)
            starts = [origins[index].start for index in members]
            waves.append(PrefillWave(row_of[members[0]], members, starts, table[:, 0], table[:, 1]))
        return waves

    def _origins(self, contexts: Sequence[tuple[int, ...]], arrays: Sequence[Ints]) -> tuple[list[_Origin], Bools]:
        """Return where each context begins, and [rows] which rows one of them contains.

        In lexicographic order a context shares most with the one before it. Of that one, and those it begins with in
        turn, the earliest computed is taken that shares nearly as much, so that few waves follow each other.
        """
        origins: dict[int, _Origin] = {}
        is_contained = np.zeros(self._capacity, np.bool_)
        line: list[int] = []
        for index in sorted(range(len(contexts)), key=contexts.__getitem__):
            shares = self._shares(arrays[index])
            is_contained |= shares == self._lengths
            row = int(shares.argmax())
            best_origin = _Origin(0, int(shares[row]), row=row) if shares[row] >= MIN_SHARED else _Origin(0, 0)
            best = _shared(arrays[index], arrays[line[-1]]) if line else 0
            is_whole = best == len(arrays[index])
            if best >= best_origin.start + MIN_SHARED or (is_whole and best > best_origin.start):
                target = best if is_whole else best - MIN_SHARED + 1
                depth = next(k for k, other in enumerate(line) if _shared(arrays[index], arrays[other]) >= target) + 1
                source = line[depth - 1]
                best_origin = _Origin(depth, _shared(arrays[index], arrays[source]), context=source)
            line = [*line[: best_origin.depth], index]
            origins[index] = best_origin
        return [origins[index] for index in range(len(contexts))], is_contained

    def _shares(self, tokens: Ints) -> Ints:
        """Return [rows] how many first tokens each row shares with `tokens`."""
        width = min(len(tokens), self._tokens.shape[1])
        if not width:
            return np.zeros(self._capacity, np.int64)
        agree = self._tokens[:, :width] == tokens[:width]
        shares: Ints = np.where(agree.all(axis=1), width, agree.argmin(axis=1))
        return shares

    def _moves(self, is_kept: Bools, first: int, end: int) -> Ints:
        """Choose which rows after `first` stay after `end`; return [N, 2] (target, source) of those that move."""
        over = [row for row in range(first, self._capacity) if self._lengths[row] and is_kept[row]]
        over.sort(key=lambda row: -self._ages[row])
        recent = sorted(over[: self._capacity - end])
        staying = {row for row in recent if row >= end}
        free = [row for row in range(end, self._capacity) if row not in staying]
        moves = list(zip(free, [row for row in recent if row < end], strict=False))
        gone = [row for row in free if self._lengths[row]]
        self._tokens[gone], self._lengths[gone] = _NOTHING, 0
        return np.array(moves, np.int64).reshape(-1, 2)

    def _copy(self, targets: Ints, sources: Ints) -> None:
        for table in (self._tokens, self._lengths, self._ages):
            table[targets] = table[sources]

    def _write(self, row: int, tokens: Ints) -> None:
        extra = len(tokens) - self._tokens.shape[1]
        if extra > 0:
            self._tokens = np.pad(self._tokens, ((0, 0), (0, extra)), constant_values=_NOTHING)
        self._tokens[row] = _NOTHING
        self._tokens[row, : len(tokens)] = tokens
        self._lengths[row] = len(tokens)


def _shared(one: Ints, other: Ints) -> int:
    width = min(len(one), len(other))
    differ = np.flatnonzero(one[:width] != other[:width])
    return int(differ[0]) if len(differ) else width
