"""Problems about the vertices of a graph."""

import math
from collections.abc import Sequence
from itertools import combinations, count

import numpy as np

from envgym.envs.puzzles._np.graphs import GraphProblem, largest_clique, members, neighbor_masks
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, Instance
from envgym.envs.puzzles._np.truth_tables import best_assignment, variable_tables

AN_EDGE = 2
"""Vertices of the clique that is worth nothing."""


class Clique(GraphProblem):
    """Maximum clique: the most vertices of which every two are joined. Rows: a graph."""

    sizes, density = (8, 12, 20), 0.5
    form, is_maximum = AnswerForm.SUBSET, True
    answer_text = "the chosen vertices"
    goal = "Clique: choose as many of the vertices 1 to {first} as possible, every two of them joined by an edge."

    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        vertices, num = set(answer), len(answer)
        inside = [edge for edge in instance[1:] if edge[0] in vertices and edge[1] in vertices]
        if len(inside) < num * (num - 1) // 2:
            one, two = next(pair for pair in combinations(sorted(answer), 2) if pair not in inside)
            return f"The vertices {one} and {two} are not joined."
        return num

    def find_best(self, instance: Instance) -> Answer:
        return members(largest_clique(neighbor_masks(instance)))

    def baseline(self, instance: Instance) -> float:
        return AN_EDGE


class Coloring(GraphProblem):
    """Graph coloring: as few colors as possible, with different ones at the ends of every edge. Rows: a graph."""

    sizes, density = (7, 10, 16), 0.4
    form, is_maximum = AnswerForm.GROUPS, False
    answer_text = "the color of each vertex"
    goal = (
        "Graph coloring: color the vertices 1 to {first} with as few different colors as possible. The two ends of an "
        "edge must have different colors."
    )

    def num_groups(self, instance: Instance) -> int:
        return instance[0][0]

    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        for one, two in instance[1:]:
            if answer[one - 1] == answer[two - 1]:
                return f"The edge {one}-{two} has the same color at both ends."
        return len(set(answer))

    def find_best(self, instance: Instance) -> Answer:
        """Return a coloring with the fewest colors: the first number of colors for which there is one."""
        masks = neighbor_masks(instance)
        return next(answer for num in count(1) if (answer := _colored(masks, num, {})) is not None)

    def baseline(self, instance: Instance) -> float:
        """Return one more than the largest degree, which coloring the vertices one after another never exceeds."""
        return 1 + max(mask.bit_count() for mask in neighbor_masks(instance))


def _colored(masks: Sequence[int], num: int, colors: dict[int, int]) -> Answer | None:
    """Complete a coloring, the vertex first whose neighbors have the most colors (DSATUR)."""
    if len(colors) == len(masks):
        return tuple(colors[vertex] for vertex in range(len(masks)))
    around = {
        vertex: {color for other, color in colors.items() if mask >> other & 1}
        for vertex, mask in enumerate(masks)
        if vertex not in colors
    }
    next_vertex = max(around, key=lambda vertex: (len(around[vertex]), masks[vertex].bit_count()))
    for color in range(1, min(num, max(colors.values(), default=0) + 1) + 1):
        if color not in around[next_vertex]:
            answer = _colored(masks, num, {**colors, next_vertex: color})
            if answer is not None:
                return answer
    return None


class MaxCut(GraphProblem):
    """Maximum cut: two sides with the highest total weight between them. Rows: a graph with weights."""

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


NOT_JOINED = 2
"""Vertices that a cover worth nothing leaves out: any two that are not joined may be."""


class VertexCover(GraphProblem):
    """Vertex cover: as few vertices as possible, with an end of every edge among them. Rows: a graph."""

    sizes, density = (8, 12, 20), 0.3
    form, is_maximum = AnswerForm.SUBSET, False
    answer_text = "the chosen vertices"
    goal = (
        "Vertex cover: choose as few of the vertices 1 to {first} as possible, so that each edge has at least one "
        "chosen end."
    )

    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        cover = set(answer)
        for one, two in instance[1:]:
            if one not in cover and two not in cover:
                return f"The edge {one}-{two} has no chosen end."
        return len(answer)

    def find_best(self, instance: Instance) -> Answer:
        """Return all vertices but those of a largest independent set, which is a clique of what is not joined."""
        every = (1 << instance[0][0]) - 1
        apart = [every ^ mask ^ 1 << vertex for vertex, mask in enumerate(neighbor_masks(instance))]
        return members(every ^ largest_clique(apart))

    def baseline(self, instance: Instance) -> float:
        return instance[0][0] - NOT_JOINED
