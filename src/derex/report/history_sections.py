"""Sections of the partially observed four rooms that answer to the reader: clouds to turn, beliefs to play."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from derex.report import palette
from derex.report.data import GridMap
from derex.report.histories import BeliefTrack, HistoryCloud, same_map
from derex.report.packing import base64_of, belief_levels, sprite
from derex.report.page import BELIEF, CLOUD, Section, payload_section

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
