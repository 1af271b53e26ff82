"""Maximum cut: two sides with the highest total weight between them. Rows: a graph with weights."""

import math

import numpy as np

from envgym.envs.puzzles._np.graphs import GraphProblem, members
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, Instance
from envgym.envs.puzzles._np.truth_tables import best_assignment, variable_tables


class MaxCut(GraphProblem):
    """Maximum cut."""

    sizes, density = (6, 9, 14), 0.6
    form, is_maximum = AnswerForm.SUBSET, True
    answer_text = "the vertices of one side"
    goal = (
        "Maximum cut: divide the vertices 1 to {first} into two sides, so that the total weight of the edges from one "
        "side to the other is as high as possible."
    )

    def draw(self, rng: np.random.Generator, num: int) -> Instance:
        vertices, *edges = super().draw(rng, num)
        weights = rng.integers(1, 10, size=len(edges)).tolist()
        return (vertices, *((*edge, weight) for edge, weight in zip(edges, weights, strict=True)))

    def show_things(self, instance: Instance) -> str:
        return f"{super().show_things(instance)} (FROM-TO:WEIGHT)"

    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        side = set(answer)
        return sum([weight for one, two, weight in instance[1:] if (one in side) != (two in side)])

    def find_best(self, instance: Instance) -> Answer:
        """Return one side of the best of all divisions; the last vertex is on the other."""
        num = instance[0][0] - 1
        tables = [*variable_tables(num), 0]
        terms = ((weight, tables[one - 1] ^ tables[two - 1]) for one, two, weight in instance[1:])
        return members(best_assignment(num, terms))

    def baseline(self, instance: Instance) -> float:
        """Return sum(w)/2 + sqrt(sum(w^2))/2: mean and standard deviation, as edges are independent in pairs."""
        weights = [weight for *_, weight in instance[1:]]
        return (sum(weights) + math.hypot(*weights)) / 2
