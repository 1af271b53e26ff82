"""DUMP: sources are drawn by how much is still learned from them, as an upper confidence bound."""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, PrivateAttr

from envgym.seeds import generator
from envgym.trainer.methods.curricula.base import LearningCurriculum
from envgym.trainer.methods.curricula.uniform import ENDLESS
from envgym.trainer.methods.protocols import CurriculumContext, StepOutcome, TaskRequest, TrajectoryCredit


class Dump(LearningCurriculum):
    """Draw the env of every group by softmax(score / τ), and one of its tasks uniformly, with replacement.

    score_j = μ_j + √(2 ln(N + 1) / (n_j + 1)), where μ_j is the mean |A| of the last `window` episodes of env j, n_j
    the number of its episodes so far and N = Σ n_j. |A| is the mean size of the advantages of an episode's tokens; a
    valid episode that did not train, as its group had no spread, counts 0. All envs are alike at first, whatever their
    `weight`.

    Source: 2504.09710, the authors' code, without its entries from evaluations.
    """

    name: ClassVar[str] = "dump"
    chooses_envs: ClassVar[bool] = True
    window: int = Field(default=300, ge=1)
    """Newest episodes of an env over which the size of advantages is averaged."""
    temperature: float = Field(default=0.1, gt=0)
    """Temperature τ of the softmax over scores."""
    _sizes: dict[str, deque[float]] = PrivateAttr(default_factory=dict)
    """Env -> |A| of its last episodes."""
    _counts: dict[str, int] = PrivateAttr(default_factory=dict)
    """Env -> episodes so far."""

    def scores(self, envs: Sequence[str]) -> list[float]:
        total = sum(self._counts.values())
        return [
            (statistics.fmean(self._sizes[env]) if self._sizes.get(env) else 0.0)
            + math.sqrt(2 * math.log(total + 1) / (self._counts.get(env, 0) + 1))
            for env in envs
        ]

    def probabilities(self, envs: Sequence[str]) -> list[float]:
        scores = np.array(self.scores(envs)) / self.temperature
        weights = np.exp(scores - scores.max())
        return [float(share) for share in weights / weights.sum()]

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        draws = generator(context.seed, self.name, context.step)
        shares = self.probabilities([supply.name for supply in context.supplies])
        supplies = [context.supplies[owner] for owner in draws.choice(len(shares), size=context.num_groups, p=shares)]
        indices = [int(draws.integers(supply.size or ENDLESS)) for supply in supplies]
        pairs = zip(supplies, indices, strict=True)
        return [TaskRequest(supply.name, index, context.group_size) for supply, index in pairs]

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Take in the size of every valid episode's advantage."""
        sizes = {(item.trajectory.tree.id, item.trajectory.leaf): advantage_size(item) for item in outcome.credits}
        for request, group in outcome.pairs:
            new_sizes = [sizes.get((episode.tree.id, episode.leaf), 0.0) for episode in group.valid]
            self._sizes.setdefault(request.env, deque(maxlen=self.window)).extend(new_sizes)
            self._counts[request.env] = self._counts.get(request.env, 0) + len(new_sizes)
        envs = list(self._counts)
        return {f"probability/{env}": share for env, share in zip(envs, self.probabilities(envs), strict=True)}

    def state(self) -> dict[str, Any]:
        """Return the sizes of advantages and the number of episodes of every env."""
        return {env: {"sizes": list(self._sizes[env]), "episodes": count} for env, count in self._counts.items()}

    def restore(self, state: dict[str, Any]) -> None:
        self._sizes = {env: deque(seen["sizes"], maxlen=self.window) for env, seen in state.items()}
        self._counts = {env: seen["episodes"] for env, seen in state.items()}


def advantage_size(credit: TrajectoryCredit) -> float:
    """Return the mean |A| of an episode's sampled tokens."""
    sizes: list[float] = []
    for node, entry in zip(credit.trajectory.path, credit.advantages, strict=True):
        edge = credit.trajectory.tree.nodes[node].edge
        num_sampled = sum(len(segment) for segment in edge.segments if segment.trains)
        sizes += map(abs, entry) if isinstance(entry, tuple) else [abs(entry)] * num_sampled
    return statistics.fmean(sizes) if sizes else 0.0
