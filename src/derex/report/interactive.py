"""Sections that answer to the reader: the linked explorer, and charts that can be hovered and zoomed."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from derex.report import palette
from derex.report.data import Comparison, Curve, View
from derex.report.page import EXPLORER, PLOTLY, Section, payload_section

_EXPLORER_CAPTION = (
    "Hover over a state, or focus a panel and use the arrow keys: it is marked in every panel. Click or press "
    "Enter to keep it, Escape to let go. Lines join states that are neighbours on the map; hollow states were "
    "never visited."
)


def explorer_section(
    comparison: Comparison, title: str = "", caption: str = _EXPLORER_CAPTION, max_features: int = 16
) -> Section:
    """The map, the representation, the spectrum and the bonus of every view, linked state by state.

    Args:
        comparison: the data.
        title: heading; the comparison's title if empty.
        caption: light Markdown below.
        max_features: features of each view that the page carries; the first ones are kept.
    """
    if max_features < 1:
        raise ValueError(f"max_features: expected at least 1, got {max_features}.")
    heading = title or comparison.title
    return payload_section(heading, EXPLORER, explorer_payload(comparison, max_features), caption)


def explorer_payload(comparison: Comparison, max_features: int = 16) -> dict[str, Any]:
    """What the explorer's script draws: plain lists, in the order of the states."""
    grid = comparison.map
    return {
        "name": grid.name,
        "rows": list(grid.rows),
        "positions": grid.positions,
        "edges": grid.edges(),
        "colours": palette.rgb_to_hex(palette.reference_colours(grid.positions, grid.shape)),
        "d": comparison.d,
        "views": [
            _view_payload(comparison, view, palette.view_colour(number), max_features)
            for number, view in enumerate(comparison.views)
        ],
        "scales": {"visitation": list(palette.VISITATION_STOPS), "bonus": list(palette.BONUS_STOPS)},
    }


def curves_section(
    title: str, curves: Sequence[Curve], xlabel: str = "", ylabel: str = "", caption: str = ""
) -> Section:
    """Lines with shaded intervals.

    Args:
        title: heading.
        curves: the lines, in the order of their colours.
        xlabel: label of the horizontal axis.
        ylabel: label of the vertical axis.
        caption: light Markdown below.
    """
    if not curves:
        raise ValueError("curves: expected at least one Curve.")
    traces = [trace for number, curve in enumerate(curves) for trace in _curve_traces(curve, number)]
    return _chart(title, traces, escape(xlabel), escape(ylabel), caption)


def spectrum_section(comparison: Comparison, title: str = "", caption: str = "") -> Section:
    """The singular values of every view."""
    traces = []
    for number, view in enumerate(comparison.views):
        traces.append({
            "type": "scatter", "mode": "lines+markers" if view.k <= 64 else "lines",
            "name": escape(view.label), "x": np.arange(1, view.k + 1), "y": view.singular_values,
            "line": {"color": palette.view_colour(number), "width": 2}, "marker": {"size": 6},
            "hovertemplate": "%{y:.4f}",
        })  # fmt: skip
    heading = title or f"{comparison.title}: singular values"
    return _chart(heading, traces, "index i", "singular value σ<sub>i</sub>", caption)


def _view_payload(comparison: Comparison, view: View, colour: str, max_features: int) -> dict[str, Any]:
    return {
        "label": view.label,
        "colour": colour,
        "features": view.representation[:, :max_features].T,
        "singular_values": view.singular_values,
        "bonus": view.bonus,
        "spearman": comparison.spearman(view),
    }


def _curve_traces(curve: Curve, number: int) -> list[dict[str, Any]]:
    """The line, and behind it for each stretch without gaps the interval's ends with the fill between."""
    colour = palette.view_colour(number)
    red, green, blue = (round(255 * part) for part in palette.hex_to_rgb(colour))
    common = {"type": "scatter", "mode": "lines", "legendgroup": str(number)}
    edge = {**common, "line": {"width": 0, "color": colour}, "showlegend": False, "hoverinfo": "skip"}
    filled = {**edge, "fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.17)"}
    traces = []
    for part in _stretches(np.isfinite(curve.low) & np.isfinite(curve.high)):
        traces.append({**edge, "x": curve.x[part], "y": curve.high[part]})
        traces.append({**filled, "x": curve.x[part], "y": curve.low[part]})
    line = {"x": curve.x, "y": curve.mean, "line": {"width": 2.25, "color": colour}}
    return [*traces, {**common, **line, "name": escape(curve.label), "hovertemplate": "%{y:.4g}"}]


def _stretches(kept: np.ndarray) -> list[slice]:
    """The runs of True in a mask."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], kept, [False]]).astype(int)))
    return [slice(int(begin), int(end)) for begin, end in ends.reshape(-1, 2)]


def _chart(title: str, traces: list[dict[str, Any]], xlabel: str, ylabel: str, caption: str) -> Section:
    """A chart that plotly.js draws once the page is open; colours of axes and text follow the page's theme."""
    layout = {"xaxis": {"title": {"text": xlabel}}, "yaxis": {"title": {"text": ylabel}}}
    return payload_section(title, PLOTLY, {"data": traces, "layout": layout}, caption)
