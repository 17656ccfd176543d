"""Interactive sections of a page: the explorer of a decomposition, spectra, clouds of histories, beliefs.

Each section carries a payload that a script of the page draws. Captions are light Markdown.
"""

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from derex.report import palette
from derex.report.data import BeliefTrack, Comparison, GridMap, HistoryCloud, same_map
from derex.report.page import BELIEF, CLOUD, EXPLORER, Section, chart_section, payload_section

MOST_FEATURES = 16  # of a view that a page carries
MOST_HISTORIES = 4000  # of a cloud that a page carries

_EXPLORER_CAPTION = (
    "Hover over a state, or focus a panel and use the arrow keys: it is marked in every panel. Click or press "
    "Enter to keep it, Escape to let go. Lines join states that are neighbours on the map; hollow states were "
    "never visited."
)
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


def explorer_section(comparison: Comparison, title: str = "", caption: str = _EXPLORER_CAPTION) -> Section:
    """Makes a section with the map, representation, spectrum and bonus of every view, linked state by state.

    The page carries the first `MOST_FEATURES` features of each view.
    """
    payload = {
        **_coloured_map(comparison.map),
        "edges": comparison.map.edges(),
        "d": comparison.d,
        "views": [
            {
                "label": view.label,
                "colour": palette.view_colour(number),
                "features": view.representation[:, :MOST_FEATURES].T,
                "singular_values": view.singular_values,
                "bonus": view.bonus,
                "spearman": comparison.spearman(view),
            }
            for number, view in enumerate(comparison.views)
        ],
        "scales": {"visitation": palette.VISITATION_STOPS, "bonus": palette.BONUS_STOPS},
    }
    return payload_section(title or comparison.title, EXPLORER, payload, caption)


def spectrum_section(comparison: Comparison, title: str = "", caption: str = "") -> Section:
    """Makes a chart of the singular values of every view."""
    traces = []
    for number, view in enumerate(comparison.views):
        traces.append({
            "type": "scatter", "mode": "lines+markers" if view.k <= 64 else "lines",
            "name": escape(view.label), "x": np.arange(1, view.k + 1), "y": view.singular_values,
            "line": {"color": palette.view_colour(number), "width": 2}, "marker": {"size": 6},
            "hovertemplate": "%{y:.4f}",
        })  # fmt: skip
    heading = title or f"{comparison.title}: singular values"
    return chart_section(heading, traces, ("index i", "singular value σ<sub>i</sub>"), caption)


def cloud_section(
    clouds: Sequence[HistoryCloud], title: str = "Representations of histories", caption: str = _CLOUD_CAPTION
) -> Section:
    """Makes a section with representations of histories in three dimensions that can be turned, and their map.

    The reader chooses among the clouds, which are on one map; of each the page carries `MOST_HISTORIES`. It is drawn on
    a plain canvas, so pages stay small and need no WebGL.
    """
    drawn = _coloured_map(same_map("clouds", clouds))
    return payload_section(title, CLOUD, drawn | {"clouds": list(map(_cloud_payload, clouds))}, caption)


def belief_section(
    tracks: Sequence[BeliefTrack], title: str = "Beliefs along an episode", caption: str = _BELIEF_CAPTION
) -> Section:
    """Makes a section that plays episodes: what the agent sees, the beliefs about its state, and its true state.

    The reader chooses among the tracks, which are on one map.
    """
    payload = {
        **vars(same_map("tracks", tracks)),
        "stops": {"light": palette.BELIEF_STOPS, "dark": palette.BELIEF_STOPS_DARK},
        "tracks": list(map(_track_payload, tracks)),
    }
    return payload_section(title, BELIEF, payload, caption)


def belief_levels(probabilities: np.ndarray) -> np.ndarray:
    """Converts probabilities p to uint8 levels round(255 √p).

    The root spends the levels on small probabilities, where diffuse beliefs are, and is the scale of their colours
    too. (level / 255)² gives p back with an error of at most √p / 255 + 1 / 510².
    """
    return np.rint(255 * np.sqrt(np.clip(probabilities, 0, 1))).astype(np.uint8)


def make_sprite(frames: np.ndarray) -> tuple[str, int]:
    """Puts (F, height, width, 3) frames into one PNG, in reading order; returns its data URI and frames per row."""
    from PIL import Image

    count, height, width, _ = frames.shape
    columns = int(np.ceil(np.sqrt(count)))
    rows = -(-count // columns)
    sheet = np.zeros((rows * columns, height, width, 3), np.uint8)
    sheet[:count] = frames
    sheet = sheet.reshape(rows, columns, height, width, 3).swapaxes(1, 2)
    buffer = io.BytesIO()
    Image.fromarray(sheet.reshape(rows * height, columns * width, 3)).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}", columns


def _cloud_payload(cloud: HistoryCloud) -> dict[str, Any]:
    """One cloud; its features are float32, feature by feature. Histories are sampled with a fixed seed."""
    m = len(cloud.state)
    kept = np.arange(m)
    if m > MOST_HISTORIES:
        kept = np.sort(np.random.default_rng(0).choice(m, MOST_HISTORIES, replace=False))
    return {
        "title": cloud.title,
        "total": m,
        "k": cloud.k,
        "limits": cloud.limits(),
        "state": cloud.state[kept],
        "features": _base64(cloud.representation[kept].T, "<f4"),
    }


def _track_payload(track: BeliefTrack) -> dict[str, Any]:
    """One episode; its beliefs are uint8 levels, step by step."""
    used, frame = np.unique(track.frame, return_inverse=True)
    picture, columns = make_sprite(track.frames[used])
    return {
        "title": track.title,
        "sprite": picture,
        "columns": columns,
        "size": track.frames.shape[1:3],
        "frame": frame,
        "state": track.state,
        "beliefs": [
            {"label": label, "colour": palette.view_colour(number), "levels": _base64(belief_levels(p), "u1")}
            for number, (label, p) in enumerate(track.beliefs)
        ],
    }


def _base64(values: np.ndarray, dtype: str) -> str:
    """The little-endian bytes of the values in C order, as base64 text."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode()


def _coloured_map(grid: GridMap) -> dict[str, Any]:
    colours = palette.reference_colours(grid.positions, grid.shape)
    return {**vars(grid), "colours": palette.rgb_to_hex(colours)}
