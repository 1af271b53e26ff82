"""The envs of a run, checked once and made as often as episodes need them, and their tasks, which may become more."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Final

from envgym.agents.evaluation.play import held_out_tasks
from envgym.agents.settings import EnvSettings, EvaluationSettings
from envgym.core.serialize import task_from_json, task_to_json
from envgym.core.tasks import Split, Task, TaskSource
from envgym.env import Env
from envgym.errors import InvalidInput, SettingsError
from envgym.runs.directory import check_labels
from envgym.runs.files import write_json
from envgym.trainer.methods.decontamination import DecontaminatedTasks
from envgym.trainer.methods.protocols import EnvSupply, TaskRequest
from envgym.trainer.settings import DecontaminationSettings

ADDED_FROM: Final = 2**32
"""Index of the first task that a run adds to an env's own."""
_ADDED: Final = "added.json"
_SPLITTING: Final = ("splits", "test_share", "test_fraction")
"""Names of settings with which environments divide their tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSource:
    """One env of the mixture."""

    label: str
    env_id: str
    weight: float
    make: Callable[[], Env[Any]]
    """Makes a fresh env; cheap."""
    tasks: TaskSource
    held_out: tuple[Task, ...]
    """What it is evaluated on."""


def build_env_sources(
    envs: Sequence[EnvSettings], evaluation: EvaluationSettings, *, servers: tuple[str, ...] = ()
) -> dict[str, EnvSource]:
    """Make every env once to see that its settings hold and that there are tasks, and return the env sources by label.

    Args:
        envs: of the mixture.
        evaluation: how many distinct tasks each is evaluated on; where the split ends before, all of it.
        servers: addresses of the servers of envs that name none; empty: those are made in this process.

    Raises: UnknownName, InvalidInput: an unknown id or setting, or an endless supply that repeats itself before so many
        tasks are found. SettingsError: two envs of one label, or a split without tasks.
    """
    check_labels((spec.label for spec in envs), where="envs")
    env_sources: dict[str, EnvSource] = {}
    for spec in envs:
        make = spec.maker(servers)
        with closing(make()) as env:
            tasks = env.unwrapped.tasks
            remedy = _split_remedy(type(env.unwrapped))
        held_out = held_out_tasks(tasks, evaluation.tasks, split=evaluation.split)
        for split, is_empty in ((Split.TRAIN, tasks.size(Split.TRAIN) == 0), (evaluation.split, not held_out)):
            if is_empty:
                raise SettingsError.of(f"{split} split", "hold tasks", "none", where=spec.label, do=remedy)
        env_sources[spec.label] = EnvSource(
            label=spec.label, env_id=spec.id, weight=spec.weight, make=make, tasks=tasks, held_out=held_out
        )
    return env_sources


def _split_remedy(env_class: type) -> str:
    """Return the remedy for an empty split, with the names of the settings that divide the tasks."""
    names = [name for name in _SPLITTING if name in signature(env_class).parameters]
    return f"set {' or '.join(names)} of the environment" if names else "choose settings, or a source, with both splits"


def decontaminate(
    env_sources: Mapping[str, EnvSource], settings: DecontaminationSettings | None
) -> dict[str, EnvSource]:
    """Return the env sources without train tasks that overlap with a held-out task of any env; None: as they are.

    Raises: InvalidInput: an env has no train task left.
    """
    if settings is None:
        return dict(env_sources)
    held_out = [task for source in env_sources.values() for task in source.held_out]
    return {
        label: replace(
            source,
            tasks=DecontaminatedTasks(
                source.tasks, held_out, ngram=settings.ngram, share=settings.share, where=source.label
            ),
        )
        for label, source in env_sources.items()
    }


class TaskPool:
    """The train tasks of a run's envs, and those that the run adds: generated, mined, or made of others. Checkpointed.

    A task that was added has an index from `ADDED_FROM` on, which no task of an env's own has, and keeps it.
    """

    def __init__(self, env_sources: Mapping[str, EnvSource]) -> None:
        """Begin with the envs' own tasks, by label."""
        self._env_sources = env_sources
        self._added: dict[str, list[Task]] = {label: [] for label in env_sources}
        self._indices: dict[tuple[str, str], int] = {}
        """(label, key) -> index of a task that was added."""

    @property
    def has_grown(self) -> bool:
        """Whether tasks were added."""
        return bool(self._indices)

    def add(self, label: str, task: Task) -> int:
        """Add a train task of an env, unless it is there, and return its index.

        Raises: InvalidInput: it is no train task, or one on which the run is evaluated.
        """
        existing = self._indices.get((label, task.key))
        if existing is not None:
            return existing
        if task.split is not Split.TRAIN or task.key in {other.key for other in self._env_sources[label].held_out}:
            do, got = "leave it out", f"{task.id!r} of the {task.split} split"
            must = "be a train task on which the run is not evaluated"
            raise InvalidInput.of("task that is added", must, got, where=label, do=do)
        added = self._added[label]
        index = self._indices[label, task.key] = ADDED_FROM + len(added)
        added.append(task)
        return index

    def resolve(self, request: TaskRequest) -> TaskRequest:
        """Add the task that a request brings along, and return the request with its index."""
        if request.task is None:
            return request
        return replace(request, index=self.add(request.env, request.task))

    def task(self, label: str, index: int) -> Task:
        """Return a train task. Raises: InvalidInput: there is none of that index."""
        if index < ADDED_FROM:
            return self._env_sources[label].tasks.task(Split.TRAIN, index)
        added = self._added[label]
        must = f"be one of the {len(added)} that were added"
        InvalidInput.unless(index < ADDED_FROM + len(added), "task", must, index, where=label, do="add it before")
        return added[index - ADDED_FROM]

    def supplies(self) -> list[EnvSupply]:
        """Return the task supplies that a curriculum may draw from."""
        return [
            EnvSupply(
                source.label,
                source.weight,
                source.tasks.size(Split.TRAIN),
                partial(self.task, source.label),
                range(ADDED_FROM, ADDED_FROM + len(self._added[source.label])),
            )
            for source in self._env_sources.values()
        ]

    def save(self, folder: Path) -> None:
        tasks = {label: [task_to_json(task) for task in added] for label, added in self._added.items()}
        write_json(folder / _ADDED, tasks)

    def load(self, folder: Path) -> None:
        """Take over the tasks that `save` wrote. Raises: KeyError: they are of another env."""
        for label, tasks in json.loads((folder / _ADDED).read_text(encoding="utf-8")).items():
            for task in tasks:
                self.add(label, task_from_json(task))
