"""Pictures of environments and frames of grid worlds, as NumPy arrays, without a graphics library.

A picture is uint8 (H, W, 3); places are (x, y) in pixels from its top left. Shapes have smooth edges, drawn in place.
Frames show a grid world from above (Figure 3 B): walls dark, floor white, the agent a red dot. All frames of a world
are drawn once into a table; rendering a batch is an index into it, on the host or inside a jitted function.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from jax import Array
from jax import numpy as jnp
from jaxtyping import Bool, Float, Int, UInt8

from derex.envs.grid.gridworld import GridWorld, take
from derex.envs.grid.maps import ARROWS, Map

Colour = tuple[int, int, int]
Number = int | float
Place = tuple[Number, Number]
Cell = tuple[int, int]
Picture = UInt8[np.ndarray, "H W 3"]

WALL: Colour = (64, 64, 64)
FLOOR: Colour = (255, 255, 255)
AGENT: Colour = (213, 16, 32)
GOAL: Colour = (0, 158, 115)
INK: Colour = (29, 35, 48)
FAINT: Colour = (216, 219, 226)
BLUE: Colour = (0, 114, 178)
ORANGE: Colour = (230, 159, 0)

SIDE = 480  # pixels of the longer side of a picture, approximately
LARGEST_CELL, SMALLEST_CELL = 32, 4
UNSEEN = 0.45  # mix of the wall's colour, for cells that the agent does not see


def canvas(width: int, height: int, colour: Colour = FLOOR) -> Picture:
    """Makes a picture of one colour."""
    return np.full((height, width, 3), colour, np.uint8)


def disc(picture: Picture, centre: Place, radius: Number, colour: Colour) -> None:
    """Draws a filled circle."""
    x, y = _pixels(picture)
    _blend(picture, radius - np.hypot(x - centre[0], y - centre[1]), colour)


def stroke(picture: Picture, start: Place, end: Place, width: Number, colour: Colour) -> None:
    """Draws a straight line with round ends."""
    x, y = _pixels(picture)
    (x0, y0), (x1, y1) = start, end
    squared = max((x1 - x0) ** 2 + (y1 - y0) ** 2, 1e-9)
    along = np.clip(((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / squared, 0.0, 1.0)
    distance = np.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0))
    _blend(picture, width / 2 - distance, colour)


def box(picture: Picture, corner: Place, end: Place, colour: Colour) -> None:
    """Draws a filled rectangle."""
    x, y = _pixels(picture)
    across = np.minimum(x - corner[0], end[0] - x)
    _blend(picture, np.minimum(across, np.minimum(y - corner[1], end[1] - y)), colour)


def grid_picture(
    walls: Bool[np.ndarray, "R C"],
    agent: Cell,
    goal: Cell | None = None,
    tints: Mapping[Cell, Colour] | None = None,
    keys: Mapping[Cell, Colour] | None = None,
    seen: Bool[np.ndarray, "R C"] | None = None,
) -> Picture:
    """Draws a grid world from above, with a wall around it.

    Args:
        walls: True where there is a wall.
        agent: (row, column) of the red dot.
        goal: the green cell.
        tints: colours of other cells.
        keys: cells in which a key lies, and its colour.
        seen: False where the agent cannot see; drawn darker.
    """
    cells = np.where(walls[..., None], WALL, FLOOR).astype(np.uint8)
    for place, colour in {**(tints or {}), **({} if goal is None else {goal: GOAL})}.items():
        cells[place] = colour
    if seen is not None:
        shade = np.asarray(WALL) * UNSEEN + cells * (1 - UNSEEN)
        cells = np.where(seen[..., None], cells, shade).astype(np.uint8)
    cells = np.pad(cells, ((1, 1), (1, 1), (0, 0)), constant_values=WALL[0])
    side = cell_side(cells.shape[:2])
    picture = cells.repeat(side, axis=0).repeat(side, axis=1)
    if side >= 8:  # large enough for thin lines between floor cells
        floor = np.pad(~walls, 1).repeat(side, axis=0).repeat(side, axis=1)
        rows, columns = np.indices(floor.shape)
        edge = floor & ((rows % side == 0) | (columns % side == 0))
        picture[edge] = (picture[edge] * 0.9).astype(np.uint8)
    for place, colour in (keys or {}).items():
        x, y = _centre(place, side)
        disc(picture, (x - 0.17 * side, y), 0.2 * side, colour)
        stroke(picture, (x, y), (x + 0.32 * side, y), 0.12 * side, colour)
        stroke(picture, (x + 0.28 * side, y), (x + 0.28 * side, y + 0.17 * side), 0.1 * side, colour)
        disc(picture, (x - 0.17 * side, y), 0.08 * side, FLOOR)
    disc(picture, _centre(agent, side), 0.36 * side, AGENT)
    return picture


def cell_side(shape: tuple[int, ...]) -> int:
    """Side of a cell in pixels, for a grid of that shape."""
    return int(np.clip(SIDE // max(shape), SMALLEST_CELL, LARGEST_CELL))


def _centre(cell: Cell, side: int) -> Place:
    """The centre of a cell, inside of the outer wall."""
    row, column = cell
    return (int(column) + 1.5) * side, (int(row) + 1.5) * side


def _pixels(picture: np.ndarray) -> tuple[Float[np.ndarray, "1 W"], Float[np.ndarray, "H 1"]]:
    """Centres of all pixels."""
    height, width = picture.shape[:2]
    return np.arange(width)[None, :] + 0.5, np.arange(height)[:, None] + 0.5


def _blend(picture: np.ndarray, inside: Any, colour: Colour) -> None:
    """Blends in the colour where `inside`, the distance from the edge in pixels, is positive; half at the edge."""
    share = np.broadcast_to(np.clip(inside + 0.5, 0.0, 1.0), picture.shape[:2])[..., None]
    touched = np.flatnonzero(share.ravel())
    flat, part = picture.reshape(-1, 3), share.reshape(-1, 1)[touched]
    flat[touched] = np.rint(part * np.asarray(colour) + (1 - part) * flat[touched]).astype(np.uint8)


AGENT_COLOUR = (255, 0, 0)
ARROW_COLOURS = ((190, 220, 255), (200, 255, 200), (255, 240, 170), (235, 205, 255))
"""Tints of one-way doors in frames, in the order of the moves up, right, down, left."""
DOT_RADIUS = 0.4  # of a cell; only cells of 3 pixels and more are large enough to show a round dot


def render(
    world: GridWorld, states: Int[Any, "*batch"], size: int = 30, hidden: Bool[Any, "*batch"] | None = None
) -> UInt8[Any, "*batch {size} {size} 3"]:
    """Draws one `size` x `size` RGB frame for each state.

    Args:
        world: the world to draw.
        states: state ids, NumPy or JAX; the frames are of the same kind.
        size: side of the frames in pixels. Cells have as many whole pixels as fit; the map is centred on wall colour.
        hidden: where True the agent is not drawn (the partially observed four rooms of Section 5).
    """
    if hidden is not None:
        xp = jnp if isinstance(states, Array) or isinstance(hidden, Array) else np
        states = xp.where(hidden, world.n_states, states)
    return take(frame_table(world, size), states)


def frames(world: GridWorld, size: int = 30) -> UInt8[np.ndarray, "n {size} {size} 3"]:
    """The frames of all states, in the order of their ids; read-only, drawn once for each map and size."""
    return frame_table(world, size)[: world.n_states]


def frame_table(world: GridWorld, size: int = 30) -> UInt8[np.ndarray, "n_and_1 {size} {size} 3"]:
    """`frames` followed, at index n, by the frame without the agent; read-only."""
    return _frame_table(world.map, size)


@lru_cache(maxsize=16)
def _frame_table(map: Map, size: int) -> UInt8[np.ndarray, "frames {size} {size} 3"]:
    least = max(map.shape)
    if size < least:
        rows, columns = map.shape
        raise ValueError(
            f"size: a map of {rows} x {columns} cells needs frames of at least {least} pixels, got {size}."
        )
    side = size // least
    cells = np.where(map.floor[..., None], FLOOR, WALL).astype(np.uint8)
    for move in range(len(ARROWS)):
        cells[map.arrows == move] = ARROW_COLOURS[move]
    picture = cells.repeat(side, axis=0).repeat(side, axis=1)
    corner = top, left = (size - np.array(picture.shape[:2])) // 2
    table = np.full((len(map.positions) + 1, size, size, 3), WALL, np.uint8)
    table[:, top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    offset = np.arange(side) - (side - 1) / 2
    dot = (side < 3) | (offset[:, None] ** 2 + offset**2 <= (DOT_RADIUS * side) ** 2)
    for frame, (y, x) in zip(table, map.positions * side + corner, strict=False):
        frame[y : y + side, x : x + side][dot] = AGENT_COLOUR
    table.flags.writeable = False
    return table
