"""Maximum cut: two sides with the highest total weight between them. Rows: a graph with weights."""

import math
from functools import lru_cache

import numpy as np

from envgym.envs.puzzles._np.graphs import canonical_graph, draw_graph, members, num_vertices, show_edges
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance
from envgym.envs.puzzles._np.truth_tables import best_assignment, variable_tables

DENSITY = 0.6


def draw(rng: np.random.Generator, num: int) -> Instance:
    """Draw edges, and weights from 1 to 9."""
    vertices, *edges = draw_graph(rng, num, DENSITY)
    weights = rng.integers(1, 10, size=len(edges)).tolist()
    return (vertices, *((*edge, weight) for edge, weight in zip(edges, weights, strict=True)))


def show(instance: Instance) -> str:
    """Write the goal and the edges."""
    goal = f"Maximum cut: divide the vertices 1 to {num_vertices(instance)} into two sides, so that the total weight of"
    return (
        f"{goal} the edges from one side to the other is as high as possible.\n{show_edges(instance)} (FROM-TO:WEIGHT)"
    )


def evaluate(instance: Instance, answer: Answer) -> int | str:
    """Return the total weight between the sides."""
    side = set(answer)
    return sum([weight for one, two, weight in instance[1:] if (one in side) != (two in side)])


@lru_cache(maxsize=4096)
def solve(instance: Instance) -> Answer:
    """Return one side of the best of all divisions; the last vertex is on the other."""
    num = num_vertices(instance) - 1
    tables = [*variable_tables(num), 0]
    return members(
        best_assignment(num, ((weight, tables[one - 1] ^ tables[two - 1]) for one, two, weight in instance[1:]))
    )


def baseline(instance: Instance) -> float:
    """Return sum(w)/2 + sqrt(sum(w^2))/2: mean and standard deviation, as edges are independent in pairs."""
    weights = [weight for *_, weight in instance[1:]]
    return (sum(weights) + math.hypot(*weights)) / 2


MAX_CUT = HardProblem(
    sizes=(6, 9, 14),
    form=AnswerForm.SUBSET,
    is_maximum=True,
    asked="the vertices of one side",
    draw=draw,
    show=show,
    num_things=num_vertices,
    evaluate=evaluate,
    solve=solve,
    baseline=baseline,
    canonical=canonical_graph,
)
