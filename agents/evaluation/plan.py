"""The plan of an evaluation: its tasks, their order and every seed.

They are a function of the plan alone, so two evaluations of one plan are paired.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envgym.agents.catalog import METRIC
from envgym.agents.evaluation.metrics import Metric
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.search import Selection, Strategy
from envgym.agents.settings import EvaluationSettings
from envgym.core.tasks import Split, Task, TaskSource, check_ids, distinct_tasks
from envgym.env import Env
from envgym.seeds import derive_seed

ORACLE_SELECTED = "oracle-selected"
"""Marks numbers of episodes that were chosen by what no agent can see."""
SELECTED_BY_ENDING = "selected by ending"
"""Marks numbers of episodes that were chosen by how they ended, which may reveal the verdict."""
SPLIT_LABELS = {Split.TEST: "held-out", Split.TRAIN: "train-split"}
"""Labels of evaluations on all tasks of a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """The episodes of an evaluation; fixed before the first one."""

    env_id: str
    make_env: Callable[[], Env[Any]]
    tasks: tuple[Task, ...]
    samples: int
    """Episodes per task."""
    seed: int
    label: str = "held-out"
    """Evaluations of one label share tasks and sampling, and may be compared."""
    success_at: float = 1.0
    """An episode succeeds when its reward is at least this."""
    search: str = "chain"
    """The search that finds each episode."""
    selection: Selection | None = None
    """How a search that finds several chooses one."""
    metrics: tuple[Metric, ...] = ()
    """What is measured of the episodes."""

    @property
    def title(self) -> str:
        """The label, and what must be known to read the numbers right."""
        marks: list[str] = []
        if self.selection is not None:
            marks += [ORACLE_SELECTED] if self.selection.is_oracle else []
            marks += [SELECTED_BY_ENDING] if self.selection.uses_ending else []
        return " ".join([self.label, ", ".join(marks)]) if marks else self.label

    def jobs(self) -> list[EpisodeJob]:
        """Return the episodes, task by task."""
        return [
            EpisodeJob(
                make_env=self.make_env,
                task=task,
                seed=derive_seed(self.seed, self.env_id, task.key, sample),  # alike alone and in a mixture
                tree_id=f"{self.label}/{task.id}/{sample}",
                env_id=self.env_id,
            )
            for task in self.tasks
            for sample in range(self.samples)
        ]


def make_plan(
    settings: EvaluationSettings,
    search: Strategy,
    *,
    env_id: str,
    make_env: Callable[[], Env[Any]],
    tasks: tuple[Task, ...],
    label: str,
    run_seed: int,
) -> EvalPlan:
    """Return the plan of the settings on some tasks of one env."""
    return EvalPlan(
        env_id=env_id,
        make_env=make_env,
        tasks=tasks,
        samples=settings.samples,
        seed=derive_seed(run_seed, "evaluation"),
        label=label,
        success_at=settings.success_at,
        search=settings.search.name,
        selection=search.selection,
        metrics=tuple(METRIC.build(choice) for choice in settings.metrics),
    )


def held_out_tasks(source: TaskSource, count: int, *, split: Split = Split.TEST) -> tuple[Task, ...]:
    """Return the first `count` tasks of different content; fewer where the split ends before.

    Raises: InvalidInput: two of them have one id.
    """
    size = source.size(split)
    tasks_by_key: dict[str, Task] = {}
    if size is None:
        tasks_by_key = {task.key: task for task in distinct_tasks(source, split, count)}
    for index in range(size or 0):
        if len(tasks_by_key) == count:
            break
        task = source.task(split, index)
        tasks_by_key.setdefault(task.key, task)
    check_ids(tasks_by_key.values(), where=f"{split} split", do="give each task an id of its own in the task source")
    return tuple(tasks_by_key.values())
