"""Which tasks a step samples: the curriculum chooses, a replay may change what was chosen."""

from collections.abc import Sequence

from envgym.errors import SettingsError
from envgym.trainer.env_source import TaskPool
from envgym.trainer.methods.protocols import Curriculum, CurriculumContext, TaskRequest
from envgym.trainer.methods.replay.base import Replay
from envgym.trainer.rollout.groups import Stats


class TaskDraws:
    """Draws the tasks of one step after the other."""

    def __init__(self, tasks: TaskPool, curriculum: Curriculum, replay: Replay | None, seed: int) -> None:
        """Arguments as for `Collector`."""
        self.curriculum = curriculum
        """Chooses the next tasks."""
        self._tasks, self._replay, self._seed = tasks, replay, seed

    def draw(self, step: int, stats: Stats, num_groups: int, group_size: int) -> Sequence[TaskRequest]:
        """Return the tasks for `num_groups` groups of the step after `step` steps. Raises: SettingsError: none."""
        context = CurriculumContext(
            step=step,
            num_groups=num_groups,
            group_size=group_size,
            supplies=self._tasks.supplies(),
            stats=stats,
            seed=self._seed,
        )
        requests = self.curriculum.choose(context)
        if not requests:
            do = "let it return some for every step"
            raise SettingsError.of("curriculum", "choose tasks", "none", where=f"step {step + 1}", do=do)
        requests = [self._tasks.resolve(request) for request in requests]
        if self._replay is None:
            return requests
        keys = [self._tasks.task(request.env, request.index).key for request in requests]
        return self._replay.plan(step + 1, requests, keys)
