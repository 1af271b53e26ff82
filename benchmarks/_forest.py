"""Differences with their intervals as one SVG: panels side by side, in each a line for every arm."""

import math
from collections.abc import Mapping
from xml.sax.saxutils import escape

from benchmarks._studies import Mean

LEFT, PANEL_WIDTH, GAP, TOP, ROW, BOTTOM = 130, 300, 40, 46, 22, 46


def forest(panels: Mapping[str, Mapping[str, Mean]], *, axis: str) -> str:
    """Return the figure as SVG text: arms from the best to the worst of the first panel, values in points.

    Args:
        panels: title -> arm -> difference as a share; every panel has the same arms.
        axis: what the differences are of.
    """
    first = next(iter(panels.values()))
    arms = sorted(first, key=lambda arm: -first[arm].value)
    most = max(abs(end) for arms_of in panels.values() for mean in arms_of.values() for end in (mean.low, mean.high))
    ends = 5 * math.ceil(100 * most / 5)
    width, height = LEFT + len(panels) * (PANEL_WIDTH + GAP), TOP + ROW * len(arms) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(axis)}, by arm">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, arm in enumerate(arms):
        parts.append(f'<text x="{LEFT - 10}" y="{_y(number) + 4}" text-anchor="end">{escape(arm)}</text>')
    for number, (title, means) in enumerate(panels.items()):
        left = LEFT + number * (PANEL_WIDTH + GAP)
        parts += _panel(title, [means[arm] for arm in arms], axis, left=left, ends=ends)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _y(number: int) -> float:
    return TOP + ROW * (number + 0.5)


def _panel(title: str, means: list[Mean], axis: str, *, left: int, ends: int) -> list[str]:
    bottom = TOP + ROW * len(means)

    def x(points: float) -> float:
        return left + PANEL_WIDTH * (points + ends) / (2 * ends)

    parts = [f'<text x="{left}" y="{TOP - 16}" font-weight="bold">{escape(title)}</text>']
    for tick in (-ends, 0, ends):
        color = "#999" if tick == 0 else "#ddd"
        parts.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{bottom}" stroke="{color}"/>')
        label = f"{tick:+d}" if tick else "0"
        parts.append(f'<text x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="middle" font-size="10">{label}</text>')
    parts.append(f'<text x="{left + PANEL_WIDTH / 2}" y="{bottom + 34}" text-anchor="middle">{escape(axis)}</text>')
    for number, mean in enumerate(means):
        y, low, high = _y(number), x(100 * mean.low), x(100 * mean.high)
        parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="#0072b2" stroke-width="2"/>')
        parts.append(f'<circle cx="{x(100 * mean.value):.1f}" cy="{y}" r="4" fill="#0072b2"/>')
    return parts
