"""Families of drawn statements at three levels, without end: where the environments of proofs have their tasks from."""

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from envgym.authoring import TaskDraft
from envgym.authoring.sampler import Sampler, Unsuitable
from envgym.authoring.sources import MAX_DRAWS, check_index, names_of, task_from_draft
from envgym.core.json_types import JsonObject
from envgym.core.tasks import Split, Task, split_of
from envgym.errors import InvalidInput, check_known
from envgym.seeds import generator

LEVELS = (1, 2, 3)


class DrawnTask(NamedTuple):
    """A task, and what of it decides the split: statements that are alike in it are on one side."""

    draft: TaskDraft
    content: JsonObject


@dataclass(frozen=True, slots=True)
class FamilyTasks:
    """Families and levels take turns; a statement's content decides its side, also where families are held out."""

    families: tuple[str, ...]
    levels: tuple[int, ...]
    held_out: tuple[str, ...]
    """Families of the test split alone."""
    draw: Callable[[Sampler, str, int], DrawnTask]
    """Draws a statement of a family and level. Raises: Unsuitable: draw again."""
    where: str
    """Id of the environment, from which the seeds derive."""

    def size(self, split: Split) -> None:
        """Return None: the supply does not end."""
        return

    def task(self, split: Split, index: int) -> Task:
        """Draw until a statement falls into `split`. Raises: InvalidInput: a negative index."""
        check_index(index, None, f"{split} of {self.where}")
        names = self.held_out if self.held_out and split is Split.TEST else self._trained
        sampler = Sampler(generator(self.where, split.value, index))
        family, level = names[index % len(names)], self.levels[index // len(names) % len(self.levels)]
        for _ in range(MAX_DRAWS):
            try:
                draft, content = self.draw(sampler, family, level)
            except Unsuitable:
                continue
            if split_of(content) is split:
                return task_from_draft(draft, split, f"{split}/{index}")
        raise AssertionError("a fifth of the statements are held out")

    def chance(self, file: str) -> float:
        """Return what was measured of chance on the split where it proves more; `file` is a table in `data/`."""
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
    known: Collection[str],
    draw: Callable[[Sampler, str, int], DrawnTask],
    where: str,
) -> FamilyTasks:
    """Return the statements that an environment's arguments ask for.

    Raises: UnknownName, InvalidInput: no such family or level, or none is left to train on.
    """
    chosen, apart = names_of(families), names_of(held_out)
    for name in (*chosen, *apart):
        check_known("family", name, known, where=where)
    wanted = (levels,) if isinstance(levels, int) else tuple(dict.fromkeys(levels))
    is_level = bool(wanted) and set(wanted) <= set(LEVELS)
    InvalidInput.unless(is_level, "levels", "be 1, 2 or 3", levels, where=where, do="pass e.g. levels=2")
    do = "name more families"
    InvalidInput.unless(set(chosen) - set(apart), "families", "leave some to train on", chosen, where=where, do=do)
    return FamilyTasks(chosen, wanted, apart, draw, where)


@cache
def _measured(file: str) -> Mapping[str, Sequence[float]]:
    """Return family -> share at each level."""
    return tomllib.loads((Path(__file__).with_name("data") / file).read_text(encoding="utf-8"))
