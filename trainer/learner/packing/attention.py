"""Attention over a pack inside a Hugging Face model: part by part on the CPU, FlexAttention elsewhere.

A token attends itself and its ancestors, as far as the model's own mask lets a row's token look back (a sliding window,
say): that mask is evaluated on depths, which are the positions in a row. A mask of all pairs never exists.

In depth-first order, what follows a run of tokens stands in a row behind it. So the pairs of a pack are those within
runs, and those of a run with everything that follows it: a few rectangles, nearly all of them whole or causal, which
kernels know without a mask. What a query finds in several of them is put together by their softmax's denominators.

Two hooks that transformers offers are used. The model states the mask of each kind of layer by name of its attention
(`tree_mask`), and hands what it got to the attention of that name (`tree_attention`). Outside a pack both do what
"sdpa" does, so that one model samples, is evaluated and trains.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from itertools import pairwise
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

from envgym.errors import InvalidInput
from envgym.trainer.batch.packs import Pack
from envgym.trainer.learner.causal_lm import at_least_float32

BLOCK = 128
"""Tokens of branches that attend each other in one call, and sides of FlexAttention's squares."""
TILE = 512
"""Tokens of a run that attend each other in one call, and that others attend in one call."""
MAX_ENTRIES = 2**26
"""Mask entries that are kept, one byte each. What is above is made again for every layer."""

Within = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A model's mask over one row, as transformers states it: of batch, head, query position, key position."""


class MaskPart(NamedTuple):
    """Queries in a row and keys in a row: every query attends every key, or those before it, or those of a mask."""

    queries: slice
    keys: slice
    is_causal: bool = False
    """Whether each attends itself and those before it, of as many keys as queries."""
    is_masked: bool = False
    strip_QK: Bool[Tensor, "Q K"] | None = None
    """Of a masked part: True where a query attends a key; None where that is not kept."""

    @property
    def is_own(self) -> bool:
        """Whether the queries are the keys: in one such part of its pack every token attends itself."""
        return self.queries == self.keys


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
        return len(self._ends_N)

    def attends(self, query: Tensor, key: Tensor) -> Tensor:
        """Return, for places that broadcast, whether the one attends the other."""
        follows = (key <= query) & (query < self._ends_N[key])
        return follows & self._within(self._zero, self._zero, self._depths_N[query], self._depths_N[key])

    def strip(self, part: MaskPart) -> Bool[Tensor, "Q K"] | None:
        """Return which keys of a part each query attends; None where the part says it all without a mask."""
        if not part.is_masked or part.strip_QK is not None:
            return part.strip_QK
        return self._strip(part.queries, part.keys)

    @cached_property
    def parts(self) -> list[MaskPart]:
        """All pairs of tokens of which one attends the other: first each token with its own tile, then the others."""
        own, others = [], []
        for tokens, end in self._tiles():
            own.append(self._part(tokens, tokens))
            if tokens.stop < end:
                others.append(self._part(slice(tokens.stop, end), tokens))
        num_entries, parts = 0, []
        for part in [part for part in (*own, *others) if part is not None]:
            num_entries += 0 if part.strip_QK is None else part.strip_QK.numel()
            parts.append(part if num_entries <= MAX_ENTRIES else part._replace(strip_QK=None))
        return parts

    def _tiles(self) -> Iterator[tuple[slice, int]]:
        """Cut the pack into tiles: parts of one run, or whole small branches; each with the end of what follows it."""
        ends = self._ends_N.tolist()
        starts = [place for place in range(len(ends)) if place == 0 or ends[place] != ends[place - 1]]
        branches = slice(0, 0)
        """Small ones, that go together while they fit."""
        for start, stop in pairwise([*starts, len(ends)]):
            end = ends[start]
            if end <= branches.stop:
                continue
            if end - branches.start <= BLOCK:
                branches = slice(branches.start, end)
                continue
            if branches.start < branches.stop:
                yield branches, branches.stop
            if end - start <= BLOCK:
                branches = slice(start, end)
                continue
            branches = slice(stop, stop)
            yield from ((tile, end) for tile in _slices(start, stop, TILE))
        if branches.start < branches.stop:
            yield branches, branches.stop

    def _part(self, queries: slice, keys: slice) -> MaskPart | None:
        """Describe a rectangle, without the queries and keys at its sides that attend nothing; None if all do."""
        strip_QK = self._strip(queries, keys)
        if queries == keys:
            if torch.equal(strip_QK, torch.ones_like(strip_QK).tril_()):
                return MaskPart(queries, keys, is_causal=True)
            return MaskPart(queries, keys, is_masked=True, strip_QK=strip_QK)
        rows, columns = _span(strip_QK.any(dim=1)), _span(strip_QK.any(dim=0))
        if rows is None or columns is None:
            return None
        queries, keys = _shifted(rows, queries.start), _shifted(columns, keys.start)
        strip_QK = strip_QK[rows, columns]
        return MaskPart(queries, keys) if strip_QK.all() else MaskPart(queries, keys, is_masked=True, strip_QK=strip_QK)

    @cached_property
    def block_mask(self) -> BlockMask:
        """The same for FlexAttention, which skips squares of BLOCK x BLOCK that hold no pair."""
        length = len(self)
        rest = -length % BLOCK
        partly, wholly = [], []
        height = max(MAX_ENTRIES // (length + rest) // BLOCK, 1) * BLOCK
        for queries in _slices(0, length, height):
            strip_QK = self._strip(queries, slice(0, length))
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

    def _strip(self, queries: slice, keys: slice) -> Bool[Tensor, "Q K"]:
        query_Q, key_K = (torch.arange(at.start, at.stop, device=self._ends_N.device) for at in (queries, keys))
        return self.attends(query_Q[:, None], key_K)


def _slices(start: int, stop: int, step: int) -> Iterator[slice]:
    return (slice(place, min(place + step, stop)) for place in range(start, stop, step))


def _span(mask_N: Bool[Tensor, " N"]) -> slice | None:
    places = mask_N.nonzero().flatten().tolist()
    return slice(places[0], places[-1] + 1) if places else None


def _shifted(at: slice, by: int) -> slice:
    return slice(at.start + by, at.stop + by)


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
        raise InvalidInput.of("attention", "be plain", beyond[0], where=type(module).__name__, do=do)
    device = query.device.type
    if torch.is_autocast_enabled(device) and query.dtype is not torch.float64:  # as SDPA does
        query, key, value = (part.to(torch.get_autocast_dtype(device)) for part in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _attend(query, key, value, attention_mask, scale).transpose(1, 2).contiguous(), None


# Of compiled layers this is no part: it is a call for each part, or FlexAttention's own code.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend(query: Tensor, key: Tensor, value: Tensor, mask: TreeMask, scale: float) -> Tensor:
    if query.device.type != "cpu":
        return attend_squares(query, key, value, mask, scale)
    output: Tensor = _TreeAttention.apply(query, key, value, mask, scale)  # type: ignore[no-untyped-call]  # torch's
    return output


def attend_squares(
    query: Float[Tensor, "1 H N D"],
    key: Float[Tensor, "1 K N D"],
    value: Float[Tensor, "1 K N D"],
    mask: TreeMask,
    scale: float,
) -> Float[Tensor, "1 H N D"]:
    """Attend with FlexAttention, which accelerators have; several heads of queries may share one of keys."""
    is_grouped = query.shape[1] != key.shape[1]
    output: Tensor = _compiled_flex()(query, key, value, block_mask=mask.block_mask, scale=scale, enable_gqa=is_grouped)
    return output


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
"""The kernels behind SDPA on the CPU. Called by name, because these give and take the sums that join parts."""


class _TreeAttention(torch.autograd.Function):
    """softmax(scale q kᵀ + bias) v, one part of the mask after another, in float32 at least."""

    @staticmethod
    def forward(ctx: _Context, query: Tensor, key: Tensor, value: Tensor, mask: TreeMask, scale: float) -> Tensor:
        queries, keys, values = (at_least_float32(states) for states in (query, key, value))
        batch, heads, length, width = *query.shape[:-1], value.shape[-1]
        output = queries.new_empty(batch, length, heads, width).transpose(1, 2)  # as the layer reads it
        logsumexp = output.new_empty(output.shape[:-1])
        for part in mask.parts:
            here, there = (..., part.queries, slice(None)), (..., part.keys, slice(None))
            bias = _bias(mask.strip(part), queries.dtype)
            some, sums = _flash(
                queries[here], keys[there], values[there], is_causal=part.is_causal, attn_mask=bias, scale=scale
            )
            if part.is_own:
                output[here], logsumexp[..., part.queries] = some, sums
                continue
            if bias is not None:  # the kernel's sum for a query that attends no key is not that of none
                sums = sums.masked_fill(bias.isneginf().all(dim=-1)[:, 0], float("-inf"))
            before = logsumexp[..., part.queries]
            output[here].lerp_(some, (sums - before).sigmoid_()[..., None])
            logsumexp[..., part.queries] = torch.logaddexp(before, sums)
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, logsumexp)
        ctx.mask, ctx.scale = mask, scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Differentiate each part given the sums of all, and add up."""
        *saved, logsumexp = ctx.saved_tensors
        grad, queries, keys, values, output = (at_least_float32(states) for states in (grad, *saved))
        totals = [torch.empty_like(states) for states in (queries, keys, values)]
        for part in ctx.mask.parts:
            here, there = (..., part.queries, slice(None)), (..., part.keys, slice(None))
            bias = _bias(ctx.mask.strip(part), queries.dtype)
            outputs = (output[here], logsumexp[..., part.queries], 0.0, part.is_causal)
            inputs = (queries[here], keys[there], values[there])
            grads = _flash_backward(grad[here], *inputs, *outputs, attn_mask=bias, scale=ctx.scale)
            for total, place, some in zip(totals, (here, there, there), grads, strict=True):
                if part.is_own:
                    total[place] = some
                else:
                    total[place].add_(some)
        return *(total.to(states.dtype) for total, states in zip(totals, saved, strict=False)), None, None


def _bias(strip_QK: Bool[Tensor, "Q K"] | None, dtype: torch.dtype) -> Float[Tensor, "1 1 Q K"] | None:
    """Return the bias of the scores: 0 where a query attends a key, else -inf; None where every one does."""
    if strip_QK is None:
        return None
    bias_QK = torch.zeros(strip_QK.shape, dtype=dtype, device=strip_QK.device)
    return bias_QK.masked_fill_(~strip_QK, float("-inf"))[None, None]


_flex: list[Any] = []


def _compiled_flex() -> Any:  # a compiled function has no type of its own
    if not _flex:
        _flex.append(torch.compile(flex_attention, dynamic=True))
    return _flex[0]
