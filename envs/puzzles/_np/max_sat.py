"""Maximum satisfiability: as many true clauses as possible. Rows: the number of variables; literals of each clause."""

import math

import numpy as np

from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance
from envgym.envs.puzzles._np.symmetry import canonical_order
from envgym.envs.puzzles._np.truth_tables import best_assignment, every_assignment, variable_tables

CLAUSES = 5
"""Clauses for each variable: more than the 4.3 up to which most sets of clauses can all be true."""


class MaxSat(HardProblem):
    """Maximum satisfiability."""

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
