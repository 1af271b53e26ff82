"""ScaleRL's no-positive-resampling: what the policy solves nearly always is not sampled again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from envgym.seeds import generator
from envgym.trainer.methods.curricula.uniform import ENDLESS, Uniform
from envgym.trainer.methods.protocols import CurriculumContext, GroupSource, TaskRequest

_DRAWS = 100
"""Most draws for a place whose task is dropped; a finite env may have nothing else."""


class NoPositiveResampling(GroupSource):
    """Draw as `uniform` does; in place of a task whose mean reward so far is at least `rate`, draw another of its env.

    Where 100 draws find none, the place is left out; where all places are, they are kept, as a step needs tasks. With
    rewards of 0 and 1 the mean reward is the pass rate. Source: 2510.13786 (ScaleRL), with 0.9.
    """

    reads_stats: ClassVar[bool] = True
    rate: float = Field(default=0.9, gt=0)
    """Mean reward from which a task is dropped for good: it is not sampled, so its statistics stay."""

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        uniform_requests = Uniform().choose(context)
        sizes = {supply.name: supply.size or ENDLESS for supply in context.supplies}
        requests: list[TaskRequest] = []
        for place, request in enumerate(uniform_requests):
            draws = generator(context.seed, "no_positive_resampling", context.step, place)
            others = (replace(request, index=int(draws.integers(sizes[request.env]))) for _ in range(_DRAWS))
            unsolved = (item for item in (request, *others) if not self._is_solved(context, item))
            requests += [first for first in [next(unsolved, None)] if first is not None]
        return requests or uniform_requests

    def _is_solved(self, context: CurriculumContext, request: TaskRequest) -> bool:
        stats = context.stats.get((request.env, request.index))
        return stats is not None and stats.attempts > 0 and stats.rewards / stats.attempts >= self.rate
