"""Shapes for pictures of environments: smooth edges, on NumPy arrays, without a graphics library.

A picture is uint8 (H, W, 3); places are (x, y) in pixels from its top left. Shapes are drawn into the picture.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

Colour = tuple[int, int, int]
Number = int | float
Place = tuple[Number, Number]
Cell = tuple[int, int]

WALL: Colour = (64, 64, 64)
FLOOR: Colour = (255, 255, 255)
AGENT: Colour = (213, 16, 32)
GOAL: Colour = (0, 158, 115)
INK: Colour = (29, 35, 48)
FAINT: Colour = (216, 219, 226)
BLUE: Colour = (0, 114, 178)
ORANGE: Colour = (230, 159, 0)

SIDE = 480  # pixels, about, of the longer side of a picture
LARGEST_CELL, SMALLEST_CELL = 32, 4
UNSEEN = 0.45  # of the way to the wall's colour, for cells out of sight


def canvas(width: int, height: int, colour: Colour = FLOOR) -> UInt8[np.ndarray, "H W 3"]:
    """A picture of one colour."""
    return np.full((height, width, 3), colour, np.uint8)


def disc(picture: UInt8[np.ndarray, "H W 3"], centre: Place, radius: Number, colour: Colour) -> None:
    """A filled circle."""
    x, y = _pixels(picture)
    _blend(picture, radius - np.hypot(x - centre[0], y - centre[1]), colour)


def stroke(
    picture: UInt8[np.ndarray, "H W 3"], start: Place, end: Place, width: Number, colour: Colour
) -> None:
    """A straight line with round ends."""
    x, y = _pixels(picture)
    (x0, y0), (x1, y1) = start, end
    squared = max((x1 - x0) ** 2 + (y1 - y0) ** 2, 1e-9)
    along = np.clip(((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / squared, 0.0, 1.0)
    distance = np.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0))
    _blend(picture, width / 2 - distance, colour)


def box(picture: UInt8[np.ndarray, "H W 3"], corner: Place, end: Place, colour: Colour) -> None:
    """A filled rectangle."""
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
) -> UInt8[np.ndarray, "H W 3"]:
    """A grid world from above, with a wall around it.

    Args:
        walls: True where there is a wall.
        agent: (row, column) of the red dot.
        goal: the green cell.
        tints: colours of other cells.
        keys: cells in which a key lies, and its colour.
        seen: False where the agent cannot see; drawn in shade.
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
    _rule(picture, np.pad(~walls, 1), side)
    for place, colour in (keys or {}).items():
        _key(picture, _centre(place, side), side, colour)
    disc(picture, _centre(agent, side), 0.36 * side, AGENT)
    return picture


def cell_side(shape: tuple[int, ...]) -> int:
    """Pixels of a cell's side, for so many rows and columns."""
    return int(np.clip(SIDE // max(shape), SMALLEST_CELL, LARGEST_CELL))


def _centre(cell: Cell, side: int) -> Place:
    """Of a cell inside of the wall around."""
    row, column = cell
    return (int(column) + 1.5) * side, (int(row) + 1.5) * side


def _key(picture: np.ndarray, centre: Place, side: int, colour: Colour) -> None:
    """A ring, a shaft and a bit."""
    x, y = centre
    disc(picture, (x - 0.17 * side, y), 0.2 * side, colour)
    stroke(picture, (x, y), (x + 0.32 * side, y), 0.12 * side, colour)
    stroke(picture, (x + 0.28 * side, y), (x + 0.28 * side, y + 0.17 * side), 0.1 * side, colour)
    disc(picture, (x - 0.17 * side, y), 0.08 * side, FLOOR)


def _rule(picture: np.ndarray, floor: Bool[np.ndarray, "R C"], side: int) -> None:
    """Thin lines between cells of floor, where cells are large enough."""
    if side < 8:
        return
    mask = floor.repeat(side, axis=0).repeat(side, axis=1)
    rows, columns = np.indices(mask.shape)
    edge = mask & ((rows % side == 0) | (columns % side == 0))
    picture[edge] = (picture[edge] * 0.9).astype(np.uint8)


def _pixels(picture: np.ndarray) -> tuple[Float[np.ndarray, "1 W"], Float[np.ndarray, "H 1"]]:
    """Middles of all pixels."""
    height, width = picture.shape[:2]
    return np.arange(width)[None, :] + 0.5, np.arange(height)[:, None] + 0.5


def _blend(picture: np.ndarray, inside: Any, colour: Colour) -> None:
    """Colour where `inside`, the distance from the edge in pixels, is positive, half at the edge itself."""
    share = np.broadcast_to(np.clip(inside + 0.5, 0.0, 1.0), picture.shape[:2])[..., None]
    touched = np.flatnonzero(share.ravel())
    flat, part = picture.reshape(-1, 3), share.reshape(-1, 1)[touched]
    flat[touched] = np.rint(part * np.asarray(colour) + (1 - part) * flat[touched]).astype(np.uint8)
