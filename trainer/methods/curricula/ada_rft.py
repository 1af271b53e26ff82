"""AdaRFT: the tasks nearest to a target difficulty, which follows the rewards."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from envgym.core.task_needs import TaskNeed
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.curricula.base import LearningCurriculum, finite_size, metadata_number, number_need
from envgym.trainer.methods.protocols import CurriculumContext, StepOutcome, TaskRequest


class AdaRft(LearningCurriculum):
    """Choose the B tasks of all envs whose difficulty is nearest to T; T ← clip(T + η tanh(a (R - b)), 0, 100).

    R is the mean reward of the step's valid episodes. Nothing is used up: while T stays, the same tasks come again. Of
    tasks at equal distance the first come first. T reaches the next step at once.

    Source: 2504.05520, the authors' code.
    """

    name: ClassVar[str] = "ada_rft"
    key: str = "difficulty"
    """Key of a task's difficulty, 0 to 100, in its metadata."""
    start: float = Field(default=0.0, ge=0, le=100)
    """T at the beginning."""
    rate: float = Field(default=50.0, gt=0)
    """η: step by which the target difficulty moves."""
    sensitivity: float = Field(default=2.0, gt=0)
    """a: how steeply T follows the reward."""
    reward: float = 0.5
    """b: the mean reward at which T stays."""
    _target: float | None = PrivateAttr(default=None)
    _difficulties: dict[str, list[float]] = PrivateAttr(default_factory=dict)

    def task_needs(self) -> Sequence[TaskNeed]:
        return [number_need(self.key, setting="curriculum.key")]

    @property
    def target(self) -> float:
        """T."""
        return self.start if self._target is None else self._target

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        """Return the groups of a train step; at most as many as there are tasks."""
        for supply in context.supplies:
            if supply.name not in self._difficulties:
                size = finite_size(supply, where=self.name)
                self._difficulties[supply.name] = [
                    metadata_number(supply, index, self.key, where=self.name) for index in range(size)
                ]
        tasks = [
            (abs(difficulty - self.target), supply.name, index)
            for supply in context.supplies
            for index, difficulty in enumerate(self._difficulties[supply.name])
        ]
        nearest = sorted(tasks, key=lambda task: task[0])[: context.num_groups]
        return [TaskRequest(env, index, context.group_size) for _, env, index in nearest]

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        rewards = [reward for group in outcome.groups for reward in episode_rewards(group)]
        if rewards:
            mean = math.fsum(rewards) / len(rewards)
            moved = self.target + self.rate * math.tanh(self.sensitivity * (mean - self.reward))
            self._target = min(max(moved, 0.0), 100.0)
        return {"target": self.target}

    def state(self) -> dict[str, Any]:
        return {"target": self.target}

    def restore(self, state: dict[str, Any]) -> None:
        self._target = float(state["target"])
