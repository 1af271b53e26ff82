"""What can be concluded on a minesweeper board, and boards on which conclusions are enough."""

from collections.abc import Iterable
from functools import cache

import numpy as np

UNKNOWN = -1
"""What is seen of a place that is not open."""

View = tuple[int, ...]
"""By place: the number of mines around, or `UNKNOWN`."""


@cache
def neighbors_of(size: int) -> tuple[tuple[int, ...], ...]:
    """Return for each place of a square board the up to eight around it."""
    return tuple(
        tuple(
            other_row * size + other_column
            for other_row in range(max(0, row - 1), min(size, row + 2))
            for other_column in range(max(0, column - 1), min(size, column + 2))
            if (other_row, other_column) != (row, column)
        )
        for row in range(size)
        for column in range(size)
    )


def open_cells(view: View, mines: frozenset[int], place: int, size: int) -> View:
    """Open a place without a mine, and all around it where there is none around, and so on."""
    seen, queue = list(view), [place]
    while queue:
        at = queue.pop()
        if seen[at] != UNKNOWN:
            continue
        near = neighbors_of(size)[at]
        seen[at] = sum(other in mines for other in near)
        if seen[at] == 0:
            queue.extend(near)
    return tuple(seen)


def conclusions(view: View, size: int) -> tuple[set[int], set[int]]:
    """Return places that are safe, and places that hold mines, as far as two simple rules tell.

    A number whose mines are all known makes the rest around it safe, one with as many unknown places as mines fills
    them. Of two numbers, where the unknown places of one are among those of the other, the difference is a number too.
    """
    safe: set[int] = set()
    mines: set[int] = set()
    while True:
        facts = _facts(view, size, safe, mines)
        facts |= {
            (larger - smaller, most - few) for smaller, few in facts for larger, most in facts if smaller < larger
        }
        new_safe = {place for places, number in facts if number == 0 for place in places}
        new_mines = {place for places, number in facts if number == len(places) for place in places}
        if not new_safe and not new_mines:
            return safe, mines
        safe |= new_safe
        mines |= new_mines


def _facts(view: View, size: int, safe: Iterable[int], mines: set[int]) -> set[tuple[frozenset[int], int]]:
    """Return sets of unknown places with the number of mines in each."""
    facts: set[tuple[frozenset[int], int]] = set()
    for place, number in enumerate(view):
        if number > 0:
            near = [other for other in neighbors_of(size)[place] if view[other] == UNKNOWN]
            unknown = frozenset(near).difference(safe, mines)
            if unknown:
                facts.add((unknown, number - sum(other in mines for other in near)))
    return facts


def is_fair(mines: frozenset[int], start: int, size: int) -> bool:
    """Tell whether `size` safe places or more are left at the start, and all can be opened without a guess."""
    view = open_cells((UNKNOWN,) * size**2, mines, start, size)
    if view.count(UNKNOWN) < len(mines) + size:
        return False
    while view.count(UNKNOWN) > len(mines):
        safe, _ = conclusions(view, size)
        if not safe:
            return False
        for place in safe:
            view = open_cells(view, mines, place, size)
    return True


def draw_mines(rng: np.random.Generator, size: int, num_mines: int) -> tuple[int, frozenset[int]] | None:
    """Draw a start with no mine around, and mines; None where the board is not fair."""
    start = int(rng.integers(size**2))
    free = [place for place in range(size**2) if place != start and place not in neighbors_of(size)[start]]
    mines = frozenset(rng.permutation(free)[:num_mines].tolist())
    return (start, mines) if is_fair(mines, start, size) else None
