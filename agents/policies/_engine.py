"""Decode many sequences together with one transformers model: prefill, one token for all, compact, again.

Sequences join and leave between tokens. A sequence's tokens depend on its request and on the weights; other rows of
the batch can change them only through rounding, where a random number falls within rounding of a boundary.
Contexts that agree in all but their last token (the samples of a group) are prefilled once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor, nn

from envgym.agents.policies._attention import as_additive, configs_of, grouped, needs_additive_mask
from envgym.agents.policies._cache import SlotCache, causal_mask, decoding_mask
from envgym.agents.policies._rows import Bools, Ended, Rows, TicketT, shared_prefills
from envgym.agents.policies._sampling import Rules, sample
from envgym.agents.protocols import GenerateRequest
from envgym.errors import InvalidInput, sentence

PREFILL_TOKENS = 8192
"""Most tokens of one forward pass, padding included; more are computed in several."""
_SCORE_NUMBERS = 1 << 26
"""Most logits held while scoring (256 MiB in float32)."""
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}


class Engine(Generic[TicketT]):
    """The rows under way, their cache, and the model that continues them. Not for several threads at once."""

    def __init__(self, model: nn.Module, *, max_batch: int, autocast: torch.dtype | None = None) -> None:
        """Serve up to `max_batch` sequences at a time.

        Raises: InvalidInput: the model has layers without a key-value cache (linear attention, state space).
        """
        self.model = model
        self.rows: Rows[TicketT] = Rows(max_batch)
        self._autocast = autocast
        self._configs = configs_of(model)
        self._additive = needs_additive_mask(self._configs)
        config = model.config.get_text_config()  # type: ignore[union-attr, operator]  # nn.Module types attributes as tensors
        self.vocabulary: int = config.vocab_size
        self.max_positions: int | None = getattr(config, "max_position_embeddings", None)
        self._windows = _windows(config)
        self.reset()

    @property
    def device(self) -> torch.device:
        """Where the model is now."""
        return next(self.model.parameters()).device

    def reset(self) -> None:
        """Drop all sequences and the memory of the cache."""
        self.rows = Rows(self.rows.capacity)
        self._cache = SlotCache()
        self._tokens = torch.empty(0, dtype=torch.int64)
        self._rules: Rules | None = None

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Put the model in the state that sampling needs, and back: eval mode, grouped attention, no gradients."""
        was_training = self.model.training
        if was_training:
            self.model.eval()
        enabled = self._autocast is not None
        try:
            with (
                grouped(self._configs),
                torch.inference_mode(),
                torch.autocast(self.device.type, dtype=self._autocast, enabled=enabled),
            ):
                yield
        finally:
            if was_training:
                self.model.train()

    # ---- sequences -----------------------------------------------------------------------------------------------

    def room(self) -> int:
        """Return how many sequences may join."""
        return self.rows.capacity - len(self.rows)

    def limit(self, request: GenerateRequest) -> int:
        """Return the most tokens that `request` can get: its own limit, or where the model's positions end."""
        wanted = request.sampling.max_new_tokens
        if self.max_positions is None:
            return wanted
        return min(wanted, self.max_positions - len(request.token_ids))

    def admit(self, requests: Sequence[tuple[TicketT, GenerateRequest]], version: int) -> None:
        """Let sequences join; at most `room()` of them, sorted by length where speed matters."""
        if not requests:
            return
        first, device = len(self.rows), self.device
        order, sources = shared_prefills([request for _, request in requests])
        num_leaders = len(set(sources))
        prefixes = [requests[index][1].token_ids[:-1] for index in order[:num_leaders]]
        self._cache.reserve(
            rows=first + len(order), columns=max(len(request.token_ids) for _, request in requests), used=first
        )
        self._prefill(prefixes, first)
        followers = torch.arange(first + num_leaders, first + len(order), device=device)
        if len(followers):
            leaders = torch.tensor(sources[num_leaders:], device=device) + first
            self._cache.move(followers, leaders)
        for place, index in enumerate(order):
            ticket, request = requests[index]
            prefilled = len(request.token_ids) if place < num_leaders else 1
            self.rows.add(ticket, request, limit=self.limit(request), version=version, prefilled=prefilled)
        last = torch.tensor([requests[index][1].token_ids[-1] for index in order], device=device)
        self._tokens = torch.cat([self._tokens.to(device), last])
        self._rules = None

    def step(self) -> list[Ended[TicketT]]:
        """Sample one token for every sequence; return those that are over."""
        rows, device = self.rows, self.device
        num_rows = len(rows)
        lengths = rows.lengths[:num_rows]
        width = int(lengths.max()) + 1
        self._cache.reserve(rows=num_rows, columns=width, used=num_rows)
        positions = torch.from_numpy(lengths.copy()).to(device)
        self._cache.decoding(torch.arange(num_rows, device=device), positions, width)
        columns = torch.arange(width, device=device)
        masks = {kind: decoding_mask(positions, columns, window) for kind, window in self._windows.items()}
        logits = self._forward(self._tokens[:, None], positions[:, None], masks, keep=1)[:, -1].float()
        if self._rules is None:
            self._rules = Rules.of([request.sampling for request in rows.requests], logits.shape[-1], device)
        sampled = sample(logits, self._rules, torch.from_numpy(rows.numbers()).to(device))
        self._tokens = sampled.tokens
        tokens, behavior, raw = torch.stack([part.double() for part in sampled]).cpu().numpy()
        over = rows.take(tokens.astype(np.int64), behavior, raw)
        return self._retire(over) if over.any() else []

    def drop(self, is_abandoned: Sequence[bool]) -> list[Ended[TicketT]]:
        """Take sequences out that nobody waits for; return them."""
        return self._retire(np.array(is_abandoned))

    def _retire(self, over: Bools) -> list[Ended[TicketT]]:
        ended, moves = self.rows.retire(over)
        targets = torch.from_numpy(moves.targets).to(self.device)
        sources = torch.from_numpy(moves.sources).to(self.device)
        if len(targets):
            self._cache.move(targets, sources)
            self._tokens[targets] = self._tokens[sources]
        self._tokens = self._tokens[: len(self.rows)]
        self._rules = None
        return ended

    # ---- forward passes ------------------------------------------------------------------------------------------

    def _forward(self, ids: Tensor, positions: Tensor, masks: dict[str, Tensor], *, keep: int) -> Tensor:
        """Return the logits of the last `keep` tokens, [B, keep, V]."""
        if self._additive:
            dtype = next(self.model.parameters()).dtype
            masks = {kind: as_additive(mask, dtype) for kind, mask in masks.items()}
        output = self.model(
            input_ids=ids,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: Tensor = output.logits
        return logits

    def _prefill(self, prefixes: Sequence[tuple[int, ...]], first_row: int) -> None:
        """Compute keys and values of `prefixes` in the rows from `first_row` on."""
        row = 0
        while row < len(prefixes):
            longest = max(len(prefixes[row]), 1)
            size = 1
            while row + size < len(prefixes):
                longest = max(longest, len(prefixes[row + size]))
                if longest * (size + 1) > PREFILL_TOKENS:
                    break
                size += 1
            for _ in self._passes(prefixes[row : row + size], first_row + row, PREFILL_TOKENS, keep_all=False):
                pass
            row += size

    def _passes(
        self, rows: Sequence[tuple[int, ...]], first_row: int, max_tokens: int, *, keep_all: bool
    ) -> Iterator[tuple[int, Tensor]]:
        """Run `rows` through the model, at most `max_tokens` a pass; yield (first column, logits) of each pass."""
        device = self.device
        width = max(len(row) for row in rows)
        ids = torch.zeros((len(rows), width), dtype=torch.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = torch.tensor(row, dtype=torch.int64)
        ids = ids.to(device)
        chunk = max(max_tokens // len(rows), 1)
        for start in range(0, width, chunk):
            end = min(start + chunk, width)
            self._cache.prefilling(first_row=first_row, num_rows=len(rows), start=start, end=end)
            masks = {kind: causal_mask(start, end, window, device) for kind, window in self._windows.items()}
            positions = torch.arange(start, end, device=device).expand(len(rows), -1)
            keep = end - start if keep_all else 1
            yield start, self._forward(ids[:, start:end], positions, masks, keep=keep)

    # ---- scoring -------------------------------------------------------------------------------------------------

    def score(self, rows: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return the raw log-prob of every token given those before it, 0.0 for the first; no sequence is under way."""
        assert not len(self.rows), "scoring uses the cache"
        order = sorted(range(len(rows)), key=lambda index: (len(rows[index]), rows[index]))
        found: dict[int, tuple[float, ...]] = {}
        for begin in range(0, len(order), self.rows.capacity):
            batch = order[begin : begin + self.rows.capacity]
            for index, scores in zip(batch, self._score([rows[index] for index in batch]), strict=True):
                found[index] = scores
        return [found[index] for index in range(len(rows))]

    def _score(self, rows: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        width = max(len(row) for row in rows)
        if not width:
            return [() for _ in rows]
        self._cache.reserve(rows=len(rows), columns=width, used=0)
        following = torch.zeros((len(rows), width), dtype=torch.int64)
        for place, row in enumerate(rows):
            following[place, : max(len(row) - 1, 0)] = torch.tensor(row[1:], dtype=torch.int64)
        following = following.to(self.device)
        parts: list[Tensor] = []
        for start, logits in self._passes(rows, 0, max(_SCORE_NUMBERS // self.vocabulary, 1), keep_all=True):
            logits = logits.float()
            chosen = logits.gather(-1, following[:, start : start + logits.shape[1], None])[..., 0]
            parts.append(chosen - torch.logsumexp(logits, dim=-1))
        table = torch.cat(parts, dim=1).double().cpu().tolist()
        return [(0.0, *line[: len(row) - 1]) if row else () for row, line in zip(rows, table, strict=True)]


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
