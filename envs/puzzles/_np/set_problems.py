"""Problems about sets: of elements, and of literals."""

import math
from collections.abc import Sequence
from itertools import count

import numpy as np

from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance, numbered
from envgym.envs.puzzles._np.symmetry import canonical_order
from envgym.envs.puzzles._np.truth_tables import best_assignment, every_assignment, variable_tables

WORTHLESS_SHARE = 0.75
"""Of the sets: so many often cover everything, whichever they are, and are worth nothing."""
MIN_SIZE, MAX_SIZE = 2, 4
"""Elements of a set, before those that are in none are added."""


class SetCover(HardProblem):
    """Set cover: as few sets as possible that together hold everything. Rows: the number of elements; sorted sets."""

    sizes = (8, 12, 20)
    form, is_maximum = AnswerForm.SUBSET, False
    answer_text = "the numbers of the chosen sets"
    goal = (
        "Set cover: choose as few sets as possible, so that each of the elements 1 to {first} is in one.\nSet: elements"
    )

    def draw(self, rng: np.random.Generator, num: int) -> Instance:
        """Draw as many sets as there are elements; an element that is in none is put into one of them."""
        sets = [set(rng.permutation(num)[: rng.integers(MIN_SIZE, MAX_SIZE + 1)].tolist()) for _ in range(num)]
        for element in sorted(set(range(num)).difference(*sets)):
            sets[rng.integers(num)].add(element)
        return ((num,), *(tuple(sorted(element + 1 for element in one)) for one in sets))

    def show_things(self, instance: Instance) -> str:
        return numbered(instance[1:])

    def num_things(self, instance: Instance) -> int:
        return len(instance) - 1

    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        covered = {element for number in answer for element in instance[number]}
        if len(covered) < instance[0][0]:
            missing = next(element for element in range(1, instance[0][0] + 1) if element not in covered)
            return f"The element {missing} is in none of these sets."
        return len(answer)

    def find_best(self, instance: Instance) -> Answer:
        """Return a smallest cover: the first number of sets for which there is one."""
        (num,), *sets = instance
        masks = [sum(1 << element - 1 for element in one) for one in sets]
        holders = [[place for place, mask in enumerate(masks) if mask >> element & 1] for element in range(num)]
        holders.sort(key=len)
        return next(answer for most in count(1) if (answer := _cover(masks, holders, 0, most)) is not None)

    def baseline(self, instance: Instance) -> float:
        return WORTHLESS_SHARE * (len(instance) - 1)

    def canonical(self, instance: Instance) -> Instance:
        """Name the elements by the canonical order of the graph of elements and sets."""
        (num,), *sets = instance
        edges = {(element - 1, row): 0 for row, one in enumerate(sets, start=num) for element in one}
        order = canonical_order([0] * num + [1] * len(sets), edges)
        names = {vertex + 1: name for name, vertex in enumerate(order[:num], start=1)}
        return ((num,), *sorted(tuple(sorted(names[element] for element in one)) for one in sets))


def _cover(masks: Sequence[int], holders: Sequence[Sequence[int]], selection: int, left: int) -> Answer | None:
    """Add up to `left` sets to those that are bits of `selection`, each through the first element not covered."""
    open_element = next((places for places in holders if not any(selection >> place & 1 for place in places)), None)
    if open_element is None:
        return tuple(place + 1 for place in range(len(masks)) if selection >> place & 1)
    for place in open_element if left else ():
        answer = _cover(masks, holders, selection | 1 << place, left - 1)
        if answer is not None:
            return answer
    return None


CLAUSES = 5
"""Clauses for each variable: more than the 4.3 up to which most sets of clauses can all be true."""


class MaxSat(HardProblem):
    """MAX-SAT: as many true clauses as possible. Rows: the number of variables; the literals of each clause."""

    sizes = (5, 8, 14)
    form, is_maximum = AnswerForm.LITERALS, True
    answer_text = "the true literal of each variable"
    goal = (
        "Satisfiability: make as many clauses as possible true, with variables 1 to {first}, each true or false. A "
        "clause is true if one of its literals is: 3 where variable 3 is true, -3 where it is false."
    )

    def draw(self, rng: np.random.Generator, num: int) -> Instance:
        """Draw different clauses of three literals."""
        every = np.tile(np.arange(1, num + 1), (CLAUSES * num, 1))
        clauses: set[tuple[int, ...]] = set()
        while len(clauses) < len(every):
            variables = np.sort(rng.permuted(every, axis=1)[:, :3])
            signs = 2 * rng.integers(2, size=variables.shape) - 1
            clauses.update(map(tuple, (signs * variables)[: len(every) - len(clauses)].tolist()))
        ordered = sorted(clauses)
        return ((num,), *(ordered[place] for place in rng.permutation(len(ordered)).tolist()))

    def show_things(self, instance: Instance) -> str:
        return "Clauses: " + " ".join(f"({' '.join(map(str, clause))})" for clause in instance[1:])

    def num_things(self, instance: Instance) -> int:
        return instance[0][0]

    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        return len(instance) - 1 - sum(map(set(answer).isdisjoint, instance[1:]))

    def find_best(self, instance: Instance) -> Answer:
        (num,), *clauses = instance
        tables, full = variable_tables(num), every_assignment(num)
        terms = []
        for clause in clauses:
            table = 0
            for literal in clause:
                table |= tables[literal - 1] if literal > 0 else full ^ tables[-literal - 1]
            terms.append((1, table))
        best = best_assignment(num, terms)
        return tuple(index + 1 if best >> index & 1 else -index - 1 for index in range(num))

    def baseline(self, instance: Instance) -> float:
        """Return 7/8 m + sqrt(7/64 m): mean and standard deviation over assignments, as if clauses were independent."""
        num = len(instance) - 1
        return 7 / 8 * num + math.sqrt(7 / 64 * num)

    def canonical(self, instance: Instance) -> Instance:
        """Name the variables, and what of each is true, by the canonical order of the graph of literals and clauses."""
        (num,), *clauses = instance
        edges = {(2 * index, 2 * index + 1): 0 for index in range(num)}
        for row, clause in enumerate(clauses, start=2 * num):
            edges |= {(2 * abs(literal) - 2 + (literal < 0), row): 1 for literal in clause}
        names: dict[int, int] = {}
        for vertex in canonical_order([0] * 2 * num + [1] * len(clauses), edges):
            literal = -(vertex // 2) - 1 if vertex % 2 else vertex // 2 + 1
            if vertex < 2 * num and literal not in names:
                names[literal] = len(names) // 2 + 1
                names[-literal] = -names[literal]
        return ((num,), *sorted(tuple(sorted((names[literal] for literal in clause), key=abs)) for clause in clauses))
