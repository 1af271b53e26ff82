"""Maximum clique: the most vertices of which every two are joined. Rows: a graph."""

from functools import lru_cache
from itertools import combinations

from envgym.envs.puzzles._np.graphs import (
    canonical_graph,
    draw_graph,
    largest_clique,
    members,
    neighbor_masks,
    num_vertices,
    show_edges,
)
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance

DENSITY = 0.5
AN_EDGE = 2
"""Vertices of the clique that is worth nothing."""


def show(instance: Instance) -> str:
    """Write the goal and the edges."""
    goal = f"Clique: choose as many of the vertices 1 to {num_vertices(instance)} as possible, every two of them joined"
    return f"{goal} by an edge.\n{show_edges(instance)}"


def evaluate(instance: Instance, answer: Answer) -> int | str:
    """Return the number of vertices, unless two are not joined."""
    chosen, num = set(answer), len(answer)
    inside = [edge for edge in instance[1:] if edge[0] in chosen and edge[1] in chosen]
    if len(inside) < num * (num - 1) // 2:
        one, two = next(pair for pair in combinations(sorted(answer), 2) if pair not in inside)
        return f"The vertices {one} and {two} are not joined."
    return num


@lru_cache(maxsize=4096)
def solve(instance: Instance) -> Answer:
    """Return a largest clique."""
    return members(largest_clique(neighbor_masks(instance)))


CLIQUE = HardProblem(
    sizes=(8, 12, 20),
    form=AnswerForm.SUBSET,
    is_maximum=True,
    asked="the chosen vertices",
    draw=lambda rng, num: draw_graph(rng, num, DENSITY),
    show=show,
    num_things=num_vertices,
    evaluate=evaluate,
    solve=solve,
    baseline=lambda instance: AN_EDGE,
    canonical=canonical_graph,
)
