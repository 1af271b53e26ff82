"""A success curve as a PNG picture, drawn without a plotting package."""

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
"""[height, width, 3], the first row at the top."""
Colour = tuple[int, int, int]

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 20, 40
"""Margins around the plot, in pixels."""
_GRID: Final[Colour] = (224, 224, 224)
_TEXT: Final[Colour] = (72, 72, 72)
_INTERVAL: Final[Colour] = (150, 180, 224)
_LINE: Final[Colour] = (24, 90, 188)
_GLYPHS: Final = {
    "0": (7, 5, 5, 5, 7),
    "1": (2, 6, 2, 2, 7),
    "2": (7, 1, 7, 4, 7),
    "3": (7, 1, 7, 1, 7),
    "4": (5, 5, 7, 1, 1),
    "5": (7, 4, 7, 1, 7),
    "6": (7, 4, 7, 5, 7),
    "7": (7, 1, 1, 2, 2),
    "8": (7, 5, 7, 5, 7),
    "9": (7, 5, 7, 1, 7),
    "%": (5, 1, 2, 4, 5),
}
"""Character -> five rows of three pixels, as bits."""
_SCALE: Final = 3
_ADVANCE: Final = 4 * _SCALE
"""Pixels from one character to the next."""


class CurvePoint(NamedTuple):
    """One evaluation of a curve."""

    step: int
    """Train steps done before it."""
    value: float
    """Success rate, 0 to 1."""
    low: float
    high: float
    """Ends of its interval."""


def draw_curve(points: Sequence[CurvePoint]) -> bytes:
    """Return a PNG of success, 0 to 100 %, over the train steps, with an interval at each point.

    Args:
        points: at least one; drawn in the order of their steps.
    """
    ordered = sorted(points)
    pixels: Pixels = np.full((HEIGHT, WIDTH, 3), 255, dtype=np.uint8)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        _fill(pixels, LEFT, y_of(share), WIDTH - RIGHT, y_of(share), _GRID)
        label = f"{share:.0%}"
        _write(pixels, label, LEFT - 8 - _ADVANCE * len(label), y_of(share) - 7)
    first, last = ordered[0].step, ordered[-1].step
    places = [(point, x_of(point.step, first, last)) for point in ordered]
    for step in sorted({first, (first + last) // 2, last}):
        label, x = str(step), x_of(step, first, last)
        _fill(pixels, x, y_of(0.0), x, y_of(0.0) + 5, _TEXT)
        _write(pixels, label, min(x - _ADVANCE * len(label) // 2, WIDTH - 4 - _ADVANCE * len(label)), HEIGHT - 28)
    for point, x in places:
        _fill(pixels, x - 1, y_of(point.high), x + 1, y_of(point.low), _INTERVAL)
        for end in (point.low, point.high):
            _fill(pixels, x - 4, y_of(end), x + 4, y_of(end) + 1, _INTERVAL)
    for (before, x_before), (after, x_after) in pairwise(places):
        _connect(pixels, x_before, y_of(before.value), x_after, y_of(after.value))
    for point, x in places:
        _fill(pixels, x - 3, y_of(point.value) - 3, x + 3, y_of(point.value) + 3, _LINE)
    return _png(pixels)


def x_of(step: int, first: int, last: int) -> int:
    """Return the column of a step; one step alone stands in the middle."""
    share = (step - first) / (last - first) if last > first else 0.5
    return LEFT + 8 + round(share * (WIDTH - LEFT - RIGHT - 16))


def y_of(share: float) -> int:
    """Return the row of a success rate; 1 is at the top."""
    return TOP + round((1 - share) * (HEIGHT - TOP - BOTTOM))


def _fill(pixels: Pixels, x0: int, y0: int, x1: int, y1: int, colour: Colour) -> None:
    """Fill a rectangle, ends included."""
    pixels[max(y0, 0) : y1 + 1, max(x0, 0) : x1 + 1] = colour


def _connect(pixels: Pixels, x0: int, y0: int, x1: int, y1: int) -> None:
    count = max(abs(x1 - x0), abs(y1 - y0), 1) + 1
    xs, ys = np.linspace(x0, x1, count).round().astype(int), np.linspace(y0, y1, count).round().astype(int)
    for offset in (-1, 0):
        pixels[np.clip(ys + offset, 0, HEIGHT - 1), xs] = _LINE


def _write(pixels: Pixels, text: str, x: int, y: int) -> None:
    for number, character in enumerate(text):
        for row, bits in enumerate(_GLYPHS[character]):
            for column in range(3):
                if bits & (4 >> column):
                    left, top = x + number * _ADVANCE + column * _SCALE, y + row * _SCALE
                    _fill(pixels, left, top, left + _SCALE - 1, top + _SCALE - 1, _TEXT)


def _png(pixels: Pixels) -> bytes:
    """Return pixels as a PNG file: 8 bits a channel, no filter."""
    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * 3)], axis=1)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
