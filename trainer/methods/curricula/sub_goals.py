"""QWeb's sub-goals: ever more parts of a task are asked for; the others are told."""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from envgym.agents.loop.hints import PLAIN
from envgym.core.task_needs import TaskNeed
from envgym.core.tasks import Task
from envgym.errors import SettingsError
from envgym.seeds import generator
from envgym.trainer.methods.curricula.base import LearningCurriculum, mean_rewards
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import CurriculumContext, StepOutcome, TaskRequest


class SubGoals(LearningCurriculum):
    """Draw as `uniform` does; of a task's K parts tell a random K - n in a hint, so that n are left to be solved.

    n begins at `first` for each env and rises by one when the mean reward of the last `window` groups that had parts to
    be told is at least `rise_at`; the window then begins anew. From n = K on, a task is asked as it is.

    Source: 1812.09195 (QWeb), from its abstract: an instruction is split into parts, and a growing subset is asked for.
    There the env does the other parts; here they are told, in words. Schedule and numbers are ours.
    """

    name: ClassVar[str] = "sub_goals"
    fixed_prompts: ClassVar[tuple[str, ...]] = (PLAIN,)
    key: str = "sub_goals"
    """Key of the parts in a task's metadata: a list of texts, each the solution of one part."""
    first: int = Field(default=1, ge=0)
    """Parts that are left to be solved at first."""
    window: int = Field(default=16, ge=1)
    """Groups over which the mean reward is taken."""
    rise_at: float = 0.7
    """Mean reward from which one part more is left to be solved."""
    _levels: dict[str, int] = PrivateAttr(default_factory=dict)
    """Env -> n."""
    _recent: dict[str, deque[float]] = PrivateAttr(default_factory=dict)

    def task_needs(self) -> Sequence[TaskNeed]:
        """Return the sub-goals: more than are left to be solved at first, so that some can be told."""
        do = "set curriculum.key to a key that holds a list of texts, lower curriculum.first, or add them to the tasks"
        return [TaskNeed(key=self.key, read=lambda task: len(self._parts(task)) > self.first, do=do)]

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        requests = Uniform().choose(context)
        by_name = {supply.name: supply for supply in context.supplies}
        draws = [generator(context.seed, self.name, context.step, place) for place in range(len(requests))]
        return [
            self._asked(request, self._parts(by_name[request.env].task(request.index)), of_place)
            for request, of_place in zip(requests, draws, strict=True)
        ]

    def _asked(self, request: TaskRequest, parts: list[str], draws: Any) -> TaskRequest:  # numpy's Generator
        level = self._levels.get(request.env, self.first)
        places = sorted(draws.permutation(len(parts))[level:])
        if not places:
            return request
        hint = "\n".join(parts[place] for place in places)
        return replace(request, hint=hint, metadata={"asked": level, "parts": len(parts)})

    def _parts(self, task: Task) -> list[str]:
        parts = task.metadata.get(self.key, [])
        if not isinstance(parts, list) or not all(isinstance(part, str) and part for part in parts):
            where, do = f"curriculum sub_goals, task {task.id}", "write a list of texts"
            raise SettingsError.of(f"metadata {self.key}", "be a list of texts", parts, where=where, do=do)
        return [str(part) for part in parts]

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Raise n where the groups at this n succeed."""
        for request, reward in mean_rewards(outcome):
            level = self._levels.setdefault(request.env, self.first)
            if request.metadata.get("asked") != level:
                continue
            recent = self._recent.setdefault(request.env, deque(maxlen=self.window))
            recent.append(reward)
            if len(recent) == self.window and statistics.fmean(recent) >= self.rise_at:
                self._levels[request.env] = level + 1
                recent.clear()
        return {f"asked/{env}": float(level) for env, level in self._levels.items()}

    def state(self) -> dict[str, Any]:
        """Return n and the last rewards of every env."""
        return {env: {"asked": n, "recent": list(self._recent.get(env, ()))} for env, n in self._levels.items()}

    def restore(self, state: dict[str, Any]) -> None:
        self._levels = {env: seen["asked"] for env, seen in state.items()}
        self._recent = {env: deque(seen["recent"], maxlen=self.window) for env, seen in state.items()}
