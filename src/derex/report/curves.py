"""Curves with intervals, as PNG files and as charts of a page: one set of curves, or a panel for each environment.

A method has one colour wherever it appears; its forms differ in their dashes. Shapes: T points of a curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from derex.report import palette
from derex.report.data import expect, expect_each, set_array
from derex.report.page import Section, chart_section

DASHES = (("solid", "-"), ("dash", (0, (4.5, 1.6))), ("dot", (0, (1.2, 1.2))))
"""Dashes of the first form, the second and the third: plotly's name and matplotlib's."""

COLUMNS = 2
_PANEL = 3.7, 2.55  # inches
_BAND = 0.15  # opacity


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve with an interval around it."""

    label: str  # label in legends
    x: np.ndarray  # (T,) horizontal positions
    mean: np.ndarray  # (T,) values; NaN leaves a gap
    low: np.ndarray  # (T,) lower end of the interval
    high: np.ndarray  # (T,) upper end of the interval

    def __post_init__(self) -> None:
        for name in ("x", "mean", "low", "high"):
            set_array(self, name)
            expect_each(name, getattr(self, name), len(self.x), "points of x")


@dataclass(frozen=True, eq=False)
class Line:
    """A curve and how it is drawn."""

    curve: Curve  # mean and interval
    colour: int = 0  # number of its colour
    dash: int = 0  # number of its dash

    @property
    def tint(self) -> str:
        """``#rrggbb``."""
        return palette.view_colour(self.colour)


@dataclass(frozen=True, eq=False)
class CurvePanel:
    """The curves of one environment."""

    title: str  # name of the environment
    ylabel: str  # label of the vertical axis
    lines: tuple[Line, ...]  # one for each method or form of it
    span: tuple[float, float] | None = None  # lowest and highest possible value; None if unknown

    @property
    def limits(self) -> tuple[float, float] | None:
        """The ends of the vertical axis: the span and some margin."""
        if self.span is None:
            return None
        low, high = self.span
        return low - 0.04 * (high - low), high + 0.04 * (high - low)


def curves_figure(
    curves: Sequence[Curve], path: str | Path, xlabel: str = "", ylabel: str = "", title: str = ""
) -> Path:
    """Writes curves with shaded intervals as a PNG, in the order of their colours."""
    from derex.report import figures, panels

    figure = figures.new_figure(6.4, 3.9)
    ax = figure.subplots()
    _draw_lines(ax, _lines_of(curves), xlabel, ylabel)
    panels.legend(ax)
    panels.heading(ax, title)
    return figures.save(figure, path)


def curves_section(
    title: str, curves: Sequence[Curve], xlabel: str = "", ylabel: str = "", caption: str = ""
) -> Section:
    """Makes a chart of curves with shaded intervals; labels are plain text, the caption is light Markdown."""
    return chart_section(title, _traces(_lines_of(curves)), (escape(xlabel), escape(ylabel)), caption)


def learning_figure(panels: Sequence[CurvePanel], path: str | Path, xlabel: str) -> Path:
    """Writes a PNG with the panels, two in a row, and one legend for all."""
    from derex.report import figures
    from derex.report.panels import LABEL_SIZE, heading

    expect(any(panel.lines for panel in panels), "panels", "at least one with a line", panels)
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width = max(columns * _PANEL[0], 5.2)
    figure = figures.new_figure(width, rows * _PANEL[1] + 0.6)
    axes = np.ravel(figure.subplots(rows, columns, squeeze=False))
    handles: dict[str, Any] = {}
    for ax, panel in zip(axes, panels, strict=False):
        _draw_lines(ax, panel.lines, xlabel, panel.ylabel)
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
        ax.set_xlim(left=0)
        if panel.limits is not None:
            ax.set_ylim(*panel.limits)
        heading(ax, panel.title)
    fitting = int(width / (0.65 + 0.075 * max(map(len, handles))))
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=max(1, min(4, len(handles), fitting)),
        fontsize=LABEL_SIZE, frameon=False, labelcolor=palette.INK, handlelength=2.4,
    )  # fmt: skip
    return figures.save(figure, path)


def learning_section(panel: CurvePanel, xlabel: str, caption: str = "") -> Section:
    """Makes a chart of the curves of one environment that can be hovered and zoomed."""
    labels = escape(xlabel), escape(panel.ylabel)
    axes = {"rangemode": "tozero"}, {} if panel.limits is None else {"range": panel.limits}
    return chart_section(f"{panel.title}: {panel.ylabel}", _traces(panel.lines), labels, caption, axes)


def _lines_of(curves: Sequence[Curve]) -> list[Line]:
    expect(curves, "curves", "at least one Curve", "none")
    return [Line(curve, number) for number, curve in enumerate(curves)]


def _draw_lines(ax: Any, lines: Sequence[Line], xlabel: str, ylabel: str) -> None:
    """Draws bands and lines."""
    from derex.report.panels import axes_style, plain_text, short_numbers

    for line in lines:
        curve, dash = line.curve, DASHES[line.dash % len(DASHES)][1]
        ax.fill_between(curve.x, curve.low, curve.high, color=line.tint, alpha=_BAND, linewidth=0)
        look = {"color": line.tint, "linewidth": 1.7, "linestyle": dash}
        ax.plot(curve.x, curve.mean, label=plain_text(curve.label), **look)
    ax.margins(x=0)
    axes_style(ax, plain_text(xlabel), plain_text(ylabel))
    short_numbers(ax)


def _traces(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """For each line plotly's traces: the ends of each part of the band without gaps, and the line."""
    traces: list[dict[str, Any]] = []
    for number, line in enumerate(lines):
        curve, dash = line.curve, DASHES[line.dash % len(DASHES)][0]
        red, green, blue = (round(255 * part) for part in palette.hex_to_rgb(line.tint))
        common: dict[str, Any] = {"type": "scatter", "mode": "lines", "legendgroup": str(number)}
        edge = {**common, "line": {"width": 0, "color": line.tint}, "showlegend": False, "hoverinfo": "skip"}
        filled = {**edge, "fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},{_BAND})"}
        known = np.isfinite(curve.low) & np.isfinite(curve.high)
        ends = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
        for part in (slice(begin, end) for begin, end in ends.reshape(-1, 2).tolist()):
            traces.append({**edge, "x": curve.x[part], "y": curve.high[part]})
            traces.append({**filled, "x": curve.x[part], "y": curve.low[part]})
        look = {"width": 2.25, "color": line.tint, "dash": dash}
        about = {"name": escape(curve.label), "hovertemplate": "%{y:.4g}"}
        traces.append({**common, "x": curve.x, "y": curve.mean, "line": look, **about})
    return traces
