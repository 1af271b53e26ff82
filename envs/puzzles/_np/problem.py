"""What a hard problem is made of: how an instance is drawn, shown, answered, solved and compared with others."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

Instance = tuple[tuple[int, ...], ...]
"""Rows of whole numbers; the module of each problem says what they are."""
Answer = tuple[int, ...]


class AnswerForm(StrEnum):
    """What the numbers of an answer are."""

    SUBSET = "subset"
    """The chosen things, each once, in any order."""
    GROUPS = "groups"
    """For each thing, in order, the number of its group."""
    LITERALS = "literals"
    """Every thing once, in any order, with a minus sign or without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardProblem:
    """One kind of problem."""

    sizes: tuple[int, int, int]
    """Number of things in an easy, a medium and a hard instance."""
    form: AnswerForm
    is_maximum: bool
    """True where a higher value is better."""
    asked: str
    """What the numbers of an answer are, in words."""
    draw: Callable[[np.random.Generator, int], Instance]
    """Draw an instance with so many things."""
    show: Callable[[Instance], str]
    """Write the goal and the instance."""
    num_things: Callable[[Instance], int]
    num_groups: Callable[[Instance], int] = lambda instance: 0
    """Highest number of a group; of no meaning in other forms."""
    evaluate: Callable[[Instance, Answer], int | str]
    """Return the value of a well-formed answer, or a sentence that names a constraint which it breaks."""
    solve: Callable[[Instance], Answer]
    """Return an answer of the best value, exactly."""
    baseline: Callable[[Instance], float]
    """Return the value that is worth nothing; it does not depend on the names of the things."""
    canonical: Callable[[Instance], Instance]
    """Return the same instance for all that differ in the names and the order of their things only."""

    def hint(self, instance: Instance) -> str:
        """Say how an answer is written."""
        num = self.num_things(instance)
        match self.form:
            case AnswerForm.SUBSET:
                return f"Answer with {self.asked}, each at most once, from 1 to {num}, such as 1 3 4."
            case AnswerForm.GROUPS:
                groups = self.num_groups(instance)
                return f"Answer with {self.asked}, in order: {num} numbers from 1 to {groups}, such as 1 2 1 ..."
            case AnswerForm.LITERALS:
                return f"Answer with {self.asked}: 1 to {num}, each once, such as 1 -2 3 ..."

    def is_well_formed(self, instance: Instance, answer: Answer) -> bool:
        """Tell whether an answer has the numbers that its form asks for."""
        num = self.num_things(instance)
        if self.form is AnswerForm.GROUPS:
            return len(answer) == num and min(answer) >= 1 and max(answer) <= self.num_groups(instance)
        if self.form is AnswerForm.LITERALS:
            return len(answer) == num and sorted(map(abs, answer)) == list(range(1, num + 1))
        return bool(answer) and min(answer) >= 1 and max(answer) <= num and len(set(answer)) == len(answer)

    def draw_improvable(self, rng: np.random.Generator, num: int) -> Instance:
        """Draw an instance whose optimum is better than its baseline."""
        while True:
            instance = self.draw(rng, num)
            if self.is_better(self.optimum(instance), self.baseline(instance)):
                return instance

    def is_better(self, value: int, other: float) -> bool:
        """Tell whether a value is better than another."""
        return value > other if self.is_maximum else value < other

    def optimum(self, instance: Instance) -> int:
        """Return the best value."""
        value = self.evaluate(instance, self.solve(instance))
        assert isinstance(value, int), "a solver's answer is feasible"
        return value

    def ratio(self, value: int, optimum: int) -> float:
        """Return value / optimum of a maximum and optimum / value of a minimum, which lie in [0, 1]."""
        return value / optimum if self.is_maximum else optimum / value


def quality_of(value: int, optimum: int, baseline: float) -> float:
    """Return max(0, (value - baseline) / (optimum - baseline)): 1 for the optimum, 0 up to the baseline."""
    return max(0.0, (value - baseline) / (optimum - baseline)) if value != optimum else 1.0


def numbered(rows: Instance) -> str:
    """Write rows with their numbers, a line each."""
    return "\n".join(f"{number}: {' '.join(map(str, row))}" for number, row in enumerate(rows, start=1))
