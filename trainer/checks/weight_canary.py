"""The weight canary: does the policy sample from the weights that the learner trained?

After every update policy and learner compute log-probs of a fixed text: the policy's must move when the learner's do.
Before the next update the two must agree on the step's own samples, whose log-probs the pass that trains computes
anyway. Where these do not tell (the run begins or ends, an evaluation follows, the samples are few, older, or drawn
from a part of the distribution), the policy samples continuations of a fixed prompt for it, after the update.

That catches an update that never arrived or arrived in part, adapters that were not applied, a cache of old weights,
and log-probs of another distribution than the one sampled from.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from envgym.agents.protocols import GenerateRequest, Policy, Sampling
from envgym.core.tree import Source
from envgym.errors import PolicyFailure, RunError
from envgym.trainer.batch.rows import TrainRow, scored_row
from envgym.trainer.learner.train_step import SamplesCheck
from envgym.trainer.methods.corrections import CorrectionStats
from envgym.trainer.methods.row_ids import SAMPLED
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.settings import CanarySettings

TEXT: Final = (
    "A miner carried a small bird into the dark, because it fell silent long before he could notice that the air had "
    "changed. Each morning he counted the steps down, 12 and then 30 and then 7 more, wrote the sum on a slate beside "
    "the gate, and asked the keeper to check it. What is 12 + 30 + 7? The keeper looked at the slate, said"
)
"""Plain enough for any tokenizer."""
MAX_TEXT: Final = 16
"""Tokens of the text of which log-probs are computed: every weight has a part in them, however few they are."""
MAX_PROMPT: Final = 48
"""Tokens of the prompt: more than a block of any engine's cache, so that a stale one would show."""
NUM_SAMPLES: Final = 8
NUM_TOKENS: Final = 2
"""Of each sample; the second is sampled after keys and values that the first has left in the cache."""
_MIN_MOVED_SHARE: Final = 0.1
"""A policy that moves by less than this share of what the learner moves does not have the weights."""

T = TypeVar("T")

ComputeLogprobs = Callable[[Sequence[TrainRow]], Sequence[Sequence[float]]]
"""The learner's log-probs of rows at temperature 1, one list a row, of which the masked positions count."""


@dataclass(frozen=True, slots=True)
class _CanaryReading:
    """What follows a context, once or several times, and the log-probs of its tokens by policy and learner."""

    token_ids: Sequence[tuple[int, ...]]
    policy_logprobs: Sequence[tuple[float, ...]]
    learner_logprobs: Sequence[tuple[float, ...]]

    @property
    def gap(self) -> float:
        """Mean difference between policy and learner, nats."""
        return _mean_distance(self.policy_logprobs, self.learner_logprobs)

    def moves_since(self, last: "_CanaryReading") -> tuple[float, float]:
        """Return by how much policy and learner moved, over the tokens that both have; (0, 0) if there are none."""
        common = [k for k, tokens in enumerate(self.token_ids) if tokens == last.token_ids[k]]
        pairs = (self.policy_logprobs, last.policy_logprobs), (self.learner_logprobs, last.learner_logprobs)
        policy, learner = (_mean_distance([now[k] for k in common], [then[k] for k in common]) for now, then in pairs)
        return policy, learner


class WeightCanary:
    """Checks the policy's weights after every update, and the samples of a step before the next one."""

    def __init__(self, settings: CanarySettings, tokens: Sequence[int]) -> None:
        """Take the tokens with which text and prompt begin."""
        self._settings, self._text, self._prompt = settings, tuple(tokens[:MAX_TEXT]), tuple(tokens[:MAX_PROMPT])
        self._last_text: _CanaryReading | None = None
        self._last_samples: _CanaryReading | None = None
        """Each when the policy last moved."""
        self._sample_gap: float | None = None
        """Of a step's samples, until it is returned; None: they did not tell."""

    def samples_check(self, rows: Sequence[TrainRow], sampling: Sampling | None, *, step: int) -> SamplesCheck | None:
        """Return the check of how far policy and learner differ over the rows of a step, before an update is applied.

        It raises a RunError where they differ by too much. None: the rows do not tell, as they were not all sampled
        from the whole distribution by the weights as they are now.
        """
        is_fresh = all(_is_sampled_by(row, step - 1) for row in rows if row.id.source in SAMPLED)
        if sampling is None or sampling.top_p != 1 or sampling.top_k != 0 or not is_fresh:
            return None
        return partial(self._check_samples, sampling.temperature, step)

    def _check_samples(self, temperature: float, step: int, stats: CorrectionStats) -> None:
        # Rounding is of the logits, and a temperature divides it with them.
        num_tokens, total = int(stats.tokens), temperature * stats.gap_sum.item()
        # Fewer tell less than the prompt does, and a number that is not finite is the learner's to refuse.
        if num_tokens >= NUM_SAMPLES * NUM_TOKENS and math.isfinite(total):
            self._sample_gap = total / num_tokens
            self._check_gap(self._sample_gap, where=f"canary, samples of step {step}")

    def _check_gap(self, gap: float, *, where: str) -> None:
        if not gap <= self._settings.max_gap:
            must, got = f"match the learner's within {self._settings.max_gap:g} nats", f"{gap:.3g}"
            do = "see docs/engines.md for what differs, or raise canary.max_gap if this is numerical precision"
            raise RunError.of("the sampler's log-probs", must, got, where=where, do=do)

    async def check(self, policy: Policy, compute_logprobs: ComputeLogprobs, *, step: int) -> Metrics:
        """Return the gap between policy and learner, and by how much the learner moved, as means in nats.

        The gap is that of the step's samples where they have been checked since the last call, else that of
        continuations of the prompt. The move is that of the text since the policy last moved.

        Raises: RunError: the policy's weights are not the learner's. PolicyFailure: the engine died twice.
        """
        where, metrics = f"canary, step {step}", {}
        reading = await self._read_text(policy, compute_logprobs)
        if self._last_text is not None:
            metrics["canary/moved"] = reading.moves_since(self._last_text)[1]
        self._last_text = self._check_move(reading, self._last_text, where=where)
        gap, self._sample_gap = self._sample_gap, None
        if gap is None:
            reading = await self._read_samples(policy, compute_logprobs)
            self._last_samples = self._check_move(reading, self._last_samples, where=where)
            gap = reading.gap
            self._check_gap(gap, where=where)
        return {"canary/gap": gap, **metrics}

    def _check_move(self, reading: _CanaryReading, last: _CanaryReading | None, *, where: str) -> _CanaryReading:
        """Return the reading when the policy last moved. Raises: RunError: only the learner moved."""
        if last is None:
            return reading
        policy_moved, moved = reading.moves_since(last)
        if moved > self._settings.min_move and policy_moved < _MIN_MOVED_SHARE * moved:
            do = "the new weights did not reach the sampler: check its update_weights and its cache"
            got = f"no change while the learner's moved by {moved:.3g} nats"
            raise RunError.of("the sampler's log-probs", "move with the learner's", got, where=where, do=do)
        return reading if policy_moved > 0 or reading.token_ids != last.token_ids else last

    async def _read_text(self, policy: Policy, compute_logprobs: ComputeLogprobs) -> _CanaryReading:
        # The learner first: its pause ends what is sampled meanwhile, so that the policy need not wait for all of it.
        learner_logprobs = _logprobs(compute_logprobs, self._text[:1], [self._text[1:]])
        (logprobs,) = await _asked_twice(lambda: policy.compute_logprobs([self._text]))
        return _CanaryReading([self._text[1:]], [tuple(logprobs[1:])], learner_logprobs)

    async def _read_samples(self, policy: Policy, compute_logprobs: ComputeLogprobs) -> _CanaryReading:
        sampling = Sampling(max_new_tokens=NUM_TOKENS)
        requests = [GenerateRequest(token_ids=self._prompt, sampling=sampling, seed=k) for k in range(NUM_SAMPLES)]
        samples = await asyncio.gather(*[_asked_twice(partial(policy.generate, request)) for request in requests])
        token_ids = [sample.token_ids for sample in samples]
        learner_logprobs = _logprobs(compute_logprobs, self._prompt, token_ids)
        return _CanaryReading(token_ids, [sample.behavior_logprobs for sample in samples], learner_logprobs)


async def _asked_twice(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask a policy; an engine that died gets a second request, as it may be started again."""
    try:
        return await ask()
    except PolicyFailure:
        return await ask()


def _logprobs(
    compute_logprobs: ComputeLogprobs, context: tuple[int, ...], samples: Sequence[tuple[int, ...]]
) -> list[tuple[float, ...]]:
    """Return the learner's log-probs of the tokens of each sample.

    The samples of a step are a batch of their own: a resumed run has no earlier ones, and must get the same bits.
    """
    first = len(context)
    rows = [scored_row(context + tokens, first=first) for tokens in samples]
    return [tuple(logprobs[first : len(row)]) for logprobs, row in zip(compute_logprobs(rows), rows, strict=True)]


def _is_sampled_by(row: TrainRow, version: int) -> bool:
    if row.id.source is not Source.POLICY or row.id.row is None:
        return False
    return all(segment.policy_version == version for segment in row.id.row.segments if segment.trains)


def _mean_distance(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> float:
    pairs = [(a, b) for one, other in zip(left, right, strict=True) for a, b in zip(one, other, strict=True)]
    return sum(abs(a - b) for a, b in pairs) / max(len(pairs), 1)
