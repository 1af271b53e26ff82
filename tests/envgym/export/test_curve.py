"""The picture of a success curve."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from envgym.export.curve import HEIGHT, WIDTH, CurvePoint, draw_curve, x_of, y_of


def read_png(data: bytes) -> NDArray[np.uint8]:
    """Return the pixels of a PNG without filters, [height, width, 3], having checked every chunk."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    place = 8
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        kind, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size : place + 12 + size]) == (zlib.crc32(kind + content),)
        chunks[kind] = content
        place += 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (width, height, depth, colour) == (WIDTH, HEIGHT, 8, 2)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + width * 3)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def is_line(pixels: NDArray[np.uint8], x: int, y: int) -> bool:
    return tuple(pixels[y, x]) == (24, 90, 188)


def test_every_point_and_the_line_between_them_lie_at_their_step_and_rate() -> None:
    points = [CurvePoint(40, 1.0, 0.9, 1.0), CurvePoint(0, 0.0, 0.0, 0.1), CurvePoint(20, 0.75, 0.5, 0.9)]
    pixels = read_png(draw_curve(points))
    # The plot is 552 pixels wide from x = 64, with 8 pixels at either side, and 260 high from y = 20.
    assert [x_of(step, 0, 40) for step in (0, 20, 40)] == [72, 340, 608]
    assert [y_of(rate) for rate in (0.0, 0.75, 1.0)] == [280, 85, 20]
    assert all(is_line(pixels, x_of(step, 0, 40), y_of(rate)) for step, rate, *_ in points)
    assert is_line(pixels, (340 + 608) // 2, (85 + 20) // 2)
    assert not is_line(pixels, 340, y_of(0.25))
    assert tuple(pixels[y_of(0.52), 340]) == (150, 180, 224), "the interval from 0.5 to 0.9"


def test_a_point_alone_and_rates_at_the_ends_are_drawn() -> None:
    pixels = read_png(draw_curve([CurvePoint(100_000, 0.0, 0.0, 0.0)]))
    assert is_line(pixels, x_of(100_000, 100_000, 100_000), y_of(0.0))
