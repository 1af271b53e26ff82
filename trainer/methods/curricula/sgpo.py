"""sGPO: profile the tasks, then train from easy to hard with groups as large as a success is rare."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from envgym.core.turns import reaches
from envgym.errors import SettingsError
from envgym.seeds import generator
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.curricula.base import LearningCurriculum, finite_size
from envgym.trainer.methods.protocols import CurriculumContext, StepOutcome, TaskRequest

TaskName = tuple[str, int]
"""(env, index)."""
PHASES = (2, 4, 8)
"""Group sizes, in the order in which they are trained."""


class Sgpo(LearningCurriculum):
    """Sample every task `samples` times, then train it with groups of about 1 / p, the easy ones first.

    With p the share of profiled episodes that succeed: p > 3/4 is dropped; p > 1/4 gets groups of 2, p > 1/8 of 4,
    other p > 0 of 8. The phases of 2, 4 and 8 follow each other, `epochs` passes over their tasks each, where they have
    some; the last one goes on. Of the tasks with p = 0 a share `unsolved`, drawn once, joins every phase at its size.

    Source: 2606.08854, its abstract and an exposition by others. Ours: the profile's groups train, too; the paper's
    phases end when they have converged; tasks must end; envs are taken one after the other, whatever their weight.
    """

    name: ClassVar[str] = "sgpo"
    samples: int = Field(default=8, ge=2)
    """Episodes of each task in the profile."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the tasks of each phase."""
    unsolved: float = Field(default=0.1, ge=0, le=1)
    """Share of the tasks that no profiled episode solved that trains, too."""
    success_at: float = 1.0
    """Reward from which an episode succeeds."""
    _rates: dict[TaskName, float] = PrivateAttr(default_factory=dict)
    _first_step: int | None = PrivateAttr(default=None)
    """The first step, from 0, after the profile; None: it is not complete."""
    _first_group: int | None = PrivateAttr(default=None)
    """Number of the first group after the profile, among all that are drawn; None: it is not drawn."""
    _num_tasks: int | None = PrivateAttr(default=None)

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        """Return the groups of a train step; fewer in the last step of the profile."""
        supplies = context.supplies
        tasks = [(item.name, index) for item in supplies for index in range(finite_size(item, where=self.name))]
        self._num_tasks = len(tasks)
        if self._first_step is None or context.step < self._first_step:
            unknown = [task for task in tasks if task not in self._rates] or tasks
            return [TaskRequest(env, index, self.samples) for env, index in unknown[: context.num_groups]]
        if self._first_group is None:
            self._first_group = context.first
        place = context.first - self._first_group
        return [self._request(tasks, place + offset, context.seed) for offset in range(context.num_groups)]

    def _request(self, tasks: Sequence[TaskName], place: int, seed: int) -> TaskRequest:
        """Return the group at a place of the training that follows the profile."""
        phases = self._phases(tasks, seed)
        for number, (size, members) in enumerate(phases):
            length = len(members) * self.epochs
            if place < length or number == len(phases) - 1:
                epoch, offset = divmod(place, len(members))
                order = generator(seed, self.name, size, epoch).permutation(len(members))
                env, index = members[order[offset]]
                return TaskRequest(env, index, size, metadata={"phase": size})
            place -= length
        raise AssertionError("the last phase goes on")

    def _phases(self, tasks: Sequence[TaskName], seed: int) -> list[tuple[int, list[TaskName]]]:
        sizes = {task: group_size_for(self._rates[task]) for task in tasks if task in self._rates}
        hopeless = [task for task, size in sizes.items() if size == 0]
        draws = generator(seed, self.name, "unsolved").permutation(len(hopeless))
        mixed_in = [hopeless[place] for place in sorted(draws[: round(self.unsolved * len(hopeless))])]
        by_size = [(size, [task for task, own in sizes.items() if own == size]) for size in PHASES]
        phases = [(size, [*members, *mixed_in]) for size, members in by_size if members]
        phases = phases or [(size, mixed_in) for size in PHASES if mixed_in]
        if not phases:
            do = "choose other tasks, or a larger share of unsolved ones"
            got = f"{len(hopeless)} that are never solved, {len(sizes) - len(hopeless)} that are nearly always"
            raise SettingsError.of("profiled tasks", "hold some to train on", got, where="curriculum sgpo", do=do)
        return phases

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Take in the profile, until it is complete."""
        if self._first_step is None:
            for request, group in outcome.pairs:
                if rewards := episode_rewards(group):
                    successes = [float(reaches(reward, self.success_at)) for reward in rewards]
                    self._rates.setdefault((request.env, request.index), statistics.fmean(successes))
            if len(self._rates) == self._num_tasks:
                self._first_step = outcome.step
        phases = [size for request in outcome.requests if isinstance(size := request.metadata.get("phase"), int)]
        return {"profiled": float(len(self._rates)), "phase": statistics.fmean(phases) if phases else 0.0}

    def state(self) -> dict[str, Any]:
        return {
            "rates": [[*task, rate] for task, rate in self._rates.items()],
            "first_step": self._first_step,
            "first_group": self._first_group,
            "num_tasks": self._num_tasks,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._rates = {(env, index): rate for env, index, rate in state["rates"]}
        self._first_step, self._first_group = state["first_step"], state["first_group"]
        self._num_tasks = state["num_tasks"]


def group_size_for(rate: float) -> int | None:
    """Return the group size for a success rate: 0 for what is never solved; None: it is dropped."""
    if rate > 0.75:
        return None
    if rate == 0:
        return 0
    return 2 if rate > 0.25 else 4 if rate > 0.125 else 8
