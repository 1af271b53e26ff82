"""Attention over a pack inside a Hugging Face model: block by block on the CPU, FlexAttention elsewhere.

A token attends itself and its ancestors, as far as the model's own mask lets a row's token look back (a sliding window,
say): that mask is evaluated on depths, which are the positions in a row. A mask of all pairs never exists.

Two hooks that transformers offers are used. The model states the mask of each kind of layer by name of its attention
(`tree_mask`), and hands what it got to the attention of that name (`tree_attention`). Outside a pack both do what
"sdpa" does, so that one model samples, is evaluated and trains.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from envgym.errors import InvalidInput, sentence
from envgym.trainer.batch.packs import Pack

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


NAME = "envgym_tree"
_BEYOND = ("s_aux", "position_bias")
"""What some models add to the scores, and cannot be added here."""
_current: ContextVar[Pack | None] = ContextVar("_current", default=None)
"""The pack that the model's body is running on."""


def use_tree_attention(model: PreTrainedModel) -> None:
    """Give a model that runs "sdpa" the attention of this module; what it computes from rows does not change."""
    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, tree_mask)
    model.config._attn_implementation = NAME


@contextmanager
def running(pack: Pack) -> Iterator[None]:
    """Have masks that are stated inside be those of a pack."""
    token = _current.set(pack)
    try:
        yield
    finally:
        _current.reset(token)


def tree_mask(*, mask_function: Within, **options: Any) -> Any:  # as transformers' own: its options, a tensor or None
    """State a mask: that of the pack under way, or the one that "sdpa" would use."""
    pack = _current.get()
    if pack is None:
        return sdpa_mask(mask_function=mask_function, **options)
    return TreeMask(pack.ends_N, pack.depths_N, mask_function)


def tree_attention(
    module: nn.Module,
    query: Float[Tensor, "1 H N D"],
    key: Float[Tensor, "1 K N D"],
    value: Float[Tensor, "1 K N D"],
    attention_mask: TreeMask | Tensor | None,
    *,
    scaling: float | None = None,
    **options: Any,  # whatever else a model's layer passes
) -> tuple[Float[Tensor, "1 N H D"], None]:
    """Attend within a pack, or do what "sdpa" does."""
    if not isinstance(attention_mask, TreeMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    if beyond := [name for name in _BEYOND if options.get(name) is not None]:
        do = "set optim.packing=false"
        raise InvalidInput(sentence("attention", "be plain", beyond[0], where=type(module).__name__, do=do))
    device = query.device.type
    if torch.is_autocast_enabled(device) and query.dtype is not torch.float64:  # as SDPA does
        query, key, value = (part.to(torch.get_autocast_dtype(device)) for part in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if device == "cpu":
        found = _BlockAttention.apply(query, key, value, attention_mask, scale)  # type: ignore[no-untyped-call]  # torch's
    else:
        found = attend_squares(query, key, value, attention_mask, scale)
    return found.transpose(1, 2).contiguous(), None


def attend_squares(
    query: Float[Tensor, "1 H N D"],
    key: Float[Tensor, "1 K N D"],
    value: Float[Tensor, "1 K N D"],
    mask: TreeMask,
    scale: float,
) -> Float[Tensor, "1 H N D"]:
    """Attend with FlexAttention, which accelerators have; several heads of queries may share one of keys."""
    is_grouped = query.shape[1] != key.shape[1]
    found: Tensor = _compiled_flex()(query, key, value, block_mask=mask.block_mask, scale=scale, enable_gqa=is_grouped)
    return found


if TYPE_CHECKING:

    class _Context(FunctionCtx):
        """What the backward pass finds; torch makes a class of its own at run time."""

        saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
        mask: TreeMask
        scale: float

else:
    _Context = FunctionCtx

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
"""The kernels behind SDPA on the CPU. Called by name, because only so do gathered keys and masks not stay in memory."""


class _BlockAttention(torch.autograd.Function):
    """softmax(scale q kᵀ + bias) v, one block of queries after another, each over the keys that it can see."""

    @staticmethod
    def forward(ctx: _Context, query: Tensor, key: Tensor, value: Tensor, mask: TreeMask, scale: float) -> Tensor:
        """Attend, and keep what a plain attention keeps."""
        found = query.new_empty((*query.shape[:-1], value.shape[-1]))
        sums: list[Tensor] = []
        for block in mask.blocks:
            keys, values = (part.index_select(2, block.keys) for part in (key, value))
            queries, bias = query[:, :, block.queries], mask.bias(block, query.dtype)
            found[:, :, block.queries], logsumexp = _flash(queries, keys, values, attn_mask=bias, scale=scale)
            sums.append(logsumexp)
        ctx.save_for_backward(query, key, value, found, torch.cat(sums, dim=2))
        ctx.mask, ctx.scale = mask, scale
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gather each block's keys again, and add their gradients up."""
        query, key, value, found, logsumexp = ctx.saved_tensors
        grad_query, grad_key, grad_value = (torch.zeros_like(part) for part in (query, key, value))
        for block in ctx.mask.blocks:
            keys, values = (part.index_select(2, block.keys) for part in (key, value))
            here = (slice(None), slice(None), block.queries)
            bias = ctx.mask.bias(block, query.dtype)
            kept = (found[here], logsumexp[here], 0.0, False)
            grads = _flash_backward(grad[here], query[here], keys, values, *kept, attn_mask=bias, scale=ctx.scale)
            grad_query[here] = grads[0]
            grad_key.index_add_(2, block.keys, grads[1])
            grad_value.index_add_(2, block.keys, grads[2])
        return grad_query, grad_key, grad_value, None, None


_flex: list[Any] = []


def _compiled_flex() -> Any:  # a compiled function has no type of its own
    """Compile FlexAttention once, for packs of every length."""
    if not _flex:
        _flex.append(torch.compile(flex_attention, dynamic=True))
    return _flex[0]
