"""Hints that are withdrawn: the share of groups that get one falls to 0 as training goes on."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from pydantic import Field

from envgym.agents.loop.hints import PLAIN
from envgym.core.task_needs import TaskNeed, metadata_text
from envgym.seeds import generator
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import CurriculumContext, EnvSupply, GroupSource, TaskRequest


class Hinted(GroupSource):
    """Draw as `uniform` does, and give a share of the groups their task's hint: `share` at first, none from `until` on.

    Between, the share falls in a straight line. With `keep_as`, every group of a task that has a hint also keeps its
    first context with the hint under that name in `Tree.prompts`, whether the policy saw it or not: for a teacher.
    """

    fixed_prompts: ClassVar[tuple[str, ...]] = (PLAIN,)
    key: str = "hint"
    """Key of the hint in a task's metadata; tasks without one are asked as they are."""
    share: float = Field(default=1.0, ge=0, le=1)
    """Share of the groups with a hint at the first step."""
    until: int = Field(default=100, ge=0)
    """Train steps done after which no one gets hints; 0: no one ever does."""
    keep_as: str | None = None
    """Name in `Tree.prompts` of the first context with the hint; null: it is not kept."""

    @property
    def tree_prompts(self) -> tuple[str, ...]:
        """The context with the hint, where it is kept, and the one without it."""
        return self.fixed_prompts if self.keep_as is None else (self.keep_as, *self.fixed_prompts)

    def task_needs(self) -> Sequence[TaskNeed]:
        """Return the hint, unless nobody gets one."""
        do = "set curriculum.key to a key that holds a hint, or add hints to the tasks"
        is_used = self.share * self.until > 0 or self.keep_as is not None
        return [TaskNeed(key=self.key, read=partial(metadata_text, key=self.key), do=do)] if is_used else []

    def share_at(self, step: int) -> float:
        """Return the share of hinted groups after so many train steps."""
        return self.share * max(0.0, 1 - step / self.until) if self.until else 0.0

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        requests = Uniform().choose(context)
        share = self.share_at(context.step)
        draws = generator(context.seed, "hinted", context.step).random(len(requests))
        if not share and self.keep_as is None:
            return requests
        by_name = {supply.name: supply for supply in context.supplies}
        return [
            self._with_hint(request, by_name[request.env], is_shown=bool(draw < share))
            for request, draw in zip(requests, draws, strict=True)
        ]

    def _with_hint(self, request: TaskRequest, supply: EnvSupply, *, is_shown: bool) -> TaskRequest:
        hint = metadata_text(supply.task(request.index), self.key)
        if hint is None:
            return request
        prompts = {} if self.keep_as is None else {self.keep_as: hint}
        return replace(request, hint=hint if is_shown else None, prompts=prompts)
