"""Vertex cover: as few vertices as possible, with an end of every edge among them. Rows: a graph."""

from functools import lru_cache

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

DENSITY = 0.3
NOT_JOINED = 2
"""Vertices that a cover worth nothing leaves out: any two that are not joined may be."""


def show(instance: Instance) -> str:
    """Write the goal and the edges."""
    goal = (
        f"Vertex cover: choose as few of the vertices 1 to {num_vertices(instance)} as possible, so that each edge has"
    )
    return f"{goal} at least one chosen end.\n{show_edges(instance)}"


def evaluate(instance: Instance, answer: Answer) -> int | str:
    """Return the number of vertices, unless an edge is not covered."""
    chosen = set(answer)
    for one, two in instance[1:]:
        if one not in chosen and two not in chosen:
            return f"The edge {one}-{two} has no chosen end."
    return len(answer)


@lru_cache(maxsize=4096)
def solve(instance: Instance) -> Answer:
    """Return all vertices but those of a largest independent set, which is a clique of what is not joined."""
    every = (1 << num_vertices(instance)) - 1
    apart = [every ^ mask ^ 1 << vertex for vertex, mask in enumerate(neighbor_masks(instance))]
    return members(every ^ largest_clique(apart))


VERTEX_COVER = HardProblem(
    sizes=(8, 12, 20),
    form=AnswerForm.SUBSET,
    is_maximum=False,
    asked="the chosen vertices",
    draw=lambda rng, num: draw_graph(rng, num, DENSITY),
    show=show,
    num_things=num_vertices,
    evaluate=evaluate,
    solve=solve,
    baseline=lambda instance: num_vertices(instance) - NOT_JOINED,
    canonical=canonical_graph,
)
