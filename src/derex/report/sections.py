"""Sections that answer to the reader: the linked explorer, and charts that can be hovered and zoomed.

Sections of the partially observed four rooms that answer to the reader: clouds to turn, beliefs to play.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from derex.report import panels as palette
from derex.report.data import Comparison, Curve, GridMap, RepresentationView
from derex.report.history_data import BeliefTrack, HistoryCloud, same_map
from derex.report.page import (
    BELIEF,
    CLOUD,
    EXPLORER,
    PLOTLY,
    Section,
    base64_of,
    belief_levels,
    payload_section,
    sprite,
)

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


def _view_payload(
    comparison: Comparison, view: RepresentationView, colour: str, max_features: int
) -> dict[str, Any]:
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


_CLOUD_CAPTION = (
    "Each point is a history, in the reference colour of the true state that it ends in. Drag to turn, or focus "
    "the cloud and use the arrow keys, `+` and `-`. Hover over the map or the cloud to pick a state and see its "
    "histories; click or press Enter to keep it, Escape to let go."
)
_BELIEF_CAPTION = (
    "What the agent sees, and what is believed about its place. Deeper colour is more belief; colours follow the "
    "root of the probability. Space plays and pauses, the arrow keys step, Home and End go to the ends. The "
    "curves show how much each belief gives to the true state; click there to go to a time."
)


def cloud_section(
    clouds: Sequence[HistoryCloud],
    title: str = "Representations of histories",
    caption: str = _CLOUD_CAPTION,
    max_points: int = 4000,
) -> Section:
    """Representations of histories in three dimensions, to be turned, with the map that explains their colours.

    Drawn on a plain canvas, so that pages stay small and no WebGL is needed.

    Args:
        clouds: what the reader can choose among, all on one map.
        title: heading.
        caption: light Markdown below.
        max_points: histories of each cloud that the page carries, drawn at random, the same every time.
    """
    if max_points < 1:
        raise ValueError(f"max_points: expected at least 1, got {max_points}.")
    return payload_section(title, CLOUD, cloud_payload(clouds, max_points), caption)


def belief_section(
    tracks: Sequence[BeliefTrack], title: str = "Beliefs along an episode", caption: str = _BELIEF_CAPTION
) -> Section:
    """Episodes that play: what the agent sees, the beliefs about its place, and the truth.

    Args:
        tracks: the episodes that the reader can choose among, all on one map.
        title: heading.
        caption: light Markdown below.
    """
    return payload_section(title, BELIEF, belief_payload(tracks), caption)


def cloud_payload(clouds: Sequence[HistoryCloud], max_points: int) -> dict[str, Any]:
    """What the cloud's script draws.

    ``features`` is base64 of float32, feature by feature.
    """
    grid = same_map("clouds", [cloud.map for cloud in clouds])
    return {
        **_map_payload(grid),
        "colours": palette.rgb_to_hex(palette.reference_colours(grid.positions, grid.shape)),
        "clouds": [_one_cloud(cloud, max_points) for cloud in clouds],
    }


def belief_payload(tracks: Sequence[BeliefTrack]) -> dict[str, Any]:
    """What the belief's script draws.

    ``levels`` is base64 of uint8 round(255 √p), step by step; the frames are one PNG, in reading order.
    """
    grid = same_map("tracks", [track.map for track in tracks])
    return {
        **_map_payload(grid),
        "stops": {"light": list(palette.BELIEF_STOPS), "dark": list(palette.BELIEF_STOPS_DARK)},
        "tracks": [_one_track(track) for track in tracks],
    }


def _one_cloud(cloud: HistoryCloud, max_points: int) -> dict[str, Any]:
    m = len(cloud.state)
    kept = np.arange(m)
    if m > max_points:
        kept = np.sort(np.random.default_rng(0).choice(m, max_points, replace=False))
    return {
        "title": cloud.title,
        "total": m,
        "k": cloud.k,
        "limits": cloud.limits(),
        "state": cloud.state[kept],
        "features": base64_of(cloud.representation[kept].T, "<f4"),
    }


def _one_track(track: BeliefTrack) -> dict[str, Any]:
    used, frame = np.unique(track.frame, return_inverse=True)
    picture, columns = sprite(track.frames[used])
    return {
        "title": track.title,
        "sprite": picture,
        "columns": columns,
        "size": track.frames.shape[1:3],
        "frame": frame,
        "state": track.state,
        "beliefs": [
            {
                "label": label,
                "colour": palette.view_colour(number),
                "levels": base64_of(belief_levels(probabilities), "u1"),
            }
            for number, (label, probabilities) in enumerate(track.beliefs)
        ],
    }


def _map_payload(grid: GridMap) -> dict[str, Any]:
    return {"name": grid.name, "rows": list(grid.rows), "positions": grid.positions}
