"""Graphs as instances: the number of vertices in the first row, then an edge a row, with its weight if it has one."""

from collections.abc import Sequence
from itertools import combinations
from typing import ClassVar

import numpy as np

from envgym.envs.puzzles._np.problem import HardProblem, Instance
from envgym.envs.puzzles._np.symmetry import canonical_order


class GraphProblem(HardProblem):
    """A problem about the vertices of a graph."""

    density: ClassVar[float]
    """Probability of each edge."""

    def draw(self, rng: np.random.Generator, num: int) -> Instance:
        pairs = list(combinations(range(1, num + 1), 2))
        draws = zip(pairs, rng.random(len(pairs)), strict=True)
        return ((num,), *(pair for pair, draw in draws if draw < self.density))

    def show_things(self, instance: Instance) -> str:
        return "Edges: " + " ".join(
            f"{one}-{two}{''.join(f':{weight}' for weight in rest)}" for one, two, *rest in instance[1:]
        )

    def num_things(self, instance: Instance) -> int:
        return instance[0][0]

    def canonical(self, instance: Instance) -> Instance:
        return canonical_graph(instance)


def canonical_graph(graph: Instance) -> Instance:
    """Return the graph with its vertices in canonical order."""
    edges = {(one - 1, two - 1): sum(rest) for one, two, *rest in graph[1:]}
    order = canonical_order([0] * graph[0][0], edges)
    place = {vertex + 1: index for index, vertex in enumerate(order, start=1)}
    return (graph[0], *sorted((*sorted((place[one], place[two])), *rest) for one, two, *rest in graph[1:]))


def neighbor_masks(graph: Instance) -> list[int]:
    """Return the neighbors of each vertex as bits, vertex 1 being bit 0."""
    masks = [0] * graph[0][0]
    for one, two, *_ in graph[1:]:
        masks[one - 1] |= 1 << two - 1
        masks[two - 1] |= 1 << one - 1
    return masks


def largest_clique(masks: Sequence[int]) -> int:
    """Return the vertices of a largest clique as bits, by branch and bound on the number of those left."""
    best = 0

    def extend(clique: int, left: int) -> None:
        nonlocal best
        if clique.bit_count() > best.bit_count():
            best = clique
        while left and clique.bit_count() + left.bit_count() > best.bit_count():
            lowest = left & -left
            left ^= lowest
            extend(clique | lowest, left & masks[lowest.bit_length() - 1])

    extend(0, (1 << len(masks)) - 1)
    return best


def members(mask: int) -> tuple[int, ...]:
    """Return the vertices that are bits of `mask`, from 1."""
    return tuple(index + 1 for index in range(mask.bit_length()) if mask >> index & 1)
