"""Pictures of a grid world seen from above (Figure 3 B): walls dark, floor white, the agent a red dot.

Every frame of a world is drawn once into a table; rendering a batch is then an index into it, on the
host or inside a jitted function alike.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from jax import Array
from jax import numpy as jnp
from jaxtyping import Bool, Int, UInt8

from derex.envs.gridworld import GridWorld, take
from derex.envs.maps import ARROWS, Map

WALL_COLOUR = (64, 64, 64)
FLOOR_COLOUR = (255, 255, 255)
AGENT_COLOUR = (255, 0, 0)
ARROW_COLOURS = ((190, 220, 255), (200, 255, 200), (255, 240, 170), (235, 205, 255))
"""Tints of one-way doors, in the order of the moves up, right, down, left."""

_DOT_RADIUS = 0.4  # of a cell; only cells of 3 pixels and more are large enough to show a round dot


def render(
    world: GridWorld, states: Int[Any, "*batch"], size: int = 30, hidden: Bool[Any, "*batch"] | None = None
) -> UInt8[Any, "*batch {size} {size} 3"]:
    """Draws one `size` x `size` RGB frame for each state.

    Args:
        world: the world to draw.
        states: state ids, NumPy or JAX; the frames are of the same kind.
        size: side of the frames in pixels. The map is drawn with as many whole pixels for each cell as
            fit, centred on a background of wall colour.
        hidden: where True the agent is not drawn (the partially observed four rooms of Section 5).
    """
    table = frame_table(world, size)
    if hidden is not None:
        xp = jnp if isinstance(states, Array) or isinstance(hidden, Array) else np
        states = xp.where(hidden, world.n_states, states)
    return take(table, states)


def frames(world: GridWorld, size: int = 30) -> UInt8[np.ndarray, "n {size} {size} 3"]:
    """The frames of all states, in the order of their ids; read-only, drawn once for each map and size."""
    return frame_table(world, size)[: world.n_states]


def frame_table(world: GridWorld, size: int = 30) -> UInt8[np.ndarray, "n_and_1 {size} {size} 3"]:
    """`frames`, and after them, at place n, the frame without the agent; read-only."""
    return _frame_table(world.map, size)


@lru_cache(maxsize=16)
def _frame_table(map: Map, size: int) -> UInt8[np.ndarray, "frames {size} {size} 3"]:
    """Frames of all states, then the frame without the agent."""
    pixels = _pixels_per_cell(map, size)
    background = _background(map, size, pixels)
    dot = _dot(pixels)
    table = np.repeat(background[None], len(map.positions) + 1, axis=0)
    corners = map.positions * pixels + _margin(map, size, pixels)
    for frame, (top, left) in zip(table, corners, strict=False):
        frame[top : top + pixels, left : left + pixels][dot] = AGENT_COLOUR
    table.flags.writeable = False
    return table


def _pixels_per_cell(map: Map, size: int) -> int:
    pixels = size // max(map.shape)
    if pixels < 1:
        raise ValueError(
            f"size: a map of {map.shape[0]} x {map.shape[1]} cells needs frames of at least "
            f"{max(map.shape)} pixels, got {size}."
        )
    return pixels


def _margin(map: Map, size: int, pixels: int) -> np.ndarray:
    return (size - pixels * np.array(map.shape)) // 2


def _background(map: Map, size: int, pixels: int) -> UInt8[np.ndarray, "{size} {size} 3"]:
    cells = np.where(map.floor[..., None], FLOOR_COLOUR, WALL_COLOUR).astype(np.uint8)
    for move in range(len(ARROWS)):
        cells[map.arrows == move] = ARROW_COLOURS[move]
    picture = cells.repeat(pixels, axis=0).repeat(pixels, axis=1)
    background = np.full((size, size, 3), WALL_COLOUR, dtype=np.uint8)
    top, left = _margin(map, size, pixels)
    background[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return background


def _dot(pixels: int) -> Bool[np.ndarray, "{pixels} {pixels}"]:
    """The agent's pixels within its cell: all of a small cell, a disc in a larger one."""
    if pixels < 3:
        return np.ones((pixels, pixels), dtype=bool)
    offset = np.arange(pixels) - (pixels - 1) / 2
    return offset[:, None] ** 2 + offset[None, :] ** 2 <= (_DOT_RADIUS * pixels) ** 2
