"""Sudoku grids of boxes: solving them, drawing them, and what makes two of them the same puzzle."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product

import numpy as np

Grid = tuple[int, ...]
"""Row by row; 0 is empty."""

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}
"""Size -> rows and columns of a box."""


@cache
def units(size: int) -> tuple[tuple[int, ...], ...]:
    """Return the places of every row, column and box."""
    high, wide = BOXES[size]
    rows = [tuple(row * size + column for column in range(size)) for row in range(size)]
    columns = [tuple(row * size + column for row in range(size)) for column in range(size)]
    boxes = [
        tuple((top + row) * size + left + column for row in range(high) for column in range(wide))
        for top in range(0, size, high)
        for left in range(0, size, wide)
    ]
    return (*rows, *columns, *boxes)


@cache
def peers(size: int) -> tuple[tuple[int, ...], ...]:
    """Return for each place all others that may not have the same digit."""
    return tuple(
        tuple({other for unit in units(size) if place in unit for other in unit} - {place})
        for place in range(size * size)
    )


def solutions(grid: Sequence[int], size: int, order: Sequence[int] | None = None) -> Iterator[Grid]:
    """Yield every full grid that has the digits of `grid`; digits are tried in `order`.

    The place with the fewest digits left is filled first.
    """
    digits = tuple(order or range(1, size + 1))
    cells, every = list(grid), (1 << (size + 1)) - 2
    used = [0] * (size * size)
    for place, near in enumerate(peers(size)):
        used[place] = sum({1 << cells[other] for other in near if cells[other]})
        if cells[place] and used[place] >> cells[place] & 1:
            return

    def fill() -> Iterator[Grid]:
        empty = [place for place, digit in enumerate(cells) if not digit]
        if not empty:
            yield tuple(cells)
            return
        place = max(empty, key=lambda at: used[at].bit_count())
        free = every & ~used[place]
        for digit in digits:
            if free >> digit & 1:
                changed = [other for other in peers(size)[place] if not used[other] >> digit & 1]
                cells[place] = digit
                for other in changed:
                    used[other] |= 1 << digit
                yield from fill()
                for other in changed:
                    used[other] &= ~(1 << digit)
                cells[place] = 0

    yield from fill()


def draw_puzzle(rng: np.random.Generator, size: int, blanks: int) -> tuple[Grid, Grid]:
    """Draw a full grid, and one with `blanks` empty places into which nothing else fits (fewer, if that cannot be)."""
    first = [0] * (size * size)
    row = rng.permutation(size) + 1
    first[:size] = row.tolist()
    full = next(solutions(first, size, order=(rng.permutation(size) + 1).tolist()))
    full = _shuffle(full, size, rng)
    cells, left = list(full), blanks
    for place in rng.permutation(size * size).tolist():
        if not left:
            break
        digit, cells[place] = cells[place], 0
        if _is_forced(cells, size, place, digit):
            left -= 1
        else:
            cells[place] = digit
    return tuple(cells), full


def _is_forced(cells: list[int], size: int, place: int, digit: int) -> bool:
    """Tell whether a place emptied last can take no other digit than its own, the rest being as it is."""
    peer_digits = {cells[other] for other in peers(size)[place]}
    for other in range(1, size + 1):
        if other != digit and other not in peer_digits:
            cells[place] = other
            is_possible = next(solutions(cells, size), None) is not None
            cells[place] = 0
            if is_possible:
                return False
    return True


def _lines(size: int, rng: np.random.Generator, band: int) -> list[int]:
    """Return rows (or columns) in another order: bands of `band` stay together."""
    starts = rng.permutation(size // band) * band
    return [int(start + line) for start in starts for line in rng.permutation(band)]


def _shuffle(grid: Grid, size: int, rng: np.random.Generator) -> Grid:
    high, wide = BOXES[size]
    rows, columns = _lines(size, rng, high), _lines(size, rng, wide)
    return tuple(grid[row * size + column] for row in rows for column in columns)


@dataclass(frozen=True, slots=True)
class GridSymmetry:
    """A symmetry of a puzzle: how its cells and digits are exchanged against the canonical grid."""

    size: int
    symmetry: int = 0
    digits: Grid = ()
    """Digit n of the canonical grid stands for the n-th of these; for itself where there are none."""

    def canonical(self, grid: Grid) -> Grid:
        """Return the canonical grid of which `grid` is the image."""
        number = {digit: index for index, digit in enumerate(self.digits, start=1)}
        return tuple(number.get(grid[place], grid[place]) for place in symmetries(self.size)[self.symmetry])

    def apply(self, canonical: Grid) -> Grid:
        """Return the image of the canonical grid."""
        cells = [0] * len(canonical)
        for place, digit in zip(symmetries(self.size)[self.symmetry], canonical, strict=True):
            cells[place] = self.digits[digit - 1] if digit and self.digits else digit
        return tuple(cells)


def canonical_symmetry(grid: Grid, size: int) -> GridSymmetry:
    """Return the symmetry whose canonical grid comes before those of all other symmetries.

    Grids are the same puzzle that differ in their digits alone, that are mirrored or turned where boxes stay boxes, and
    for size 4 those with rows, columns, bands and stacks exchanged as well.
    """
    candidates = (
        GridSymmetry(size, symmetry, _digits(grid, places, size)) for symmetry, places in enumerate(symmetries(size))
    )
    return min(candidates, key=lambda symmetry: symmetry.canonical(grid))


def _digits(grid: Grid, places: Sequence[int], size: int) -> Grid:
    digits = dict.fromkeys(grid[place] for place in places if grid[place])
    return (*digits, *(digit for digit in range(1, size + 1) if digit not in digits))


@cache
def symmetries(size: int) -> tuple[tuple[int, ...], ...]:
    """Return orders of the places that keep rows, columns and boxes."""
    straight = list(range(size))
    orders = _band_orders() if size == 4 else [straight, straight[::-1]]
    images = [
        tuple(row * size + column for row in rows for column in columns) for rows, columns in product(orders, orders)
    ]
    if BOXES[size][0] == BOXES[size][1]:
        images += [tuple(place % size * size + place // size for place in places) for places in images]
    return tuple(images)


def _band_orders() -> list[list[int]]:
    """Return the eight orders of four rows in which the first two, and the last two, stay together."""
    bands = [(0, 1), (2, 3)]
    return [
        [*one, *other]
        for first, second in permutations(bands)
        for one in permutations(first)
        for other in permutations(second)
    ]
