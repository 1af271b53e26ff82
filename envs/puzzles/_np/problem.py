"""What a hard problem is made of: how an instance is drawn, shown, answered, solved and compared with others."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar

import numpy as np

Instance = tuple[tuple[int, ...], ...]
"""Rows of whole numbers; the class of each problem says what they are."""
Answer = tuple[int, ...]


class AnswerForm(StrEnum):
    """What the numbers of an answer are."""

    SUBSET = "subset"
    """The chosen things, each once, in any order."""
    GROUPS = "groups"
    """For each thing, in order, the number of its group."""
    LITERALS = "literals"
    """Every thing once, in any order, with a minus sign or without."""


class HardProblem(ABC):
    """One kind of problem."""

    sizes: ClassVar[tuple[int, int, int]]
    """Number of things in an easy, a medium and a hard instance."""
    form: ClassVar[AnswerForm]
    is_maximum: ClassVar[bool]
    """True where a higher value is better."""
    answer_text: ClassVar[str]
    """What the numbers of an answer are, in words."""
    goal: ClassVar[str]
    """What to do, in words; `{first}` is the number in the first row of an instance."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, num: int) -> Instance:
        """Draw an instance with so many things."""

    @abstractmethod
    def show_things(self, instance: Instance) -> str:
        """Write the things below the goal."""

    @abstractmethod
    def num_things(self, instance: Instance) -> int:
        """Return the number of things."""

    def num_groups(self, instance: Instance) -> int:
        """Return the highest number of a group; of no meaning in other forms."""
        return 0

    @abstractmethod
    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        """Return the value of a well-formed answer, or a sentence that names a constraint which it breaks."""

    @abstractmethod
    def find_best(self, instance: Instance) -> Answer:
        """Return an answer of the best value, exactly."""

    @abstractmethod
    def baseline(self, instance: Instance) -> float:
        """Return the value that is worth nothing; it does not depend on the names of the things."""

    @abstractmethod
    def canonical(self, instance: Instance) -> Instance:
        """Return the same instance for all that differ in the names and the order of their things only."""

    def show(self, instance: Instance) -> str:
        """Write the goal and the instance."""
        return f"{self.goal.format(first=instance[0][0])}\n{self.show_things(instance)}"

    def solve(self, instance: Instance) -> Answer:
        """Return an answer of the best value, from memory where it was found before."""
        return _solution(self, instance)

    def hint(self, instance: Instance) -> str:
        num = self.num_things(instance)
        match self.form:
            case AnswerForm.SUBSET:
                return f"Answer with {self.answer_text}, each at most once, from 1 to {num}, such as 1 3 4."
            case AnswerForm.GROUPS:
                groups = self.num_groups(instance)
                return f"Answer with {self.answer_text}, in order: {num} numbers from 1 to {groups}, such as 1 2 1 ..."
            case AnswerForm.LITERALS:
                return f"Answer with {self.answer_text}: 1 to {num}, each once, such as 1 -2 3 ..."

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
        return value > other if self.is_maximum else value < other

    def optimum(self, instance: Instance) -> int:
        value = self.evaluate(instance, self.solve(instance))
        assert isinstance(value, int), "a solver's answer is feasible"
        return value

    def ratio(self, value: int, optimum: int) -> float:
        """Return value / optimum of a maximum and optimum / value of a minimum, which lie in [0, 1]."""
        return value / optimum if self.is_maximum else optimum / value


class NumbersProblem(HardProblem):
    """A problem about a row of numbers. Rows: a limit; the numbers."""

    def show_things(self, instance: Instance) -> str:
        return numbered((number,) for number in instance[1])

    def num_things(self, instance: Instance) -> int:
        return len(instance[1])

    def canonical(self, instance: Instance) -> Instance:
        return (instance[0], tuple(sorted(instance[1])))


@lru_cache(maxsize=40_960)
def _solution(problem: HardProblem, instance: Instance) -> Answer:
    return problem.find_best(instance)


def quality_of(value: int, optimum: int, baseline: float) -> float:
    """Return max(0, (value - baseline) / (optimum - baseline)): 1 for the optimum, 0 up to the baseline."""
    return max(0.0, (value - baseline) / (optimum - baseline)) if value != optimum else 1.0


def numbered(rows: Iterable[Sequence[int]]) -> str:
    """Write rows with their numbers, a line each."""
    return "\n".join(f"{number}: {' '.join(map(str, row))}" for number, row in enumerate(rows, start=1))
