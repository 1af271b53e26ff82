"""Charts of studies as SVG by matplotlib: learning curves, and differences with their intervals.

The same numbers give the same bytes: ids come from a fixed salt, and nothing writes a date.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks._study_statistics import Mean

COLORS = ("#555555", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b3294", "#8c510a")
"""Of the arms in their order; distinct for color-blind readers."""
PANEL_WIDTH, PANEL_HEIGHT, ROW_HEIGHT = 3.8, 3.2, 0.25
LEGEND_COLUMNS = 5
_STYLE: dict[Any, Any] = {  # matplotlib's type lists every name of a setting
    "svg.hashsalt": "envgym",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


class CurvePoint(NamedTuple):
    spent: float
    success: Mean


Curves = Mapping[str, Sequence[CurvePoint]]
"""Arm -> its points."""


def plot_curves(panels: Mapping[str, Curves], *, axis: str) -> str:
    """Draw a panel for each entry, in it a line with its interval for every arm; `axis` names what was spent."""
    with _drawing(panels, PANEL_HEIGHT) as (figure, axes, text):
        for (title, curves), panel in zip(panels.items(), axes, strict=True):
            opacity = 0.15 if len(curves) <= 4 else 0.06
            for color, (arm, points) in zip(COLORS, curves.items(), strict=False):
                spent = [point.spent for point in points]
                lows, highs = [point.success.low for point in points], [point.success.high for point in points]
                panel.plot(spent, [point.success.value for point in points], color=color, linewidth=2, label=arm)
                panel.fill_between(spent, lows, highs, color=color, alpha=opacity, linewidth=0)
            panel.set(title=title, xlabel=axis, ylim=(0, 1))
            panel.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
            panel.grid(axis="y", color="#dddddd")
        handles, labels = axes[0].get_legend_handles_labels()
        columns = min(LEGEND_COLUMNS, len(labels))
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False)
    return text.getvalue()


def plot_differences(panels: Mapping[str, Mapping[str, Mean]], *, axis: str) -> str:
    """Draw differences of shares in points, arms from the best to the worst of the first panel.

    Args:
        panels: title -> arm -> difference as a share; every panel has the same arms.
        axis: what the differences are of.
    """
    first = next(iter(panels.values()))
    arms = sorted(first, key=lambda arm: first[arm].value)
    with _drawing(panels, 1.1 + ROW_HEIGHT * len(arms)) as (_, axes, text):
        for (title, means), panel in zip(panels.items(), axes, strict=True):
            values = [100 * means[arm].value for arm in arms]
            lows = [100 * (means[arm].value - means[arm].low) for arm in arms]
            highs = [100 * (means[arm].high - means[arm].value) for arm in arms]
            panel.errorbar(values, arms, xerr=(lows, highs), fmt="o", color="#0072b2")
            panel.axvline(0, color="#999999", linewidth=1)
            panel.set(title=title, xlabel=axis)
            panel.locator_params(axis="x", nbins=6)
    return text.getvalue()


@contextmanager
def _drawing(panels: Mapping[str, object], height: float) -> Iterator[tuple[Figure, list[Axes], StringIO]]:
    text = StringIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(PANEL_WIDTH * len(panels) + 0.4, height), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)
        yield figure, list(axes[0]), text
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
