"""Hints that are withdrawn: the share of groups that get one falls to 0 as training goes on."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from envgym.errors import SettingsError
from envgym.seeds import generator
from envgym.settings import Settings
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import CurriculumContext, EnvSupply, TaskRequest


class Hinted(Settings):
    """Draw as `uniform` does, and give a share of the groups their task's hint: `share` at first, none from `until` on.

    Between, the share falls in a straight line. With `keep_as`, every group of a task that has a hint also keeps its
    first context with the hint under that name in `Tree.prompts`, whether the policy saw it or not: for a teacher.
    """

    key: str = "hint"
    """Key of the hint in a task's metadata; tasks without one are asked as they are."""
    share: float = Field(default=1.0, ge=0, le=1)
    """Share of the groups with a hint at the first step."""
    until: int = Field(default=100, ge=0)
    """Train steps done after which no one gets hints; 0: no one ever does."""
    keep_as: str | None = None
    """Name in `Tree.prompts` of the first context with the hint; null: it is not kept."""

    def share_at(self, step: int) -> float:
        """Return the share of hinted groups after so many train steps."""
        return self.share * max(0.0, 1 - step / self.until) if self.until else 0.0

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        """Return the groups of a train step."""
        drawn = Uniform().choose(context)
        share, draws = self.share_at(context.step), generator(context.seed, "hinted", context.step).random(len(drawn))
        if not share and self.keep_as is None:
            return drawn
        by_name = {supply.name: supply for supply in context.supplies}
        return [
            self._with_hint(request, by_name[request.env], is_shown=bool(draw < share))
            for request, draw in zip(drawn, draws, strict=True)
        ]

    def _with_hint(self, request: TaskRequest, supply: EnvSupply, *, is_shown: bool) -> TaskRequest:
        task = supply.task(request.index)
        hint = task.metadata.get(self.key)
        if hint is None:
            return request
        if not isinstance(hint, str) or not hint:
            where, do = f"task {task.id} of {supply.name}", "write a sentence, or leave it out"
            raise SettingsError.of(f"metadata {self.key}", "be a text", hint, where=where, do=do)
        prompts = {} if self.keep_as is None else {self.keep_as: hint}
        return replace(request, hint=hint if is_shown else None, prompts=prompts)
