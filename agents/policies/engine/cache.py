"""A key-value cache with a row for each sequence under way, and the attention of sampling that reads it.

Each row is filled from column 0 to its own length. Rows 0 .. n-1 are in use. A row that ends changes places with the
last one, so that work is always a slice; what it held stays until the room is needed. What lies after a row's length is
left over and masked. SDPA reads grouped key-value heads in place instead of copying them for every query.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from envgym.errors import InvalidInput

_COLUMNS = 64
"""Columns are allocated in multiples of this."""


@dataclass(slots=True)
class CacheLayout:
    """How large the layers are, where the next forward pass writes, and how far it reads; shared by all layers."""

    max_rows: int = 0
    max_columns: int = 0
    first_row: int = 0
    num_rows: int = 0
    width: int = 0
    """Columns read, those just written included."""
    rows: Tensor | None = None
    """[B, 1] the row numbers."""
    columns: Tensor | None = None
    """[B, T] where each token is written; None: every row has its tokens in the last columns read."""


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [rows, heads, columns, D]."""

    keys: Tensor
    values: Tensor

    def __init__(self, layout: CacheLayout, dtype: torch.dtype | None) -> None:
        """Allocate at the first use, when heads and width are known; `dtype` as `SlotCache` has it."""
        super().__init__()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        self._layout, self._dtype = layout, dtype

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate; zeros, as even what the mask hides must be finite."""
        rows, columns, dtype = self._layout.max_rows, self._layout.max_columns, self._dtype or key_states.dtype
        self.keys = key_states.new_zeros((rows, key_states.shape[1], columns, key_states.shape[3]), dtype=dtype)
        self.values = value_states.new_zeros((rows, value_states.shape[1], columns, value_states.shape[3]), dtype=dtype)
        self.is_initialized = True

    def grow(self) -> None:
        """Take the shared size; the content stays."""
        if self.is_initialized:
            old_keys, old_values = self.keys, self.values
            self.lazy_initialization(old_keys, old_values)
            self.keys[: len(old_keys), :, : old_keys.shape[2]] = old_keys
            self.values[: len(old_values), :, : old_values.shape[2]] = old_values

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new states; return all that the pass may read."""
        layout = self._layout
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows = slice(layout.first_row, layout.first_row + layout.num_rows)
        if layout.columns is None:
            start = layout.width - key_states.shape[2]
            self.keys[rows, :, start : layout.width] = key_states
            self.values[rows, :, start : layout.width] = value_states
        else:
            self.keys[layout.rows, :, layout.columns] = key_states.transpose(1, 2).to(self.keys.dtype)
            self.values[layout.rows, :, layout.columns] = value_states.transpose(1, 2).to(self.values.dtype)
        return self.keys[rows, :, : layout.width], self.values[rows, :, : layout.width]

    def move(self, targets: Tensor, sources: Tensor, width: int) -> None:
        """Copy the first columns of rows onto others."""
        if self.is_initialized:
            self.keys[targets, :, :width] = self.keys[sources, :, :width]
            self.values[targets, :, :width] = self.values[sources, :, :width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the columns read; masks are made by the engine."""
        return self._layout.width, 0

    def get_seq_length(self) -> int:
        """Return the columns read; positions are made by the engine."""
        return self._layout.width

    def get_max_length(self) -> int:
        return -1  # layers grow


class SlotCache(Cache):
    """The layers of one model, made as its first forward pass reaches them."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        """Hold nothing yet.

        Args:
            dtype: of keys and values: the type that autocast attends in, so that they are cast once and not at every
                token; None: as the model makes them.
        """
        self.layout = CacheLayout()
        super().__init__(layer_class_to_replicate=lambda: SlotLayer(self.layout, dtype))  # type: ignore[arg-type]  # called without arguments, and nothing else

    def reserve(self, *, rows: int, columns: int) -> None:
        """Make room, and a last column that holds no token; the content stays."""
        layout = self.layout
        if rows <= layout.max_rows and columns < layout.max_columns:
            return
        layout.max_rows = max(layout.max_rows, rows)
        if columns >= layout.max_columns:
            num_columns = max(columns + 1, layout.max_columns + layout.max_columns // 2)
            layout.max_columns = -(-num_columns // _COLUMNS) * _COLUMNS
        for layer in self._slots():
            layer.grow()

    def _slots(self) -> Iterator[SlotLayer]:
        for layer in self.layers:
            assert isinstance(layer, SlotLayer), "made by this cache"
            yield layer

    def writing(self, first_row: int, num_rows: int, width: int, columns: Tensor | None = None) -> None:
        """Let the next pass write to rows from `first_row` on and read `width` columns; see `CacheLayout`."""
        layout = self.layout
        layout.first_row, layout.num_rows, layout.width, layout.columns = first_row, num_rows, width, columns
        if columns is not None:
            layout.rows = torch.arange(first_row, first_row + num_rows, device=columns.device)[:, None]

    def move(self, targets: Tensor, sources: Tensor, width: int) -> None:
        """Copy the first columns of rows onto others in every layer; all is read before any is written."""
        for layer in self._slots():
            layer.move(targets, sources, width)


def attention_mask(positions: Tensor, width: int, window: int | None) -> Tensor:
    """Return [B, 1, T, width]: the token at `positions` [B, T] may look at what precedes it in its row, and itself."""
    own = positions[:, None, :, None]
    columns = torch.arange(width, device=positions.device)
    mask = columns <= own
    return mask if window is None else mask & (columns > own - window)


NAME = "envgym_grouped"
_BEYOND = ("s_aux", "position_bias", "softcap")
"""What some models add to the scores; SDPA cannot, so those models must be loaded with eager attention."""
_MAX_SCORES = 1 << 25
"""Most scores held at a time (64 MiB in bfloat16)."""


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Attend with the query heads of a group stacked along the query axis of their one key-value head.

    Args:
        module: the model's attention layer.
        query: [B, heads, T, D].
        key: [B, key-value heads, S, D].
        value: [B, key-value heads, S, D].
        attention_mask: [B or 1, 1, T, S] True where a token may look.
        scaling: factor of the scores; None: 1 / sqrt(D).
        options: whatever else the model passes; dropout is off while sampling.

    Returns:
        [B, T, heads, D], and no weights.
    """
    if beyond := [name for name in _BEYOND if options.get(name) is not None]:
        do = "load the model with attn_implementation='eager'"
        raise InvalidInput.of("attention", "be plain", beyond[0], where=type(module).__name__, do=do)
    num_rows, num_heads, num_queries, width = query.shape
    groups = num_heads // key.shape[1]
    if groups > 1 and num_queries > 1:
        attention_mask = attention_mask.repeat(1, 1, groups, 1)
    stacked = query.reshape(num_rows, key.shape[1], groups * num_queries, width)
    num_scores = attention_mask.shape[-1] * query[..., 0].numel()
    if key.dtype == torch.bfloat16 and key.device.type == "cpu" and num_scores <= _MAX_SCORES:
        output = _attend_by_products(stacked, key, value, attention_mask, width**-0.5 if scaling is None else scaling)
    else:
        output = nn.functional.scaled_dot_product_attention(
            stacked, key, value, attn_mask=attention_mask, scale=scaling
        )
    return output.reshape(num_rows, num_heads, num_queries, -1).transpose(1, 2).contiguous(), None


def _attend_by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Return [B, heads, T, D] by two products over all rows, which on a CPU are faster than SDPA in bfloat16."""
    keys = key.flatten(0, 1).contiguous()  # else its transpose is copied, which takes longer
    scores = torch.bmm(query.flatten(0, 1), keys.transpose(1, 2)).unflatten(0, query.shape[:2])
    scores.mul_(scaling).masked_fill_(~mask, -torch.inf)
    output = torch.bmm(torch.softmax(scores, dim=-1).flatten(0, 1), value.flatten(0, 1))
    return output.view(*query.shape[:3], -1)


def configs_of(model: nn.Module) -> list[Any]:  # transformers' configs, whose attribute below is theirs
    """Return each configuration that a part of the model reads, outer ones first."""
    configs = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    return [config for config in configs.values() if hasattr(config, "_attn_implementation")]


@contextmanager
def grouped(configs: Sequence[Any]) -> Iterator[None]:  # see configs_of
    """Sample with `grouped_attention`; eager attention is left alone, and everything is put back."""
    AttentionInterface.register(NAME, grouped_attention)
    before = [config._attn_implementation for config in configs]
    for config, name in zip(configs, before, strict=True):
        if name != "eager":
            config._attn_implementation = NAME
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


def as_additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where `mask` is True, the lowest number elsewhere."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
