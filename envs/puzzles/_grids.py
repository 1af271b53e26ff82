"""Square boards of characters: rows, the four moves, and the eight symmetries that leave a board the same puzzle."""

from collections.abc import Sequence
from functools import cache

from envgym.core.tasks import Task

Rows = tuple[str, ...]

MOVES = ("up", "right", "down", "left")
"""Clockwise, so that the neighbours of a move in this list are its sides."""
STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Row and column of each move."""
NUM_SYMMETRIES = 8


@cache
def neighbors(size: int) -> tuple[tuple[int, ...], ...]:
    """Return for each move where it leads from each place of a `size` x `size` board; against the edge it stays."""
    return tuple(tuple(_moved(place, step, size) for place in range(size * size)) for step in STEPS)


def _moved(place: int, step: tuple[int, int], size: int) -> int:
    row, column = place // size + step[0], place % size + step[1]
    return row * size + column if 0 <= row < size and 0 <= column < size else place


def turned(rows: Sequence[str], symmetry: int) -> Rows:
    """Return the rows under symmetry number 0 to 7: 1 flips up and down, 2 left and right, 4 the diagonal (last)."""
    flipped = [row[::-1] for row in rows] if symmetry & 2 else list(rows)
    if symmetry & 1:
        flipped.reverse()
    return tuple(map("".join, zip(*flipped, strict=True))) if symmetry & 4 else tuple(flipped)


def canonical_rows(rows: Sequence[str]) -> tuple[Rows, int]:
    """Return the first, in alphabetical order, of the eight boards that are the same, and the symmetry of `rows`."""
    first = min(turned(rows, symmetry) for symmetry in range(NUM_SYMMETRIES))
    return first, next(symmetry for symmetry in range(NUM_SYMMETRIES) if turned(first, symmetry) == tuple(rows))


def board_of(task: Task) -> Rows:
    """Return the board of a task, whose payload has it in its canonical form, as it is shown."""
    rows, symmetry = task.payload["board"], task.metadata.get("symmetry", 0)
    assert isinstance(rows, Sequence), "made by an env with boards"
    assert isinstance(symmetry, int), "made by an env with boards"
    return turned([str(row) for row in rows], symmetry)


def rows_of(cells: str, size: int) -> Rows:
    """Cut the places of a square board into its rows."""
    return tuple(cells[start : start + size] for start in range(0, size * size, size))
