"""Maximum clique: the most vertices of which every two are joined. Rows: a graph."""

from itertools import combinations

from envgym.envs.puzzles._np.graphs import GraphProblem, largest_clique, members, neighbor_masks
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, Instance

AN_EDGE = 2
"""Vertices of the clique that is worth nothing."""


class Clique(GraphProblem):
    """Maximum clique."""

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
