"""Learning curves as one SVG: panels side by side, in each a line with its interval for every arm."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from benchmarks._studies import Mean

COLORS = ("#555555", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b3294", "#8c510a")
"""Of the arms in their order; told apart by those who see few colors."""
PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP, BOTTOM, GAP = 330, 230, 56, 58, 50, 48
LEGEND_WIDTH = 165
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


class CurvePoint(NamedTuple):
    """Success after so many steps, or tokens."""

    spent: float
    success: Mean


Curves = Mapping[str, Sequence[CurvePoint]]
"""Arm -> its points."""


def plot(panels: Mapping[str, Curves], *, axis: str) -> str:
    """Return the figure as SVG text; `axis` names what was spent."""
    arms = list(next(iter(panels.values())))
    width = LEFT + len(panels) * (PANEL_WIDTH + GAP)
    in_row = max(1, (width - LEFT) // LEGEND_WIDTH)
    head = 20 * ((len(arms) - 1) // in_row)
    height = head + TOP + PANEL_HEIGHT + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="Held-out success over {escape(axis)}, by arm">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, arm in enumerate(arms):
        x, y, color = LEFT + LEGEND_WIDTH * (number % in_row), 14 + 20 * (number // in_row), COLORS[number]
        parts.append(f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 30}" y="{y + 4}">{escape(arm)}</text>')
    for number, (title, curves) in enumerate(panels.items()):
        parts += _panel(title, curves, axis, left=LEFT + number * (PANEL_WIDTH + GAP), top=head + TOP)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, curves: Curves, axis: str, *, left: int, top: int) -> list[str]:
    most = max(point.spent for points in curves.values() for point in points)
    bottom = top + PANEL_HEIGHT

    def x(spent: float) -> float:
        return left + PANEL_WIDTH * spent / most

    def y(share: float) -> float:
        return bottom - PANEL_HEIGHT * min(max(share, 0.0), 1.0)

    parts = [f'<text x="{left}" y="{top - 14}" font-weight="bold">{escape(title)}</text>']
    for tick in _TICKS:
        parts.append(
            f'<line x1="{left}" x2="{left + PANEL_WIDTH}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end" font-size="10">{tick:.0%}</text>')
    for spent in sorted({point.spent for points in curves.values() for point in points}):
        parts.append(f'<text x="{x(spent):.1f}" y="{bottom + 16}" text-anchor="middle" font-size="10">{spent:g}</text>')
    parts.append(f'<text x="{left + PANEL_WIDTH / 2}" y="{bottom + 36}" text-anchor="middle">{escape(axis)}</text>')
    opacity = 0.15 if len(curves) <= 4 else 0.06
    for color, points in zip(COLORS, curves.values(), strict=False):
        ups = [f"{x(point.spent):.1f},{y(point.success.high):.1f}" for point in points]
        downs = [f"{x(point.spent):.1f},{y(point.success.low):.1f}" for point in reversed(points)]
        middles = [f"{x(point.spent):.1f},{y(point.success.value):.1f}" for point in points]
        parts.append(f'<polygon points="{" ".join(ups + downs)}" fill="{color}" fill-opacity="{opacity}"/>')
        parts.append(f'<polyline points="{" ".join(middles)}" fill="none" stroke="{color}" stroke-width="2.5"/>')
    return parts
