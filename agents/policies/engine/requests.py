"""The requests a sampling engine has under way, row by row, and what it requires of one: numbers, no tensor.

Rows 0 .. n-1 are in use, as in the cache; `retire` tells which rows changed places with those that ended.
"""

import math
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, VersionSpan, join_spans
from envgym.core.segments import TopLogprobs
from envgym.errors import InvalidInput, PolicyFailure


def max_sampled_tokens(request: GenerateRequest, *, positions: int | None, where: str) -> int:
    """Return the most tokens that a request can get: its own limit, or where the model's positions end.

    Raises: InvalidInput: an empty context. PolicyFailure: no position is left after the context.
    """
    if not request.token_ids:
        raise InvalidInput.of("context", "hold a token", "none", where=where, do="render a prompt")
    limit, length = request.sampling.max_new_tokens, len(request.token_ids)
    if positions is not None and length >= positions:
        rule = f"leave one of the model's {positions} positions"
        raise PolicyFailure.of("context", rule, f"{length} tokens", where=where, do="lower max_context_tokens")
    return min(limit, _MAX_UNBOUNDED_TOKENS if positions is None else positions - length)


_MAX_SEED = 2**128
"""Of the random numbers' generator."""
_MAX_UNBOUNDED_TOKENS = 1 << 20
"""Longest sample of a model without a limit of positions."""
_MAX_STOPS = 4096


def check_request(request: GenerateRequest, vocabulary: int, *, positions: int | None, where: str) -> None:
    """Check the numbers of a request before it joins a batch, whose other requests it could fail.

    Args:
        request: to be served.
        vocabulary: number of tokens of the model.
        positions: of the model, for context and sample; None: unlimited.
        where: the policy.

    Raises: InvalidInput: a token outside the vocabulary, or a number out of range. PolicyFailure: as
        `max_sampled_tokens`.
    """
    request.sampling.check(where)
    _check_tokens(request.token_ids, vocabulary, where=where)
    sampling, stops = request.sampling, request.sampling.stop_token_ids
    rules = (
        ("temperature", math.isfinite(sampling.temperature), "be a finite number", sampling.temperature),
        ("top_logprobs", sampling.top_logprobs <= vocabulary, f"be at most {vocabulary}", sampling.top_logprobs),
        ("top_k", sampling.top_k < 2**63, "be below 2**63", sampling.top_k),
        ("seed", 0 <= request.seed < _MAX_SEED, "be from 0 to 2**128 - 1", request.seed),
        ("stop tokens", len(stops) <= _MAX_STOPS, f"be at most {_MAX_STOPS}", len(stops)),
        ("stop tokens", all(-(2**63) <= stop < 2**63 for stop in stops), "be numbers of 64 bits", "others"),
    )
    for what, holds, must, got in rules:
        InvalidInput.unless(holds, what, must, got, where=where, do="correct the request")
    max_sampled_tokens(request, positions=positions, where=where)


def check_rows(rows: Sequence[tuple[int, ...]], vocabulary: int, *, positions: int | None, where: str) -> None:
    """Check sequences that are to be scored.

    Raises: InvalidInput: a token outside the vocabulary, or more tokens than the model has positions.
    """
    for row in filter(None, rows):
        _check_tokens(row, vocabulary, where=where)
        must, do = f"have at most {positions} tokens", "score a shorter sequence"
        InvalidInput.unless(positions is None or len(row) <= positions, "sequence", must, len(row), where=where, do=do)


def _check_tokens(token_ids: tuple[int, ...], vocabulary: int, *, where: str) -> None:
    if not token_ids:
        raise InvalidInput.of("context", "hold a token", "none", where=where, do="render a prompt")
    least, most = min(token_ids), max(token_ids)
    if least < 0 or most >= vocabulary:
        do = "use the tokenizer of the model that is served"
        raise InvalidInput.of(
            "token ids", f"be from 0 to {vocabulary - 1}", least if least < 0 else most, where=where, do=do
        )


TicketT = TypeVar("TicketT")
"""What the caller knows a request by."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_TOKEN, _BEHAVIOR, _RAW = range(3)


class FinishedRow(NamedTuple, Generic[TicketT]):
    """A finished row; no generation where the model's numbers were not finite."""

    ticket: TicketT
    generation: Generation | None


class RowSwaps(NamedTuple):
    """Rows that change places, in the cache and wherever else rows lie: `targets[i]` becomes what `sources[i]` was."""

    targets: Ints
    sources: Ints


class BatchRows(Generic[TicketT]):
    """Up to `capacity` sequences."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tickets: list[TicketT] = []
        self.requests: list[GenerateRequest] = []
        self.lengths: Ints = np.zeros(capacity, np.int64)
        """Tokens whose keys and values are in the cache."""
        self._counts: Ints = np.zeros(capacity, np.int64)
        self._limits: Ints = np.zeros(capacity, np.int64)
        self._versions: list[list[tuple[int, int]]] = []
        """Of each row in use, the versions that sampled it, each with the number of its first token."""
        self._prefilled: Ints = np.zeros(capacity, np.int64)
        self._stops: Ints = np.full((capacity, 0), -1, np.int64)
        self._numbers: Floats = np.zeros((capacity, 0))
        self._sampled: Floats = np.zeros((3, capacity, 0))
        self._top: list[list[TopLogprobs]] = []
        """Of each row in use, the most probable tokens at every place sampled so far, where it asks for them."""
        self._all: Ints = np.arange(capacity)

    def __len__(self) -> int:
        return len(self.tickets)

    def add(self, ticket: TicketT, request: GenerateRequest, *, limit: int, version: int, prefilled: int) -> None:
        """Begin a row whose context, but for its last token, is in the cache."""
        row = len(self.tickets)
        stops = request.sampling.stop_token_ids
        self._widen(limit, len(stops))
        self.tickets.append(ticket)
        self.requests.append(request)
        self._top.append([])
        self.lengths[row] = len(request.token_ids) - 1
        self._counts[row], self._limits[row] = 0, limit
        self._versions.append([(version, 0)])
        self._prefilled[row] = prefilled
        self._stops[row] = -1
        self._stops[row, : len(stops)] = stops
        self._numbers[row, :limit] = np.random.Generator(np.random.Philox(key=request.seed)).random(limit)

    def numbers(self) -> Floats:
        """Return [B] the random number of each row's next token: number k of the request's own seed for token k."""
        num_rows = len(self.tickets)
        return self._numbers[self._all[:num_rows], self._counts[:num_rows]]

    def take(self, tokens: Ints, behavior_logprobs: Floats, raw_logprobs: Floats) -> Bools:
        """Append a token to every row; return [B] which rows are over."""
        num_rows = len(self.tickets)
        counts = self._counts[:num_rows]
        self._sampled[_TOKEN, self._all[:num_rows], counts] = tokens
        self._sampled[_BEHAVIOR, self._all[:num_rows], counts] = behavior_logprobs
        self._sampled[_RAW, self._all[:num_rows], counts] = raw_logprobs
        counts += 1
        self.lengths[:num_rows] += 1
        stopped = (self._stops[:num_rows] == tokens[:, None]).any(axis=1)
        over: Bools = stopped | (counts >= self._limits[:num_rows]) | ~np.isfinite(raw_logprobs)
        return over

    def take_top(self, tokens: list[list[int]], logprobs: list[list[float]]) -> None:
        """Append the most probable tokens [B, k] of the place that is sampled now to the rows that ask for some.

        What cannot be sampled (top-k, top-p) is left out.
        """
        for request, top, ids, values in zip(self.requests, self._top, tokens, logprobs, strict=True):
            if count := request.sampling.top_logprobs:
                pairs = zip(ids[:count], values[:count], strict=True)
                top.append(tuple((token, value) for token, value in pairs if value > -math.inf))

    def change_version(self, version: int) -> None:
        """Sample the next tokens of all rows with other weights, after what the weights before have computed."""
        for versions, count in zip(self._versions, self._counts, strict=False):
            versions.append((version, int(count)))

    def cached(self, row: int) -> Ints:
        """Return the tokens whose keys and values a row holds; none where versions mix, or numbers are not finite."""
        sampled = self._sampled[:, row, : self._counts[row]]
        if len(self._versions[row]) > 1 or not np.isfinite(sampled).all():
            return np.zeros(0, np.int64)
        context = np.array(self.requests[row].token_ids, np.int64)
        return np.concatenate([context, sampled[_TOKEN].astype(np.int64)])[: self.lengths[row]]

    def retire(self, over: Bools) -> tuple[list[FinishedRow[TicketT]], RowSwaps]:
        """Take the rows out that are over; the last rows that are not take their places."""
        ended = [FinishedRow(self.tickets[row], self._generation(row)) for row in np.flatnonzero(over).tolist()]
        left = len(self.tickets) - len(ended)
        targets = np.flatnonzero(over[:left])
        sources = left + np.flatnonzero(~over[left:])
        for numbers in (self.lengths, self._counts, self._limits, self._prefilled):
            numbers[targets] = numbers[sources]
        self._stops[targets] = self._stops[sources]
        self._numbers[targets] = self._numbers[sources]
        self._sampled[:, targets] = self._sampled[:, sources]
        for target, source in zip(targets.tolist(), sources.tolist(), strict=True):
            self.tickets[target], self.requests[target] = self.tickets[source], self.requests[source]
            self._top[target], self._versions[target] = self._top[source], self._versions[source]
        del self.tickets[left:], self.requests[left:], self._top[left:], self._versions[left:]
        return ended, RowSwaps(targets, sources)

    def _generation(self, row: int) -> Generation | None:
        count = int(self._counts[row])
        sampled = self._sampled[:, row, :count]
        if not np.isfinite(sampled).all():
            return None
        tokens = tuple(sampled[_TOKEN].astype(np.int64).tolist())
        is_stopped = tokens[-1] in self.requests[row].sampling.stop_token_ids
        versions = self._versions[row]
        ends = [start for _, start in versions[1:]] + [count]
        spans = join_spans(
            VersionSpan(version, end - start) for (version, start), end in zip(versions, ends, strict=True)
        )
        return Generation(
            token_ids=tokens,
            behavior_logprobs=tuple(sampled[_BEHAVIOR].tolist()),
            raw_logprobs=tuple(sampled[_RAW].tolist()),
            finish_reason=FinishReason.STOP if is_stopped else FinishReason.LENGTH,
            policy_version=spans[0].policy_version,
            version_spans=spans if len(spans) > 1 else (),
            num_prefilled=int(self._prefilled[row]),
            top_logprobs=tuple(self._top[row]) if self.requests[row].sampling.top_logprobs else None,
        )

    def _widen(self, limit: int, num_stops: int) -> None:
        extra = limit - self._numbers.shape[1]
        if extra > 0:
            self._numbers = np.pad(self._numbers, ((0, 0), (0, extra)))
            self._sampled = np.pad(self._sampled, ((0, 0), (0, 0), (0, extra)))
        more = num_stops - self._stops.shape[1]
        if more > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, more)), constant_values=-1)


def canonical(request: GenerateRequest) -> tuple[int, tuple[int, ...], int]:
    """Return the key that requests are sorted by, so that a batch does not depend on which one came first."""
    return len(request.token_ids), request.token_ids, request.seed
