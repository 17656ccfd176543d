"""Learning curves of several methods on several environments: one PNG of all, and a chart of each for the page.

A method has one colour wherever it appears, its forms differ in their dashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from derex.report import panels as palette
from derex.report.data import Curve
from derex.report.page import PLOTLY, Section, payload_section

DASHES = (("solid", "-"), ("dash", (0, (4.5, 1.6))), ("dot", (0, (1.2, 1.2))))
"""of the first form, the second, the third: plotly's name and matplotlib's"""

COLUMNS = 2
_PANEL = 3.7, 2.55  # inches
_BAND = 0.14  # opacity


@dataclass(frozen=True, eq=False)
class Line:
    """A curve and how it is drawn.

    Attributes:
        curve: mean and interval.
        colour: number of its colour.
        dash: number of its dash.
    """

    curve: Curve
    colour: int = 0
    dash: int = 0

    @property
    def tint(self) -> str:
        """``#rrggbb``."""
        return palette.view_colour(self.colour)

    @property
    def dashes(self) -> tuple[str, Any]:
        """Plotly's name of the dash, and matplotlib's."""
        return DASHES[self.dash % len(DASHES)]


@dataclass(frozen=True, eq=False)
class CurvePanel:
    """The curves of one environment.

    Attributes:
        title: its name.
        ylabel: what is drawn.
        lines: one for each method or form of it.
        span: lowest and highest value that can be; None where it is not known.
    """

    title: str
    ylabel: str
    lines: tuple[Line, ...]
    span: tuple[float, float] | None = None


def learning_figure(panels: Sequence[CurvePanel], path: str | Path, xlabel: str) -> Path:
    """Writes a panel for each environment, two in a row, and one legend for all.

    Args:
        panels: what to draw.
        path: file to write.
        xlabel: label of the horizontal axes.
    """
    from derex.report.figures import new_figure, save
    from derex.report.panels import LABEL_SIZE, axes_style, heading, plain_text, short_numbers

    if not panels or not any(panel.lines for panel in panels):
        raise ValueError("panels: expected at least one, with at least one line.")
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width = max(columns * _PANEL[0], 5.2)
    figure = new_figure(width, rows * _PANEL[1] + 0.6)
    axes = np.ravel(figure.subplots(rows, columns, squeeze=False))
    handles = {}
    for ax, panel in zip(axes, panels, strict=False):
        for line in panel.lines:
            handles.setdefault(plain_text(line.curve.label), _draw(ax, line))
        ax.margins(x=0)
        ax.set_xlim(left=0)
        axes_style(ax, plain_text(xlabel), plain_text(panel.ylabel))
        if panel.span is not None:
            low, high = panel.span
            ax.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low))
        short_numbers(ax)
        heading(ax, panel.title)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=_legend_columns(width, list(handles)),
        fontsize=LABEL_SIZE, frameon=False, labelcolor=palette.INK, handlelength=2.4,
    )  # fmt: skip
    return save(figure, path)


def learning_section(panel: CurvePanel, xlabel: str, caption: str = "") -> Section:
    """The curves of one environment as a chart that can be hovered and zoomed."""
    traces = [trace for number, line in enumerate(panel.lines) for trace in _traces(line, number)]
    yaxis: dict[str, Any] = {"title": {"text": escape(panel.ylabel)}}
    if panel.span is not None:
        low, high = panel.span
        yaxis["range"] = [low - 0.04 * (high - low), high + 0.04 * (high - low)]
    layout = {"xaxis": {"title": {"text": escape(xlabel)}, "rangemode": "tozero"}, "yaxis": yaxis}
    title = f"{panel.title}: {panel.ylabel}"
    return payload_section(title, PLOTLY, {"data": traces, "layout": layout}, caption)


def _legend_columns(width: float, labels: list[str]) -> int:
    """As many as fit into so many inches, four at most."""
    longest = max(map(len, labels))
    return max(1, min(4, len(labels), int(width / (0.65 + 0.075 * longest))))


def _draw(ax: Any, line: Line) -> Any:
    """The band, and the line that stands for it in a legend."""
    curve = line.curve
    ax.fill_between(curve.x, curve.low, curve.high, color=line.tint, alpha=_BAND, linewidth=0)
    (drawn,) = ax.plot(curve.x, curve.mean, color=line.tint, linewidth=1.7, linestyle=line.dashes[1])
    return drawn


def _traces(line: Line, number: int) -> list[dict[str, Any]]:
    """The ends of the interval with the fill between, and the line."""
    curve = line.curve
    red, green, blue = (round(255 * part) for part in palette.hex_to_rgb(line.tint))
    common = {"type": "scatter", "mode": "lines", "legendgroup": str(number)}
    edge = {**common, "line": {"width": 0, "color": line.tint}, "showlegend": False, "hoverinfo": "skip"}
    known = np.isfinite(curve.low) & np.isfinite(curve.high)
    shape = {"width": 2.25, "color": line.tint, "dash": line.dashes[0]}
    return [
        {**edge, "x": curve.x[known], "y": curve.high[known]},
        {**edge, "x": curve.x[known], "y": curve.low[known],
         "fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},{_BAND})"},
        {**common, "x": curve.x, "y": curve.mean, "line": shape, "name": escape(curve.label),
         "hovertemplate": "%{y:.3f}"},
    ]  # fmt: skip
