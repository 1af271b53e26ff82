"""Families of drawn tasks at three levels, without end; some families may be held out for the test split."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import NamedTuple

from envgym.authoring import TaskDraft
from envgym.authoring.sampler import Sampler, Unsuitable
from envgym.authoring.sources import MAX_DRAWS, check_index, names_of, task_from_draft
from envgym.core.json_types import JsonObject
from envgym.core.tasks import Split, Task, split_of
from envgym.envs.data_files import read_toml
from envgym.errors import InvalidInput, check_known
from envgym.seeds import generator

LEVELS = (1, 2, 3)


class DrawnTask(NamedTuple):
    """A task, and what of it decides the split: tasks that are alike in it are on one side."""

    draft: TaskDraft
    content: JsonObject


@dataclass(frozen=True, slots=True)
class FamilyTasks:
    """Families and levels take turns; a task's content decides its side, also where families are held out."""

    families: tuple[str, ...]
    levels: tuple[int, ...]
    held_out: tuple[str, ...]
    """Families of the test split alone."""
    draw: Callable[[Sampler, str, int], DrawnTask]
    """Draws a task of a family and level. Raises: Unsuitable: draw again."""
    where: str
    """Id of the environment, from which the seeds derive."""
    is_split_by_family: bool = False
    """True where content does not count once families are held out."""

    def size(self, split: Split) -> None:
        return

    def task(self, split: Split, index: int) -> Task:
        """Draw until a task falls into `split`. Raises: InvalidInput: a negative index."""
        check_index(index, None, f"{split} of {self.where}")
        names = self.held_out if self.held_out and split is Split.TEST else self._trained
        sampler = Sampler(generator(self.where, split.value, index))
        family, level = names[index % len(names)], self.levels[index // len(names) % len(self.levels)]
        for _ in range(MAX_DRAWS):
            try:
                draft, content = self.draw(sampler, family, level)
            except Unsuitable:
                continue
            if (self.held_out and self.is_split_by_family) or split_of(content) is split:
                return task_from_draft(draft, split, f"{split}/{index}")
        raise AssertionError("a fifth of the tasks are held out")

    def chance(self, file: str) -> float:
        """Return the measured chance score on the split where it is higher; `file` is its table."""
        table = _measured(file)
        sides = (self._trained, self.held_out or self.families)
        return max(fmean(table[name][level - 1] for name in side for level in self.levels) for side in sides)

    @property
    def _trained(self) -> tuple[str, ...]:
        return tuple(name for name in self.families if name not in self.held_out)


def choose_families(
    families: str | Sequence[str],
    levels: int | Sequence[int],
    held_out: str | Sequence[str],
    *,
    all_families: Collection[str],
    draw: Callable[[Sampler, str, int], DrawnTask],
    where: str,
    nouns: tuple[str, str] = ("family", "families"),
    do: str = "name more families",
    is_split_by_family: bool = False,
) -> FamilyTasks:
    """Return the tasks that an environment's arguments ask for; `nouns` name one family and several in errors.

    Raises: UnknownName, InvalidInput: no such family or level, or none is left to train on.
    """
    names, apart = names_of(families), names_of(held_out)
    for name in (*names, *apart):
        check_known(nouns[0], name, all_families, where=where)
    task_levels = levels_of(levels, where=where)
    InvalidInput.unless(set(names) - set(apart), nouns[1], "leave some to train on", names, where=where, do=do)
    return FamilyTasks(names, task_levels, apart, draw, where, is_split_by_family)


def levels_of(levels: int | Sequence[int], *, where: str) -> tuple[int, ...]:
    """Return different levels. Raises: InvalidInput: one is none of `LEVELS`, or there is none."""
    different = (levels,) if isinstance(levels, int) else tuple(dict.fromkeys(levels))
    are_known = bool(different) and set(different) <= set(LEVELS)
    InvalidInput.unless(are_known, "levels", "be 1, 2 or 3", levels, where=where, do="pass e.g. levels=2")
    return different


@cache
def _measured(file: str) -> Mapping[str, Sequence[float]]:
    return read_toml(file)
