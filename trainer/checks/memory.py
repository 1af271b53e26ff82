"""What may stop a run later: micro-batches that seem too large for the memory."""

import warnings
from collections.abc import Sequence

from envgym.agents.models.loading import free_memory
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.memory import micro_batch_memory, state_memory, too_many_tokens
from envgym.trainer.settings import TrainSettings


def check_memory(learners: Sequence[Learner], settings: TrainSettings) -> None:
    """Warn where a full micro-batch will not fit the memory that is free, before anything is sampled.

    What a step adds to the weights are gradients, AdamW's moments and the reference of a KL term, of every learner, and
    what the most demanding micro-batch holds; the sampler's cache is not counted. Where all episodes of a step, as long
    as they may be, have fewer tokens than a full micro-batch, these count.
    """
    policy, optim = learners[0], settings.optim
    free = free_memory(policy.device)
    if free is None:
        return
    added = 0
    for learner in learners:
        has_reference = learner is policy and bool(settings.objective.kl_coef)
        held = state_memory(learner.model, reference=False).weights
        added += state_memory(learner.model, reference=has_reference).total - held
    in_step = settings.rollout.groups * settings.rollout.group_size * settings.agent.max_context_tokens
    tokens = min(optim.micro_batch_tokens, in_step)
    memory = max((micro_batch_memory(learner.probe) for learner in learners), key=lambda found: found.of(tokens))
    needed = added + memory.of(tokens)
    if needed > free:
        sizes = f"{needed / 2**30:.1f} GiB are needed and {free / 2**30:.1f} GiB are free"
        got = f"{optim.micro_batch_tokens} where {sizes}"
        fitting = memory.fitting(free - added)
        warnings.warn(too_many_tokens(got, where=policy.device, fitting=fitting), stacklevel=2)
