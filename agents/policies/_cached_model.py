"""A causal language model with a slot cache: prefill some rows, or continue all of them by one token.

Positions and masks are made here, by the row, so rows of any lengths lie side by side.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor, nn

from envgym.agents.policies._cache import (
    SlotCache,
    as_additive,
    attention_mask,
    configs_of,
    grouped,
    needs_additive_mask,
)
from envgym.errors import InvalidInput, sentence

_ROWS: Final = 16
"""Rows that the copies are laid out for; any number works."""


class PackedLinears:
    """The linear layers of a model and bfloat16 copies of their weights that lie as the kernels of a CPU read them.

    The product with a plain weight rearranges all of it at every call, which for the few rows of a decoding step takes
    as long as the product. Results are the same bit by bit; the copies take as much memory as the weights, and are made
    at the first use after `forget`.
    """

    def __init__(self, module: nn.Module) -> None:
        """Find the layers; nothing is copied yet."""
        self._layers = [layer for layer in module.modules() if type(layer) is nn.Linear]
        self._forwards: list[tuple[nn.Linear, Callable[[Tensor], Tensor]]] | None = None
        """None: to be copied anew."""

    def forget(self) -> None:
        """Free the copies: the weights are new, or nobody samples for a while."""
        self._forwards = None

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Let the layers multiply by the copies, and put everything back; without gradients."""
        if self._forwards is None:
            self._forwards = [(layer, _packed_forward(layer)) for layer in self._layers if can_pack(layer.weight)]
        forwards = self._forwards
        try:
            for layer, forward in forwards:
                layer.forward = forward  # type: ignore[assignment, method-assign]  # of this layer alone, and only for a while
            yield
        finally:
            for layer, _ in forwards:
                layer.__dict__.pop("forward", None)


def can_pack(weight: Tensor) -> bool:
    """Return whether products with `weight` gain from a copy: bfloat16 on a CPU whose kernels know it."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return False
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _packed_forward(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Return what multiplies by a copy of the layer's weight."""
    packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _ROWS)
    multiply, bias = torch.ops.mkldnn._linear_pointwise, layer.bias

    def forward(states: Tensor) -> Tensor:
        product: Tensor = multiply(states, packed, bias, "none", [], "")
        return product

    return forward


PREFILL_TOKENS = 8192
"""Most tokens of one forward pass, padding included; more are computed in several."""
_PADDING = 16
"""A pass holds rows of at most twice its fewest tokens and this many more."""
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}


class CachedModel:
    """A transformers model (or a PEFT model around one) and the cache of the rows it is continuing."""

    def __init__(self, module: nn.Module, *, autocast: torch.dtype | None = None) -> None:
        """Read from the configuration what masks the model needs.

        Raises: InvalidInput: the model has layers without a key-value cache (linear attention, state space).
        """
        self.module = module
        self._autocast = autocast
        self._configs = configs_of(module)
        self._additive = needs_additive_mask(self._configs)
        config = module.config.get_text_config()  # type: ignore[union-attr, operator]  # nn.Module types attributes as tensors
        self._windows = _windows(config)
        self.vocabulary: int = config.vocab_size
        self.max_positions: int | None = getattr(config, "max_position_embeddings", None)
        self.cache = SlotCache()
        self._packed = PackedLinears(module)

    @property
    def device(self) -> torch.device:
        """Where the model is now."""
        return next(self.module.parameters()).device

    def forget(self) -> None:
        """Free the cache and the copies of weights."""
        self.cache = SlotCache()
        self._packed.forget()

    def forget_weights(self) -> None:
        """Free the copies of weights, as these are new."""
        self._packed.forget()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Put the model in the state that sampling needs, and back: eval mode, grouped attention, no gradients.

        Where it helps, matrices are multiplied by copies laid out for that.
        """
        was_training = self.module.training
        if was_training:
            self.module.eval()
        is_cast = self._autocast is not None
        try:
            with (
                grouped(self._configs),
                torch.inference_mode(),
                torch.autocast(self.device.type, dtype=self._autocast, enabled=is_cast),
                nullcontext() if is_cast else self._packed.serving(),
            ):
                yield
        finally:
            if was_training:
                self.module.train()

    def prefill(self, contexts: Sequence[tuple[int, ...]], starts: Sequence[int], first_row: int) -> None:
        """Compute keys and values of `contexts` from `starts` on, in the rows from `first_row` on; room is reserved.

        Contexts that come in the order of the tokens to compute need the least padding.
        """
        counts = [len(context) - start for context, start in zip(contexts, starts, strict=True)]
        row = 0
        while row < len(counts):
            size, shortest, longest = 1, counts[row], counts[row]
            while row + size < len(counts):
                shortest, longest = min(shortest, counts[row + size]), max(longest, counts[row + size])
                if longest * (size + 1) > PREFILL_TOKENS or longest > 2 * shortest + _PADDING:
                    break
                size += 1
            rows = slice(row, row + size)
            for _ in self.passes(contexts[rows], starts[rows], first_row + row, PREFILL_TOKENS, keep_all=False):
                pass
            row += size

    def passes(
        self,
        rows: Sequence[tuple[int, ...]],
        starts: Sequence[int],
        first_row: int,
        max_tokens: int,
        *,
        keep_all: bool,
    ) -> Iterator[tuple[int, Tensor]]:
        """Run `rows` from `starts` on, at most `max_tokens` a pass; yield (tokens before, logits) of each pass.

        The logits are those of all the pass's tokens, or of its last column alone.
        """
        num_rows, device = len(rows), self.device
        width = max(len(row) - start for row, start in zip(rows, starts, strict=True))
        ids = torch.zeros((num_rows, width), dtype=torch.int64)
        for place, (row, start) in enumerate(zip(rows, starts, strict=True)):
            ids[place, : len(row) - start] = torch.tensor(row[start:], dtype=torch.int64)
        ids = ids.to(device)
        is_even = len(set(starts)) == 1
        begins = torch.tensor(starts[:1] if is_even else starts, device=device)[:, None]
        ends = torch.tensor([len(row) for row in rows], device=device)[:, None]
        chunk = max(max_tokens // num_rows, 1)
        for begin in range(0, width, chunk):
            end = min(begin + chunk, width)
            positions = begins + torch.arange(begin, end, device=device)
            if is_even:
                self.cache.writing(first_row, num_rows, starts[0] + end)
            else:
                positions = positions.minimum(ends)  # padding goes where the row's next token will
                self.cache.writing(first_row, num_rows, int(positions.max()) + 1, positions)
            yield begin, self._forward(ids[:, begin:end], positions, keep=end - begin if keep_all else 1)

    def decode(self, tokens: Tensor, positions: Tensor, width: int) -> Tensor:
        """Append a token to each of the first rows; return [B, V] float32 logits of what follows.

        Args:
            tokens: [B].
            positions: [B] how long each row was.
            width: columns in use after this, of the longest row.
        """
        self.cache.writing(0, len(tokens), width, positions[:, None])
        return self._forward(tokens[:, None], positions[:, None], keep=1)[:, -1].float()

    def _forward(self, ids: Tensor, positions: Tensor, *, keep: int) -> Tensor:
        """Return [B, keep, V] the logits of the last `keep` tokens of `ids` [B, T], at `positions` [B or 1, T]."""
        width = self.cache.layout.width
        masks = {kind: attention_mask(positions, width, window) for kind, window in self._windows.items()}
        if self._additive:
            dtype = next(self.module.parameters()).dtype
            masks = {kind: as_additive(mask, dtype) for kind, mask in masks.items()}
        output = self.module(
            input_ids=ids,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=positions.expand(len(ids), -1),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: Tensor = output.logits
        return logits


def _windows(config: Any) -> dict[str, int | None]:  # a transformers config
    """Return the kinds of attention layer with the window of each; None: all that precedes.

    Raises: InvalidInput: a kind that keeps no keys and values.
    """
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    if unknown := sorted(kinds - _KNOWN_LAYERS):
        do = "sample from this model with another engine"
        where = type(config).__name__
        raise InvalidInput(sentence("attention layers", "be full or sliding", unknown[0], where=where, do=do))
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}
