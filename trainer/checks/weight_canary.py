"""The weight canary: after every weight update, does the policy sample from the weights that the learner trained?

The policy continues a fixed prompt, through its cache as in every rollout, and the learner computes log-probs of the
same tokens. The two must agree, and the policy's must move when the learner's do. That catches an update that never
arrived or arrived in part, adapters that were not applied, a cache of old weights, and log-probs of another
distribution than the one sampled from.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from envgym.agents.protocols import GenerateRequest, Generation, Policy, Sampling
from envgym.errors import PolicyFailure, RunError, sentence
from envgym.trainer.batch.rows import TrainRow, scored_row
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.sections import CanarySettings

TEXT: Final = (
    "A miner carried a small bird into the dark, because it fell silent long before he could notice that the air had "
    "changed. Each morning he counted the steps down, 12 and then 30 and then 7 more, wrote the sum on a slate beside "
    "the gate, and asked the keeper to check it. What is 12 + 30 + 7? The keeper looked at the slate, said"
)
"""The prompt: long enough to fill several blocks of a cache, plain enough for any tokenizer."""
MAX_PROMPT: Final = 192
NUM_TOKENS: Final = 16
_MIN_MOVED_SHARE: Final = 0.1
"""A policy that moves by less than this share of what the learner moves does not have the weights."""

ComputeLogprobs = Callable[[Sequence[TrainRow]], Sequence[Sequence[float]]]
"""The learner's log-probs of rows at temperature 1, one list a row, of which the masked positions count."""


@dataclass(frozen=True, slots=True)
class _CanaryReading:
    """The continuation, and its log-probs by the learner, when the policy last moved."""

    generation: Generation
    learner_logprobs: list[float]


class WeightCanary:
    """Checks the policy's weights after every update; the first check only compares."""

    def __init__(self, settings: CanarySettings, prompt: Sequence[int]) -> None:
        """Take the prompt, of which the first tokens are used."""
        self._settings, self._prompt = settings, tuple(prompt[:MAX_PROMPT])
        self._last: _CanaryReading | None = None

    async def check(self, policy: Policy, compute_logprobs: ComputeLogprobs, *, step: int) -> Metrics:
        """Return the gap between policy and learner, and by how much the learner moved, as means in nats.

        Raises: RunError: the policy's weights are not the learner's. PolicyFailure: the engine died twice.
        """
        generation = await self._sample(policy)
        last, where = self._last, f"canary, step {step}"
        logprobs = self._logprobs(compute_logprobs, generation)
        gap = _mean_distance(generation.behavior_logprobs, logprobs)
        metrics = {"canary/gap": gap}
        if last is not None:
            moved = _mean_distance(self._logprobs(compute_logprobs, last.generation), last.learner_logprobs)
            metrics["canary/moved"] = moved
            policy_moved = _distance_moved(generation, last.generation)
            if moved > self._settings.min_move and policy_moved < _MIN_MOVED_SHARE * moved:
                do = "the new weights did not reach the sampler: look at its update_weights and its cache"
                got = f"no change while the learner's moved by {moved:.3g} nats"
                raise RunError(sentence("the sampler's log-probs", "move with the learner's", got, where=where, do=do))
        if not gap <= self._settings.max_gap:
            must, got = f"match the learner's within {self._settings.max_gap:g} nats", f"{gap:.3g}"
            do = "see docs/engines.md for what differs, or raise canary.max_gap if the engines compute so coarsely"
            raise RunError(sentence("the sampler's log-probs", must, got, where=where, do=do))
        if last is None or _distance_moved(generation, last.generation) > 0:
            self._last = _CanaryReading(generation, logprobs)
        return metrics

    async def _sample(self, policy: Policy) -> Generation:
        """Continue the prompt; an engine that died gets a second request, as it may be started again."""
        sampling = Sampling(max_new_tokens=NUM_TOKENS)
        request = GenerateRequest(token_ids=self._prompt, sampling=sampling, seed=0)
        try:
            return await policy.generate(request)
        except PolicyFailure:
            return await policy.generate(request)

    def _logprobs(self, compute_logprobs: ComputeLogprobs, generation: Generation) -> list[float]:
        """Return the learner's log-probs of a continuation.

        Each continuation is a batch of its own: a resumed run has no earlier one, and must get the same bits.
        """
        row = scored_row(self._prompt + generation.token_ids, first=len(self._prompt))
        return list(compute_logprobs([row])[0][len(self._prompt) : len(row)])


def _distance_moved(now: Generation, before: Generation) -> float:
    """Return how far the policy's log-probs moved; other tokens are infinitely far."""
    if now.token_ids != before.token_ids:
        return math.inf
    return _mean_distance(now.behavior_logprobs, before.behavior_logprobs)


def _mean_distance(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the mean absolute difference."""
    return sum(abs(a - b) for a, b in zip(left, right, strict=True)) / max(len(left), 1)
