"""What may stop a run later: micro-batches that seem too large for the memory."""

import warnings
from collections.abc import Sequence

from envgym.agents.models.loading import free_memory
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.memory import micro_batch_memory, state_memory, too_many_tokens
from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings


def check_memory(
    learners: Sequence[Learner], optim: OptimSettings, objective: ObjectiveSettings, *, tokens_per_step: int
) -> None:
    """Warn where a full micro-batch will not fit the memory that is free, before anything is sampled.

    What a step adds to the weights are gradients, the optimizer's numbers and the reference of a KL term, of every
    learner, and what the most demanding micro-batch holds; the sampler's cache is not counted. Where all episodes of a
    step, as long as they may be, have fewer tokens (`tokens_per_step`) than a full micro-batch, these count.
    """
    policy = learners[0]
    free = free_memory(policy.device)
    if free is None:
        return
    added = 0
    for learner in learners:
        has_reference = learner is policy and bool(objective.kl_coef)
        weights = state_memory(learner.model, learner.optim, reference=False).weights
        added += state_memory(learner.model, learner.optim, reference=has_reference).total - weights
    tokens = min(optim.micro_batch_tokens, tokens_per_step)
    memory = max((micro_batch_memory(learner.probe) for learner in learners), key=lambda estimate: estimate.of(tokens))
    needed = added + memory.of(tokens)
    if needed > free:
        sizes = f"{needed / 2**30:.1f} GiB are needed and {free / 2**30:.1f} GiB are free"
        got = f"{optim.micro_batch_tokens} where {sizes}"
        fitting = memory.fitting(free - added)
        warnings.warn(too_many_tokens(got, where=policy.device, fitting=fitting), stacklevel=2)
