"""Graph coloring: as few colors as possible, with different ones at the ends of every edge. Rows: a graph."""

from collections.abc import Sequence
from itertools import count

from envgym.envs.puzzles._np.graphs import GraphProblem, neighbor_masks
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, Instance


class Coloring(GraphProblem):
    """Graph coloring."""

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
