"""What curricula share: numbers of tasks' metadata, rewards by request, and a state of their own as JSON."""

import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from envgym.core.task_needs import TaskNeed
from envgym.core.tree import Tree
from envgym.errors import InvalidInput, SettingsError
from envgym.runs.directory import read_episode_table, read_object, write_episode_table
from envgym.runs.episodes import episode_rows, trees_of
from envgym.runs.files import write_json
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.protocols import EnvSupply, GroupSource, StepOutcome, TaskRequest

_STATE, _TREES = "state.json", "trees.parquet"


class LearningCurriculum(GroupSource, ABC):
    """Settings of a curriculum with a state of its own, which a checkpoint keeps as JSON."""

    name: ClassVar[str]

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state as plain JSON."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Take over a state. Raises: LookupError, TypeError, ValueError: it is none of this curriculum."""

    def save(self, folder: Path) -> None:
        write_json(folder / _STATE, self.state())

    def load(self, folder: Path) -> None:
        self.restore(read_object(folder / _STATE))


def finite_size(supply: EnvSupply, *, where: str) -> int:
    """Return how many tasks an env has. Raises: SettingsError: they do not end."""
    if supply.size is None:
        do = "choose an env whose tasks end, or another curriculum"
        raise SettingsError.of(f"tasks of {supply.name}", "end", "endless ones", where=f"curriculum {where}", do=do)
    return supply.size


def number_need(key: str, *, setting: str) -> TaskNeed:
    """Return that every task must have a number in its metadata, whose key a setting names."""
    do = f"set {setting} to a key that holds a number, or add it to the tasks"
    return TaskNeed(key=key, every=True, read=lambda task: is_number(task.metadata.get(key)), do=do)


def is_number(value: object) -> bool:
    """Return whether a value of metadata is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def metadata_number(supply: EnvSupply, index: int, key: str, *, where: str) -> float:
    """Return a number of a task's metadata. Raises: SettingsError: it is missing, or no number."""
    metadata = supply.task(index).metadata
    value = metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        got, place = f"{value!r} beside {', '.join(metadata) or 'nothing'}", f"task {index} of {supply.name}"
        do = "add it to the tasks, or name another key"
        raise SettingsError.of(f"metadata {key}", "be a number", got, where=f"curriculum {where}, {place}", do=do)
    return float(value)


def mean_rewards(outcome: StepOutcome) -> Iterator[tuple[TaskRequest, float]]:
    """Yield the request of every group that has valid episodes, and the mean of their rewards."""
    for request, group in outcome.pairs:
        if rewards := episode_rewards(group):
            yield request, statistics.fmean(rewards)


def check_restored(is_same: bool, what: str, *, where: str) -> None:
    """Refuse a state that was saved under other settings. Raises: InvalidInput."""
    do = "resume with the settings that wrote it"
    InvalidInput.unless(is_same, what, "be those of these settings", "others", where=f"curriculum {where}", do=do)


def save_trees(folder: Path, trees: Sequence[Tree]) -> None:
    """Write recorded trees, each once, as episodes."""
    different = {tree.id: tree for tree in trees}.values()
    write_episode_table(folder / _TREES, [row for tree in different for row in episode_rows([tree], step=0)])


def load_trees(folder: Path) -> dict[str, Tree]:
    """Return the trees that `save_trees` wrote, by id."""
    return {tree.id: tree for tree in trees_of(read_episode_table(folder / _TREES))}
