"""A causal language model with a slot cache: prefill some rows, or continue all of them by one token.

Positions and masks are made here, by the row, so rows of any lengths lie side by side.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from envgym.agents.policies._attention import as_additive, configs_of, grouped, needs_additive_mask
from envgym.agents.policies._cache import SlotCache, causal_mask, decoding_mask
from envgym.errors import InvalidInput, sentence

PREFILL_TOKENS = 8192
"""Most tokens of one forward pass, padding included; more are computed in several."""
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

    @property
    def device(self) -> torch.device:
        """Where the model is now."""
        return next(self.module.parameters()).device

    def forget(self) -> None:
        """Free the cache."""
        self.cache = SlotCache()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Put the model in the state that sampling needs, and back: eval mode, grouped attention, no gradients."""
        was_training = self.module.training
        if was_training:
            self.module.eval()
        is_cast = self._autocast is not None
        try:
            with (
                grouped(self._configs),
                torch.inference_mode(),
                torch.autocast(self.device.type, dtype=self._autocast, enabled=is_cast),
            ):
                yield
        finally:
            if was_training:
                self.module.train()

    def prefill(self, prefixes: Sequence[tuple[int, ...]], first_row: int) -> None:
        """Compute keys and values of `prefixes` in the rows from `first_row` on; room is reserved."""
        row = 0
        while row < len(prefixes):
            longest, size = max(len(prefixes[row]), 1), 1
            while row + size < len(prefixes):
                longest = max(longest, len(prefixes[row + size]))
                if longest * (size + 1) > PREFILL_TOKENS:
                    break
                size += 1
            for _ in self.passes(prefixes[row : row + size], first_row + row, PREFILL_TOKENS, keep_all=False):
                pass
            row += size

    def passes(
        self, rows: Sequence[tuple[int, ...]], first_row: int, max_tokens: int, *, keep_all: bool
    ) -> Iterator[tuple[int, Tensor]]:
        """Run `rows` through the model, at most `max_tokens` a pass; yield (first column, logits) of each pass.

        The logits are those of all the pass's tokens, or of its last column alone.
        """
        device = self.device
        width = max(len(row) for row in rows)
        ids = torch.zeros((len(rows), width), dtype=torch.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = torch.tensor(row, dtype=torch.int64)
        ids = ids.to(device)
        chunk = max(max_tokens // len(rows), 1)
        for start in range(0, width, chunk):
            end = min(start + chunk, width)
            self.cache.prefilling(first_row=first_row, num_rows=len(rows), start=start, end=end)
            masks = {kind: causal_mask(start, end, window, device) for kind, window in self._windows.items()}
            positions = torch.arange(start, end, device=device).expand(len(rows), -1)
            yield start, self._forward(ids[:, start:end], positions, masks, keep=end - start if keep_all else 1)

    def decode(self, tokens: Tensor, positions: Tensor, width: int) -> Tensor:
        """Append a token to each of the first rows; return [B, V] float32 logits of what follows.

        Args:
            tokens: [B].
            positions: [B] how long each row was.
            width: columns in use after this, of the longest row.
        """
        device = self.device
        self.cache.decoding(torch.arange(len(tokens), device=device), positions, width)
        columns = torch.arange(width, device=device)
        masks = {kind: decoding_mask(positions, columns, window) for kind, window in self._windows.items()}
        return self._forward(tokens[:, None], positions[:, None], masks, keep=1)[:, -1].float()

    def _forward(self, ids: Tensor, positions: Tensor, masks: dict[str, Tensor], *, keep: int) -> Tensor:
        """Return the logits of the last `keep` tokens, [B, keep, V]."""
        if self._additive:
            dtype = next(self.module.parameters()).dtype
            masks = {kind: as_additive(mask, dtype) for kind, mask in masks.items()}
        output = self.module(
            input_ids=ids,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=positions,
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
