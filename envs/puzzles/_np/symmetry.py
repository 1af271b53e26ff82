"""A canonical order of the vertices of a small graph with colored vertices and labeled edges."""

from collections.abc import Mapping, Sequence

Edges = Mapping[tuple[int, int], int]
"""Two vertices, counted from 0, and the label of their edge."""
Neighbors = Sequence[Mapping[int, int]]


def canonical_order(colors: Sequence[int], edges: Edges) -> list[int]:
    """Return the vertices in an order in which all graphs that differ by names alone have the same edges.

    Colors are less than the number of vertices, labels at least 0.

    Individualization and refinement: the vertices are split by what their neighbors are until each is alone; where
    that stops, each vertex of the first cell is set apart in turn, and the order with the least list of edges is kept.
    Of twins, whose neighbors are the same, one is enough.
    """
    neighbors: list[dict[int, int]] = [{} for _ in colors]
    for (one, other), label in edges.items():
        neighbors[one][other] = neighbors[other][one] = label
    _, order = min(_leaves(neighbors, _refined(neighbors, colors)))
    return order


def _leaves(neighbors: Neighbors, colors: Sequence[int]) -> list[tuple[list[tuple[int, int, int]], list[int]]]:
    """Return the edges and the order of every discrete coloring below `colors`."""
    cells: dict[int, list[int]] = {}
    for vertex, color in enumerate(colors):
        cells.setdefault(color, []).append(vertex)
    cell = next((cells[color] for color in sorted(cells) if len(cells[color]) > 1), None)
    if cell is None:
        named = [(colors[one], colors[two], label) for one, row in enumerate(neighbors) for two, label in row.items()]
        return [(sorted(named), sorted(range(len(colors)), key=lambda vertex: colors[vertex]))]
    leaves = []
    for index, vertex in enumerate(cell):
        if any(_are_twins(neighbors, vertex, other) for other in cell[:index]):
            continue
        apart = [2 * color + 1 for color in colors]
        apart[vertex] -= 1
        leaves += _leaves(neighbors, _refined(neighbors, apart))
    return leaves


def _are_twins(neighbors: Neighbors, one: int, other: int) -> bool:
    """Tell whether exchanging two vertices changes nothing."""
    first = {vertex: label for vertex, label in neighbors[one].items() if vertex != other}
    return first == {vertex: label for vertex, label in neighbors[other].items() if vertex != one}


def _refined(neighbors: Neighbors, colors: Sequence[int]) -> list[int]:
    """Split the cells until the vertices of each have neighbors in the same cells."""
    current, num_cells, most = list(colors), 0, 2 * len(colors)
    rows = [list(row.items()) for row in neighbors]
    while True:
        seen = [
            (color, tuple(sorted([label * most + current[other] for other, label in row])))
            for color, row in zip(current, rows, strict=True)
        ]
        ranks = {signature: rank for rank, signature in enumerate(sorted(set(seen)))}
        current = [ranks[signature] for signature in seen]
        if len(ranks) in (num_cells, len(colors)):
            return current
        num_cells = len(ranks)
