"""How long episodes are, and how a step deals them out to engines and micro-batches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from envgym.core.tree import Tree
from envgym.trainer.settings import TrainSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What settings do not state: how long episodes are."""

    turns: int = 4
    """Turns of an episode."""
    prompt_tokens: int = 512
    """Tokens of the first context, which the episodes of a group share."""
    turn_tokens: int = 128
    """Tokens that the policy samples in a turn."""
    reply_tokens: int = 128
    """Tokens of an environment's reply; the last turn has none."""
    env_s: float = 0.0
    """Seconds that the environment takes for a turn."""

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> "Workload":
        """Return the mean lengths of episodes that are chains and have at least a turn; `env_s` is left out."""
        prompts = fmean(tree.nodes[0].edge.num_tokens for tree in trees)
        turns = max(1.0, fmean(sum(node.edge.ends_turn for node in tree.nodes) for tree in trees))
        sampled = fmean(tree.cost.tokens_generated for tree in trees)
        context = fmean(sum(node.edge.num_tokens for node in tree.nodes) for tree in trees)
        return cls(
            turns=round(turns),
            prompt_tokens=round(prompts),
            turn_tokens=round(sampled / turns),
            reply_tokens=round((context - prompts - sampled) / max(turns - 1, 1)),
        )

    @property
    def context(self) -> int:
        """Tokens of an episode at its end; without turns, those of its prompt."""
        return self.prompt_tokens + self.turns * self.turn_tokens + self.replies

    @property
    def replies(self) -> int:
        """Tokens of all replies of an episode."""
        return max(0, self.turns - 1) * self.reply_tokens

    @property
    def mean_context(self) -> float:
        """Tokens before a sampled token, the mean over the tokens of all turns."""
        of_turns = max(0, self.turns - 1) / 2 * (self.turn_tokens + self.reply_tokens)
        return self.prompt_tokens + of_turns + self.turn_tokens / 2


def num_episodes(settings: TrainSettings) -> int:
    """Return how many episodes a step samples."""
    rollout = settings.rollout
    return math.ceil(rollout.groups * rollout.group_size * rollout.oversampling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The micro-batches of a pass over the rows of a step, in all of its minibatches."""

    tokens: int
    """Tokens that all micro-batches compute together."""
    pairs: float
    """Pairs of a token and one that it attends, in all micro-batches."""
    batches: int
    """Micro-batches of the learner rank that has the most."""
    largest: int
    """Tokens of the largest micro-batch."""

    @classmethod
    def of(cls, settings: TrainSettings, workload: Workload, *, is_coupled: bool) -> "Packing":
        """Deal rows into minibatches, and those of a group in a minibatch into micro-batches.

        A micro-batch has all rows that a minibatch has of some groups. If those of one group do not fit, it has some of
        them, at least a row. A pack has the prompt of each of its groups once, so every minibatch and every pack of a
        group repeats the prompt.

        Args:
            settings: of the run.
            workload: lengths of the episodes.
            is_coupled: whether the objective couples rows, so that a minibatch has whole groups.
        """
        groups, size, updates = _minibatch(settings, is_coupled=is_coupled)
        shared, ranks = workload.prompt_tokens, settings.launch.learners
        if not settings.optim.packing:
            groups, size, shared = groups * size, 1, 0
        limit, row = settings.optim.micro_batch_tokens, workload.context - shared
        group, of_rank = shared + size * row, math.ceil(groups / ranks)
        if group <= limit:
            packs, fitting = groups, limit // group
            batches, largest = math.ceil(of_rank / fitting), min(fitting, of_rank) * group
        else:
            rows = min(math.ceil(size), max(1, (limit - shared) // max(1, row)))
            packs = groups * math.ceil(size / rows)
            batches, largest = math.ceil(packs / ranks), shared + rows * row
        tokens = packs * shared + groups * size * row
        pairs = packs * shared**2 / 2 + groups * size * row * (shared + row / 2)
        return cls(
            tokens=round(updates * tokens), pairs=updates * pairs, batches=updates * batches, largest=math.ceil(largest)
        )


def _minibatch(settings: TrainSettings, *, is_coupled: bool) -> tuple[float, float, int]:
    """Return the mean number of groups in a minibatch, of rows of such a group, and the number of minibatches."""
    groups, size, updates = settings.rollout.groups, settings.rollout.group_size, settings.optim.minibatches
    if is_coupled:
        updates = min(updates, groups)
        return groups / updates, size, updates
    updates = min(updates, groups * size)
    rows = groups * size / updates
    dealt = min(groups, rows)
    return dealt, rows / dealt, updates
