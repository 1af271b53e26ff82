"""Vertex cover: as few vertices as possible, with an end of every edge among them. Rows: a graph."""

from envgym.envs.puzzles._np.graphs import GraphProblem, largest_clique, members, neighbor_masks
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, Instance

NOT_JOINED = 2
"""Vertices that a cover worth nothing leaves out: any two that are not joined may be."""


class VertexCover(GraphProblem):
    """Minimum vertex cover."""

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
