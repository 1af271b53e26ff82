"""DeepSearch's choice of prompts: those that the policy seldom solves."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import CurriculumContext, GroupSource, TaskRequest, TaskStats


class HardPrompts(GroupSource):
    """Draw as `uniform` does, and prefer tasks whose mean reward is at most `at_most`, or that have too few attempts.

    `spare` times as many tasks are drawn as are wanted. Hard ones come first, in the order of their draws, then the
    others, those of least mean reward first. With rewards of 0 and 1 the mean reward is the pass rate.

    Source: 2509.25454, which keeps the prompts of pass@1 below 25 % and judges them anew after each phase, with 4
    samples; here the statistics of all attempts so far judge them, before every step.
    """

    reads_stats: ClassVar[bool] = True
    at_most: float = 0.25
    """Largest mean reward of a hard task."""
    attempts: int = Field(default=4, ge=1)
    """Valid episodes before a task is judged; until then it counts as hard."""
    spare: int = Field(default=4, ge=1)
    """Tasks that are drawn for each that is wanted; 1 is `uniform`."""

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        wider = replace(context, num_groups=context.num_groups * self.spare, num_drawn=context.first * self.spare)
        requests = Uniform().choose(wider)
        by_ease = sorted(requests, key=lambda request: self._ease(context.stats.get((request.env, request.index))))
        return by_ease[: context.num_groups]

    def _ease(self, stats: TaskStats | None) -> float:
        """Return the mean reward of a task that is not hard; -inf: it is."""
        if stats is None or stats.attempts < self.attempts or stats.rewards / stats.attempts <= self.at_most:
            return float("-inf")
        return stats.rewards / stats.attempts
