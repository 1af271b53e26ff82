"""A canary: after every weight update, are the weights that sample those that have learned?

The sampler continues a fixed prompt, through its cache as in every rollout, and the learner scores the same tokens.
Their log-probs must agree, and the sampler's must move when the learner's do. That catches an update that never
arrived or arrived in part, adapters that were not applied, a cache of old weights, and log-probs of another
distribution than the one sampled from.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from envgym.agents.protocols import GenerateRequest, Generation, Policy, Sampling
from envgym.errors import PolicyFailure, RunError, sentence
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.settings import CanarySettings

TEXT: Final = (
    "A miner carried a small bird into the dark, because it fell silent long before he could notice that the air had "
    "changed. Each morning he counted the steps down, 12 and then 30 and then 7 more, wrote the sum on a slate beside "
    "the gate, and asked the keeper to check it. What is 12 + 30 + 7? The keeper looked at the slate, said"
)
"""What the probe continues: long enough to fill several blocks of a cache, plain enough for any tokenizer."""
MAX_PROMPT: Final = 192
NUM_TOKENS: Final = 16
_STILL: Final = 0.1
"""A sampler that moves by less than this share of what the learner moves has not got the weights."""

Score = Callable[[Sequence[TrainRow]], Sequence[Sequence[float]]]
"""The learner's log-probs of rows at temperature 1, one list a row, of which the masked places count."""


@dataclass(frozen=True, slots=True)
class _Sighting:
    """What both said when the sampler last moved."""

    generation: Generation
    learner: list[float]


class Canary:
    """Looks after every update; the first look only compares."""

    def __init__(self, settings: CanarySettings, prompt: Sequence[int]) -> None:
        """Take the probe's prompt, of which the first tokens are used."""
        self._settings, self._prompt = settings, tuple(prompt[:MAX_PROMPT])
        self._last: _Sighting | None = None

    async def look(self, policy: Policy, score: Score, *, step: int) -> Metrics:
        """Return the gap between sampler and learner, and by how much the learner moved, as means in nats.

        Raises: RunError: the sampler's weights are not the learner's. PolicyFailure: the engine died twice.
        """
        found = await self._ask(policy)
        last, where = self._last, f"canary, step {step}"
        behind = [found] if last is None else [found, last.generation]
        now, *then = self._scores(score, behind)
        gap = _distance(found.behavior_logprobs, now)
        metrics = {"canary/gap": gap}
        if last is not None:
            moved = _distance(then[0], last.learner)
            metrics["canary/moved"] = moved
            if moved > self._settings.min_move and _moved(found, last.generation) < _STILL * moved:
                do = "the new weights did not reach the sampler: look at its update_weights and its cache"
                got = f"no change while the learner's moved by {moved:.3g} nats"
                raise RunError(sentence("the sampler's log-probs", "move with the learner's", got, where=where, do=do))
        if not gap <= self._settings.max_gap:
            must, got = f"match the learner's within {self._settings.max_gap:g} nats", f"{gap:.3g}"
            do = "see docs/engines.md for what differs, or raise canary.max_gap if the engines compute so coarsely"
            raise RunError(sentence("the sampler's log-probs", must, got, where=where, do=do))
        if last is None or _moved(found, last.generation) > 0:
            self._last = _Sighting(found, now)
        return metrics

    async def _ask(self, policy: Policy) -> Generation:
        """Sample behind the prompt; an engine that died is asked once more, as it may be started again."""
        sampling = Sampling(max_new_tokens=NUM_TOKENS)
        request = GenerateRequest(token_ids=self._prompt, sampling=sampling, seed=0)
        try:
            return await policy.generate(request)
        except PolicyFailure:
            return await policy.generate(request)

    def _scores(self, score: Score, generations: Sequence[Generation]) -> list[list[float]]:
        start = len(self._prompt)
        rows = [_row(self._prompt, generation) for generation in generations]
        # One by one: a resumed run has no earlier generation to score beside the new one, and must get the same bits.
        return [list(score([row])[0][start : len(row)]) for row in rows]


def _row(prompt: tuple[int, ...], generation: Generation) -> TrainRow:
    """Lay out prompt and sample, of which the sample is scored."""
    token_ids = prompt + generation.token_ids
    zeros = (0.0,) * len(token_ids)
    return TrainRow(
        token_ids=token_ids,
        loss_mask=(False,) * len(prompt) + (True,) * len(generation.token_ids),
        advantages=zeros,
        behavior_logprobs=zeros,
        weights=(1.0,) * len(token_ids),
    )


def _moved(now: Generation, before: Generation) -> float:
    """Return how far the sampler's log-probs moved; other tokens are as far as can be."""
    if now.token_ids != before.token_ids:
        return math.inf
    return _distance(now.behavior_logprobs, before.behavior_logprobs)


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the mean absolute difference, the measure of everything here."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / max(len(one), 1)
