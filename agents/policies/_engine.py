"""Decode many sequences together with one transformers model: prefill, one token for all, compact, again.

Sequences join and leave between tokens. A sequence's tokens depend on its request and on the weights; other rows of
the batch can change them only through rounding, where a random number falls within rounding of a boundary.
Contexts that agree in all but their last token (the samples of a group) are prefilled once.
"""

from collections.abc import Sequence
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from envgym.agents.policies._cached_model import CachedModel
from envgym.agents.policies._rows import Bools, Ended, Rows, TicketT, shared_prefills
from envgym.agents.policies._sampling import Rules, sample
from envgym.agents.protocols import GenerateRequest

_SCORE_NUMBERS = 1 << 26
"""Most logits held while scoring (256 MiB in float32)."""


class Engine(Generic[TicketT]):
    """The sequences under way. Not for several threads at once, and only while the model is `serving`."""

    def __init__(self, model: CachedModel, *, max_batch: int) -> None:
        """Serve up to `max_batch` sequences at a time."""
        self.model = model
        self.rows: Rows[TicketT] = Rows(max_batch)
        self.reset()

    def reset(self) -> None:
        """Drop all sequences and the memory of the cache."""
        self.rows = Rows(self.rows.capacity)
        self.model.forget()
        self._tokens = torch.empty(0, dtype=torch.int64)
        """[B] the last token of each row, which the next pass continues."""
        self._rules: Rules | None = None
        """None: to be collected anew, as the batch has changed."""

    def room(self) -> int:
        """Return how many sequences may join."""
        return self.rows.capacity - len(self.rows)

    def limit(self, request: GenerateRequest) -> int:
        """Return the most tokens that `request` can get: its own limit, or where the model's positions end."""
        wanted, positions = request.sampling.max_new_tokens, self.model.max_positions
        return wanted if positions is None else min(wanted, positions - len(request.token_ids))

    def admit(self, requests: Sequence[tuple[TicketT, GenerateRequest]], version: int) -> None:
        """Let sequences join; at most `room()` of them, sorted by length where speed matters."""
        if not requests:
            return
        first, device, cache = len(self.rows), self.model.device, self.model.cache
        order, sources = shared_prefills([request for _, request in requests])
        num_leaders = len(set(sources))
        longest = max(len(request.token_ids) for _, request in requests)
        cache.reserve(rows=first + len(order), columns=longest, used=first)
        self.model.prefill([requests[index][1].token_ids[:-1] for index in order[:num_leaders]], first)
        if num_leaders < len(order):
            followers = torch.arange(first + num_leaders, first + len(order), device=device)
            cache.move(followers, torch.tensor(sources[num_leaders:], device=device) + first)
        for place, index in enumerate(order):
            ticket, request = requests[index]
            prefilled = len(request.token_ids) if place < num_leaders else 1
            self.rows.add(ticket, request, limit=self.limit(request), version=version, prefilled=prefilled)
        last = torch.tensor([requests[index][1].token_ids[-1] for index in order], device=device)
        self._tokens = torch.cat([self._tokens.to(device), last])
        self._rules = None

    def step(self) -> list[Ended[TicketT]]:
        """Sample one token for every sequence; return those that are over."""
        rows, device = self.rows, self.model.device
        lengths = rows.lengths[: len(rows)]
        width = int(lengths.max()) + 1
        self.model.cache.reserve(rows=len(rows), columns=width, used=len(rows))
        logits = self.model.decode(self._tokens, torch.from_numpy(lengths.copy()).to(device), width)
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
        targets = torch.from_numpy(moves.targets).to(self.model.device)
        sources = torch.from_numpy(moves.sources).to(self.model.device)
        if len(targets):
            self.model.cache.move(targets, sources)
            self._tokens[targets] = self._tokens[sources]
        self._tokens = self._tokens[: len(self.rows)]
        self._rules = None
        return ended

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
        self.model.cache.reserve(rows=len(rows), columns=width, used=0)
        following = torch.zeros((len(rows), width), dtype=torch.int64)
        for place, row in enumerate(rows):
            following[place, : max(len(row) - 1, 0)] = torch.tensor(row[1:], dtype=torch.int64)
        following = following.to(self.model.device)
        parts: list[Tensor] = []
        max_tokens = max(_SCORE_NUMBERS // self.model.vocabulary, 1)
        for start, logits in self.model.passes(rows, 0, max_tokens, keep_all=True):
            logits = logits.float()
            chosen = logits.gather(-1, following[:, start : start + logits.shape[1], None])[..., 0]
            parts.append(chosen - torch.logsumexp(logits, dim=-1))
        table = torch.cat(parts, dim=1).double().cpu().tolist()
        return [(0.0, *line[: len(row) - 1]) if row else () for row, line in zip(rows, table, strict=True)]
