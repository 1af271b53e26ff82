"""The weight canary: after every weight update, does the policy sample from the weights that the learner trained?

The policy continues a fixed prompt, through its cache as in every rollout, and the learner computes log-probs of the
same tokens. The two must agree, and the policy's must move when the learner's do. That catches an update that never
arrived or arrived in part, adapters that were not applied, a cache of old weights, and log-probs of another
distribution than the one sampled from.
"""

import asyncio
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
"""The prompt, plain enough for any tokenizer."""
MAX_PROMPT: Final = 48
"""Tokens of it: more than a block of any engine's cache, so that a stale one would show."""
NUM_SAMPLES: Final = 8
NUM_TOKENS: Final = 2
"""Of each sample; the second is sampled after keys and values that the first has left in the cache."""
_MIN_MOVED_SHARE: Final = 0.1
"""A policy that moves by less than this share of what the learner moves does not have the weights."""

ComputeLogprobs = Callable[[Sequence[TrainRow]], Sequence[Sequence[float]]]
"""The learner's log-probs of rows at temperature 1, one list a row, of which the masked positions count."""


@dataclass(frozen=True, slots=True)
class _CanaryReading:
    """The continuations, and the log-probs of their tokens by policy and learner, when the policy last moved."""

    token_ids: list[tuple[int, ...]]
    """Of each sample."""
    policy_logprobs: list[tuple[float, ...]]
    """Of each sample's tokens."""
    learner_logprobs: list[tuple[float, ...]]
    """Of each sample's tokens."""


class WeightCanary:
    """Checks the policy's weights after every update; the first check only compares."""

    def __init__(self, settings: CanarySettings, prompt: Sequence[int]) -> None:
        """Take the prompt, of which the first tokens are used."""
        self._settings, self._prompt = settings, tuple(prompt[:MAX_PROMPT])
        self._last: _CanaryReading | None = None

    async def check(self, policy: Policy, compute_logprobs: ComputeLogprobs, *, step: int) -> Metrics:
        """Return the gap between policy and learner, and by how much the learner moved, as means in nats.

        The moves are those of the samples whose tokens are the last time's. If there is none, the policy has moved, and
        the learner's move is that of all of the last time's samples.

        Raises: RunError: the policy's weights are not the learner's. PolicyFailure: the engine died twice.
        """
        samples = await asyncio.gather(*[self._sample(policy, seed) for seed in range(NUM_SAMPLES)])
        token_ids = [sample.token_ids for sample in samples]
        policy_logprobs = [sample.behavior_logprobs for sample in samples]
        last, where = self._last, f"canary, step {step}"
        learner_logprobs = self._logprobs(compute_logprobs, token_ids)
        gap = _mean_distance(policy_logprobs, learner_logprobs)
        metrics = {"canary/gap": gap}
        policy_moved = math.inf
        if last is not None:
            kept = [k for k, tokens in enumerate(token_ids) if tokens == last.token_ids[k]]
            if kept:
                now, before = [learner_logprobs[k] for k in kept], [last.learner_logprobs[k] for k in kept]
                policy_moved = _mean_distance(
                    [policy_logprobs[k] for k in kept], [last.policy_logprobs[k] for k in kept]
                )
            else:
                now, before = self._logprobs(compute_logprobs, last.token_ids), last.learner_logprobs
            metrics["canary/moved"] = moved = _mean_distance(now, before)
            if moved > self._settings.min_move and policy_moved < _MIN_MOVED_SHARE * moved:
                do = "the new weights did not reach the sampler: check its update_weights and its cache"
                got = f"no change while the learner's moved by {moved:.3g} nats"
                raise RunError(sentence("the sampler's log-probs", "move with the learner's", got, where=where, do=do))
        if not gap <= self._settings.max_gap:
            must, got = f"match the learner's within {self._settings.max_gap:g} nats", f"{gap:.3g}"
            do = "see docs/engines.md for what differs, or raise canary.max_gap if this is numerical precision"
            raise RunError(sentence("the sampler's log-probs", must, got, where=where, do=do))
        if policy_moved > 0:
            self._last = _CanaryReading(token_ids, policy_logprobs, learner_logprobs)
        return metrics

    async def _sample(self, policy: Policy, seed: int) -> Generation:
        """Continue the prompt; an engine that died gets a second request, as it may be started again."""
        sampling = Sampling(max_new_tokens=NUM_TOKENS)
        request = GenerateRequest(token_ids=self._prompt, sampling=sampling, seed=seed)
        try:
            return await policy.generate(request)
        except PolicyFailure:
            return await policy.generate(request)

    def _logprobs(
        self, compute_logprobs: ComputeLogprobs, samples: Sequence[tuple[int, ...]]
    ) -> list[tuple[float, ...]]:
        """Return the learner's log-probs of the tokens of each sample.

        The samples of a step are a batch of their own: a resumed run has no earlier ones, and must get the same bits.
        """
        first = len(self._prompt)
        rows = [scored_row(self._prompt + tokens, first=first) for tokens in samples]
        return [tuple(logprobs[first : len(row)]) for logprobs, row in zip(compute_logprobs(rows), rows, strict=True)]


def _mean_distance(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> float:
    """Return the mean absolute difference over the tokens of all samples."""
    pairs = [(a, b) for one, other in zip(left, right, strict=True) for a, b in zip(one, other, strict=True)]
    return sum(abs(a - b) for a, b in pairs) / max(len(pairs), 1)
