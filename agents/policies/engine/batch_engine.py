"""Decode many sequences together with one transformers model: prefill, one token for all, compact, again.

Sequences join and leave between tokens. A sequence's tokens depend on its request and on the weights; other rows of
the batch can change them only through rounding, where a random number falls within rounding of a boundary.
What a context shares with a sequence that is under way, has just ended, or joins with it, is not computed again: the
turns of an episode before, the system prompt of other tasks, the context of the samples of a group.
"""

from collections.abc import Sequence
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from envgym.agents.policies.engine.cached_model import CachedModel
from envgym.agents.policies.engine.prefixes import PrefixTable
from envgym.agents.policies.engine.requests import BatchRows, Bools, FinishedRow, Ints, TicketT, max_sampled_tokens
from envgym.agents.policies.engine.sampling import SamplingRules, sample
from envgym.agents.protocols import GenerateRequest

_MAX_HELD_LOGITS = 1 << 26
"""Most logits held while scoring (256 MiB in float32)."""


class BatchEngine(Generic[TicketT]):
    """The sequences under way. Not for several threads at once, and only while the model is `serving`."""

    def __init__(self, model: CachedModel, *, max_batch: int) -> None:
        self.model = model
        self.rows: BatchRows[TicketT] = BatchRows(max_batch)
        self.reset()

    def reset(self) -> None:
        """Drop all sequences and the memory of the cache."""
        self.rows = BatchRows(self.rows.capacity)
        self._prefixes = PrefixTable(self.rows.capacity)
        self.model.forget()
        self._tokens = torch.empty(0, dtype=torch.int64)
        """[B] the last token of each row, which the next pass continues."""
        self._rules: SamplingRules | None = None
        """None: to be collected anew, as the batch has changed."""

    def clear_prefix_cache(self) -> None:
        """Compute every context anew from now on."""
        self._prefixes.forget()

    def forget_weights(self) -> None:
        """Compute everything anew from now on, as the weights have changed."""
        self.clear_prefix_cache()
        self.model.forget_weights()

    def change_version(self, version: int) -> None:
        """Let the sequences under way go on with new weights, after the keys and values that the old ones computed."""
        self.forget_weights()
        self.rows.change_version(version)

    def room(self) -> int:
        """Return how many sequences may join."""
        return self.rows.capacity - len(self.rows)

    def admit(self, requests: Sequence[tuple[TicketT, GenerateRequest]], version: int) -> None:
        """Let sequences join; at most `room()` of them, sorted by length where speed matters."""
        if not requests:
            return
        device, cache = self.model.device, self.model.cache
        contexts = [request.token_ids[:-1] for _, request in requests]
        waves = self._prefixes.admit(contexts, len(self.rows))
        longest = max(len(context) for context in contexts) + 1
        cache.reserve(rows=max(len(self._prefixes), len(self.rows) + len(requests)), columns=longest)
        for wave in waves:
            self._copy(wave.targets, wave.sources, self._prefixes.width)
            self.model.prefill([contexts[index] for index in wave.contexts], wave.starts, wave.first_row)
            for index, start in zip(wave.contexts, wave.starts, strict=True):
                ticket, request = requests[index]
                limit = max_sampled_tokens(request, positions=self.model.max_positions, where="BatchEngine")
                prefilled = len(request.token_ids) - start
                self.rows.add(ticket, request, limit=limit, version=version, prefilled=prefilled)
        last = [requests[index][1].token_ids[-1] for wave in waves for index in wave.contexts]
        self._tokens = torch.cat([self._tokens.to(device), torch.tensor(last, device=device)])
        self._rules = None

    def step(self) -> list[FinishedRow[TicketT]]:
        """Sample one token for every sequence; return those that are over."""
        rows, device = self.rows, self.model.device
        lengths = rows.lengths[: len(rows)]
        width = int(lengths.max()) + 1
        self.model.cache.reserve(rows=len(rows), columns=width)
        logits = self.model.decode(self._tokens, torch.from_numpy(lengths.copy()).to(device), width)
        if self._rules is None:
            self._rules = SamplingRules.of([request.sampling for request in rows.requests], logits.shape[-1], device)
        sampled = sample(logits, self._rules, torch.from_numpy(rows.numbers()).to(device))
        self._tokens = sampled.tokens
        parts = (sampled.tokens, sampled.behavior_logprobs, sampled.raw_logprobs)
        tokens, behavior, raw = torch.stack([part.double() for part in parts]).cpu().numpy()
        if sampled.top is not None:
            rows.take_top(sampled.top.indices.tolist(), sampled.top.values.double().tolist())
        over = rows.take(tokens.astype(np.int64), behavior, raw)
        return self._retire(over) if over.any() else []

    def drop(self, is_abandoned: Sequence[bool]) -> list[FinishedRow[TicketT]]:
        """Take sequences out that nobody waits for; return them."""
        return self._retire(np.array(is_abandoned))

    def _retire(self, over: Bools) -> list[FinishedRow[TicketT]]:
        width = int(self.rows.lengths[: len(self.rows)].max())
        for row in np.flatnonzero(over).tolist():
            self._prefixes.retire(row, self.rows.cached(row))
        ended, (targets, sources) = self.rows.retire(over)
        self._prefixes.swap(targets, sources)
        self._copy(np.concatenate([targets, sources]), np.concatenate([sources, targets]), width)
        device = self.model.device
        self._tokens[torch.from_numpy(targets).to(device)] = self._tokens[torch.from_numpy(sources).to(device)]
        self._tokens = self._tokens[: len(self.rows)]
        self._rules = None
        return ended

    def _copy(self, targets: Ints, sources: Ints, width: int) -> None:
        if len(targets):
            device = self.model.device
            self.model.cache.move(torch.from_numpy(targets).to(device), torch.from_numpy(sources).to(device), width)

    # ---- scoring -------------------------------------------------------------------------------------------------

    def compute_logprobs(self, rows: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return the raw log-prob of every token given those before it, 0.0 for the first; no sequence is under way."""
        assert not len(self.rows), "scoring uses the cache"
        self._prefixes.forget()
        order = sorted(range(len(rows)), key=lambda index: (len(rows[index]), rows[index]))
        logprobs_by_index: dict[int, tuple[float, ...]] = {}
        for begin in range(0, len(order), self.rows.capacity):
            batch = order[begin : begin + self.rows.capacity]
            for index, logprobs in zip(batch, self._compute_logprobs([rows[index] for index in batch]), strict=True):
                logprobs_by_index[index] = logprobs
        return [logprobs_by_index[index] for index in range(len(rows))]

    def _compute_logprobs(self, rows: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        width = max(len(row) for row in rows)
        if not width:
            return [() for _ in rows]
        self.model.cache.reserve(rows=len(rows), columns=width)
        following = torch.zeros((len(rows), width), dtype=torch.int64)
        for place, row in enumerate(rows):
            following[place, : max(len(row) - 1, 0)] = torch.tensor(row[1:], dtype=torch.int64)
        following = following.to(self.model.device)
        parts: list[Tensor] = []
        max_tokens = max(_MAX_HELD_LOGITS // self.model.vocabulary, 1)
        for start, logits in self.model.passes(rows, [0] * len(rows), 0, max_tokens, keep_all=True):
            logits = logits.float()
            token_logits = logits.gather(-1, following[:, start : start + logits.shape[1], None])[..., 0]
            parts.append(token_logits - torch.logsumexp(logits, dim=-1))
        table = torch.cat(parts, dim=1).double().cpu().tolist()
        return [(0.0, *line[: len(row) - 1]) if row else () for row, line in zip(rows, table, strict=True)]
