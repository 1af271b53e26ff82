"""Graph coloring: as few colors as possible, with different ones at the ends of every edge. Rows: a graph."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import count

from envgym.envs.puzzles._np.graphs import canonical_graph, draw_graph, neighbor_masks, num_vertices, show_edges
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance

DENSITY = 0.4


def show(instance: Instance) -> str:
    """Write the goal and the edges."""
    goal = f"Graph coloring: color the vertices 1 to {num_vertices(instance)} with as few different colors as possible."
    return f"{goal} The two ends of an edge must have different colors.\n{show_edges(instance)}"


def evaluate(instance: Instance, answer: Answer) -> int | str:
    """Return the number of colors, unless an edge has one."""
    for one, two in instance[1:]:
        if answer[one - 1] == answer[two - 1]:
            return f"The edge {one}-{two} has the same color at both ends."
    return len(set(answer))


@lru_cache(maxsize=4096)
def solve(instance: Instance) -> Answer:
    """Return a coloring with the fewest colors: the first number of colors for which there is one."""
    masks = neighbor_masks(instance)
    return next(answer for num in count(1) if (answer := _colored(masks, num, {})) is not None)


def _colored(masks: Sequence[int], num: int, colors: dict[int, int]) -> Answer | None:
    """Complete a coloring, the vertex first whose neighbors have the most colors (DSATUR)."""
    if len(colors) == len(masks):
        return tuple(colors[vertex] for vertex in range(len(masks)))
    around = {
        vertex: {color for other, color in colors.items() if mask >> other & 1}
        for vertex, mask in enumerate(masks)
        if vertex not in colors
    }
    chosen = max(around, key=lambda vertex: (len(around[vertex]), masks[vertex].bit_count()))
    for color in range(1, min(num, max(colors.values(), default=0) + 1) + 1):
        if color not in around[chosen]:
            answer = _colored(masks, num, {**colors, chosen: color})
            if answer is not None:
                return answer
    return None


def baseline(instance: Instance) -> float:
    """Return one more than the largest degree, which coloring the vertices one after another never exceeds."""
    return 1 + max(mask.bit_count() for mask in neighbor_masks(instance))


COLORING = HardProblem(
    sizes=(7, 10, 16),
    form=AnswerForm.GROUPS,
    is_maximum=False,
    asked="the color of each vertex",
    draw=lambda rng, num: draw_graph(rng, num, DENSITY),
    show=show,
    num_things=num_vertices,
    num_groups=num_vertices,
    evaluate=evaluate,
    solve=solve,
    baseline=baseline,
    canonical=canonical_graph,
)
