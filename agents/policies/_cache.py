"""A key-value cache with a row for each sequence under way; each row is filled from column 0 to its own length.

Rows 0 .. n-1 are in use. A row that ends is overwritten by the last one, so that work is always a slice. What lies
behind a row's length is rubbish that the mask hides.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

_COLUMNS = 64
"""Columns are allocated in multiples of this."""


@dataclass(slots=True)
class Place:
    """Where the next forward pass writes, and how far it reads."""

    first_row: int = 0
    num_rows: int = 0
    width: int = 0
    """Columns read, those just written included."""
    start: int = 0
    """Prefill: the column of the pass's first token, for all its rows."""
    rows: Tensor | None = None
    """Decoding: [B] the row numbers."""
    positions: Tensor | None = None
    """Decoding: [B] the column of each row's one token; None while prefilling."""


@dataclass(slots=True)
class Size:
    """How large the layers are; shared by all of them."""

    rows: int = 0
    columns: int = 0


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [rows, heads, columns, D]."""

    keys: Tensor
    values: Tensor

    def __init__(self, place: Place, size: Size) -> None:
        """Allocate at the first use, when heads and width are known."""
        super().__init__()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        self._place, self._size = place, size

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate; zeros, as even what the mask hides must be finite."""
        size = self._size
        self.keys = key_states.new_zeros((size.rows, key_states.shape[1], size.columns, key_states.shape[3]))
        self.values = value_states.new_zeros((size.rows, value_states.shape[1], size.columns, value_states.shape[3]))
        self.is_initialized = True

    def grow(self, used: int) -> None:
        """Take the shared size; the first `used` rows keep their content."""
        if self.is_initialized:
            old_keys, old_values = self.keys, self.values
            self.lazy_initialization(old_keys, old_values)
            self.keys[:used, :, : old_keys.shape[2]] = old_keys[:used]
            self.values[:used, :, : old_values.shape[2]] = old_values[:used]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new states; return all that the pass may read."""
        place = self._place
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows = slice(place.first_row, place.first_row + place.num_rows)
        if place.positions is None:
            self.keys[rows, :, place.start : place.width] = key_states
            self.values[rows, :, place.start : place.width] = value_states
        else:
            self.keys[place.rows, :, place.positions] = key_states[:, :, 0]
            self.values[place.rows, :, place.positions] = value_states[:, :, 0]
        return self.keys[rows, :, : place.width], self.values[rows, :, : place.width]

    def move(self, targets: Tensor, sources: Tensor) -> None:
        """Copy rows onto others."""
        if self.is_initialized:
            self.keys[targets] = self.keys[sources]
            self.values[targets] = self.values[sources]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the columns read; masks are made by the engine."""
        return self._place.width, 0

    def get_seq_length(self) -> int:
        """Return the columns read before the pass; positions are made by the engine."""
        return self._place.start

    def get_max_length(self) -> int:
        """Return -1: layers grow."""
        return -1


class SlotCache(Cache):
    """The layers of one model, made as its first forward pass reaches them."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.place, self.size = Place(), Size()
        super().__init__(layer_class_to_replicate=lambda: SlotLayer(self.place, self.size))  # type: ignore[arg-type]  # called without arguments, and nothing else

    def reserve(self, *, rows: int, columns: int, used: int) -> None:
        """Make room; the first `used` rows keep their content."""
        size = self.size
        if rows <= size.rows and columns <= size.columns:
            return
        size.rows = max(size.rows, rows)
        if columns > size.columns:
            wanted = max(columns, size.columns + size.columns // 2)
            size.columns = -(-wanted // _COLUMNS) * _COLUMNS
        for layer in self._slots():
            layer.grow(used)

    def _slots(self) -> Iterator[SlotLayer]:
        for layer in self.layers:
            assert isinstance(layer, SlotLayer), "made by this cache"
            yield layer

    def prefilling(self, *, first_row: int, num_rows: int, start: int, end: int) -> None:
        """Let the next pass write columns start .. end-1 of some rows."""
        place = self.place
        place.first_row, place.num_rows, place.start, place.width = first_row, num_rows, start, end
        place.rows = place.positions = None

    def decoding(self, rows: Tensor, positions: Tensor, width: int) -> None:
        """Let the next pass write one column of each of the first rows."""
        place = self.place
        place.first_row, place.num_rows, place.width = 0, rows.shape[0], width
        place.rows, place.positions = rows, positions

    def move(self, targets: Tensor, sources: Tensor) -> None:
        """Copy rows onto others in every layer."""
        for layer in self._slots():
            layer.move(targets, sources)


def causal_mask(start: int, end: int, window: int | None, device: torch.device) -> Tensor:
    """Return [1, 1, end - start, end]: token q may look at columns q - window + 1 .. q."""
    queries = torch.arange(start, end, device=device)[:, None]
    columns = torch.arange(end, device=device)[None, :]
    mask = columns <= queries
    return (mask if window is None else mask & (columns > queries - window))[None, None]


def decoding_mask(positions: Tensor, columns: Tensor, window: int | None) -> Tensor:
    """Return [B, 1, 1, columns]: the token at `positions` may look at what precedes it in its row, and at itself."""
    own = positions[:, None]
    mask = columns <= own
    return (mask if window is None else mask & (columns > own - window))[:, None, None]
