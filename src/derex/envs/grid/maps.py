"""Grid maps as text, and generators of mazes, rooms and one-way doors.

Characters: ``#`` wall; ``.`` or space floor; ``S`` start; ``^ > v <`` one-way doors, entered and left only in the
arrow's direction. Cells outside the map count as walls, so a map needs no frame. Floor cells are the states, numbered
in reading order; moves are numbered as in `MOVES`.

Generators are deterministic in the seed, and every floor cell is reachable from the start. One-way doors make the
chain asymmetric: symmetrising it, as the graph Laplacian must, loses structure that the SVD keeps (Section 1).
Letters in shapes: H rows and W columns, n floor cells.
"""

import numbers
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int8, Int32
from scipy.ndimage import label
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

WALL = "#"
FLOOR = "."
START = "S"
ARROWS = "^>v<"
AXIS_ARROWS = (("^", "v"), (">", "<"))  # along the axes of `Map.doorways`
MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)], dtype=np.int32)  # up, right, down, left
TWO_WAY = -1


@dataclass(frozen=True)
class Map:
    """A rectangular map of walls, floor and one-way doors."""

    name: str
    """in reports"""
    rows: tuple[str, ...]
    """one string for each row; spaces are stored as ``.``"""

    def __post_init__(self) -> None:
        rows = tuple(row.replace(" ", FLOOR) for row in self.rows)
        widths = sorted({len(row) for row in rows})
        unknown = sorted(set("".join(rows)) - set(WALL + FLOOR + START + ARROWS))
        starts = sum(row.count(START) for row in rows)
        for wrong, problem in (
            (
                len(widths) != 1,
                f"rows must be equally long, got widths {widths}. Pad short rows with {WALL!r} or {FLOOR!r}; editors "
                "often strip spaces at the ends of lines.",
            ),
            (
                unknown,
                f"unknown characters {unknown}. Use {WALL!r} for walls, {FLOOR!r} or a space for floor, {START!r} for "
                f"the start and {' '.join(ARROWS)} for one-way doors.",
            ),
            (set("".join(rows)) <= {WALL}, f"there is no floor cell. Draw at least one {FLOOR!r}."),
            (starts > 1, f"{starts} start cells {START!r}, expected at most one."),
        ):
            if wrong:
                raise ValueError(f"map {self.name!r}: {problem}")
        object.__setattr__(self, "rows", rows)

    @classmethod
    def from_text(cls, text: str, name: str = "map") -> "Map":
        """Reads a map from a block of text, one line for each row.

        Common indentation is removed, so write floor in an outermost column as ``.``, not as a space.
        """
        return cls(name=name, rows=tuple(textwrap.dedent(text).strip("\n").split("\n")))

    def __str__(self) -> str:
        return "\n".join(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        """(H, W): number of rows and columns."""
        return len(self.rows), len(self.rows[0])

    @cached_property
    def characters(self) -> np.ndarray:
        """The map as an (H, W) array of single characters."""
        return _frozen(np.array([list(row) for row in self.rows]))

    @cached_property
    def floor(self) -> Bool[np.ndarray, "H W"]:
        """True for floor cells, including one-way doors."""
        return _frozen(self.characters != WALL)

    @cached_property
    def arrows(self) -> Int8[np.ndarray, "H W"]:
        """The move that a one-way door allows, `TWO_WAY` everywhere else."""
        arrows = np.full(self.shape, TWO_WAY, dtype=np.int8)
        for move, arrow in enumerate(ARROWS):
            arrows[self.characters == arrow] = move
        return _frozen(arrows)

    @cached_property
    def positions(self) -> Int32[np.ndarray, "n 2"]:
        """(row, column) of every floor cell in reading order, indexed by state id."""
        return _frozen(np.argwhere(self.floor).astype(np.int32))

    @cached_property
    def state_ids(self) -> Int32[np.ndarray, "H W"]:
        """The state of every cell; -1 for walls."""
        ids = np.full(self.shape, -1, dtype=np.int32)
        ids[self.floor] = np.arange(len(self.positions))
        return _frozen(ids)

    @cached_property
    def start(self) -> int:
        """The state where episodes start: the ``S`` cell, else the first floor cell."""
        marked = self.state_ids[self.characters == START]
        return int(marked[0]) if len(marked) else 0

    @cached_property
    def successors(self) -> Int32[np.ndarray, "n 4"]:
        """The next state for each state and move; a blocked move stays in place."""
        ids = np.pad(self.state_ids, 1, constant_values=-1)
        arrows = np.pad(self.arrows, 1, constant_values=TWO_WAY)
        here = self.positions + 1
        leaving = arrows[here[:, 0], here[:, 1]]
        stay = np.arange(len(here), dtype=np.int32)
        columns = []
        for move, step in enumerate(MOVES):
            row, column = (here + step).T
            entering = arrows[row, column]
            allowed = np.isin(leaving, (TWO_WAY, move)) & np.isin(entering, (TWO_WAY, move))
            columns.append(np.where(allowed & (ids[row, column] >= 0), ids[row, column], stay))
        return _frozen(np.stack(columns, axis=1).astype(np.int32))

    @cached_property
    def doorways(self) -> Int8[np.ndarray, "H W"]:
        """The axis along which a cell is a passage: 0 up-down, 1 left-right, -1 not a passage.

        A passage, such as a door or a maze's corridor, has floor on two opposite sides and walls on the two others.
        """
        floor = np.pad(self.floor, 1)
        up, down = floor[:-2, 1:-1], floor[2:, 1:-1]
        left, right = floor[1:-1, :-2], floor[1:-1, 2:]
        axes = np.full(self.shape, -1, dtype=np.int8)
        axes[self.floor & up & down & ~left & ~right] = 0
        axes[self.floor & left & right & ~up & ~down] = 1
        return _frozen(axes)

    @cached_property
    def rooms(self) -> Int32[np.ndarray, " n"]:
        """The room of every state, numbered in reading order of their first cells; -1 for doors.

        Rooms are the connected components after removing all passages (`doorways`) and one-way doors.
        """
        inside, _ = label((self.doorways < 0) & (self.arrows == TWO_WAY) & self.floor)
        return _frozen(inside[self.floor].astype(np.int32) - 1)

    def reachable(self, start: int | None = None) -> Bool[np.ndarray, " n"]:
        """Returns a mask of the states reachable from `start` (default: the map's start)."""
        return reachable(self.successors, self.start if start is None else start)

    def replace_cells(self, cells: dict[tuple[int, int], str], name: str | None = None) -> "Map":
        """Returns a copy with some cells replaced: ``{(row, column): character}``."""
        characters = self.characters.copy()
        for (row, column), character in cells.items():
            characters[row, column] = character
        return Map(name or self.name, tuple("".join(row) for row in characters))


def reachable(successors: Int32[np.ndarray, "n 4"], start: int) -> Bool[np.ndarray, " n"]:
    """Returns a mask of the states reachable from `start`."""
    n, moves = successors.shape
    edges = np.ones(successors.size), successors.ravel(), np.arange(0, successors.size + 1, moves)
    found = breadth_first_order(csr_array(edges, shape=(n, n)), start, return_predecessors=False)
    return np.isin(np.arange(n), found)


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


FOUR_ROOMS = Map.from_text(
    """
    #############
    #.....#.....#
    #.....#.....#
    #...........#
    #.....#.....#
    #.....#.....#
    ##.####.....#
    #.....###.###
    #.....#.....#
    #.....#.....#
    #...........#
    #.....#.....#
    #############
    """,
    name="four rooms",
)
"""The four rooms of Figures 2 and 3: 104 floor cells inside 11 x 11; starts in the top-left corner."""


def random_maze(
    seed: int, size: int = 13, loops: float | int = 0.1, one_way: float | int = 0.2, name: str | None = None
) -> Map:
    """Generates a maze of one-cell corridors: a spanning tree, extra openings, then one-way corridor cells.

    Args:
        seed: seed of the generator.
        size: side of the square map, frame included; odd, at least 5.
        loops: fraction of the walls left by the spanning tree that are opened.
        one_way: fraction of the corridor cells to turn into one-way doors; fewer where that cuts off a cell.
        name: name of the map; by default it contains the size and the seed.
    """
    if size < 5 or size % 2 == 0:
        raise ValueError(f"size: an odd number of at least 5 was expected, got {size}. Try {size | 1}.")
    check_fraction("loops", loops)
    check_fraction("one_way", one_way)
    rng = np.random.default_rng(seed)
    grid = np.full((size, size), WALL)
    grid[1::2, 1::2] = FLOOR
    for wall in _spanning_tree(size // 2, rng):
        grid[wall] = FLOOR
    closed = np.argwhere(grid[1:-1, 1:-1] == WALL) + 1
    closed = closed[closed.sum(axis=1) % 2 == 1]  # between two neighbouring cells of the lattice
    for index in rng.permutation(len(closed))[: round(loops * len(closed))]:
        grid[tuple(closed[index])] = FLOOR
    return _finish(grid, name or f"maze {size}x{size} #{seed}", one_way, rng)


def random_rooms(
    seed: int,
    rows: int = 2,
    cols: int = 2,
    room: int = 5,
    one_way: float | int = 0.0,
    name: str | None = None,
) -> Map:
    """Generates square rooms on a grid, with one randomly placed door in each shared wall.

    Args:
        seed: seed of the generator.
        rows: rows of rooms.
        cols: columns of rooms.
        room: side of a room in cells, at least 2.
        one_way: fraction of the doors to turn into one-way doors; fewer where that cuts off a room.
        name: name of the map; by default it contains the size and the seed.
    """
    for argument, value, least in (("rows", rows, 1), ("cols", cols, 1), ("room", room, 2)):
        check_count(argument, value, least)
    check_fraction("one_way", one_way)
    rng = np.random.default_rng(seed)
    pitch = room + 1
    grid = np.full((rows * pitch + 1, cols * pitch + 1), FLOOR)
    grid[::pitch, :] = WALL
    grid[:, ::pitch] = WALL
    for row, col in np.ndindex(rows, cols):
        if col + 1 < cols:
            grid[row * pitch + rng.integers(1, pitch), (col + 1) * pitch] = FLOOR
        if row + 1 < rows:
            grid[(row + 1) * pitch, col * pitch + rng.integers(1, pitch)] = FLOOR
    return _finish(grid, name or f"rooms {rows}x{cols} #{seed}", one_way, rng)


def one_way_doors(map: Map, n: int, seed: int, name: str | None = None) -> Map:
    """Turns `n` doors or corridor cells into one-way doors, keeping every cell reachable from the start.

    Raises:
        ValueError: if fewer than `n` doors can be turned without making a cell unreachable.
    """
    if n < 0:
        raise ValueError(f"n: expected a number of doors >= 0, got {n}.")
    if not map.reachable().all():
        raise ValueError(f"map: {map.name!r} has floor cells that its start does not reach already.")
    turned = _turn_one_way(map, n, np.random.default_rng(seed))
    count = int((turned.arrows != map.arrows).sum())
    if count < n:
        raise ValueError(
            f"n: only {count} doors of {map.name!r} could be made one-way without making a cell "
            f"unreachable, expected {n}. Use a smaller n or another seed."
        )
    return Map(name or f"{map.name}, {n} one-way", turned.rows)


def _turn_one_way(map: Map, n: int | float, rng: np.random.Generator) -> Map:
    """Turns `n` doors or corridor cells, or that fraction of them, one-way, in random order and direction.

    Every cell stays reachable: fewer are turned if necessary. The start is never turned.
    """
    passages = np.argwhere((map.doorways >= 0) & (map.arrows == TWO_WAY) & (map.state_ids != map.start))
    left = round(n * len(passages)) if isinstance(n, float) else n
    for row, column in passages[rng.permutation(len(passages))].tolist():
        if not left:
            break
        for arrow in rng.permutation(AXIS_ARROWS[map.doorways[row, column]]):
            candidate = map.replace_cells({(row, column): str(arrow)})
            if candidate.reachable().all():
                map, left = candidate, left - 1
                break
    return map


def _spanning_tree(side: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Yields the walls that a random depth-first search opens to connect side x side cells."""
    seen = {(0, 0)}
    path = [(0, 0)]
    while path:
        row, col = path[-1]
        around = [(row - 1, col), (row, col + 1), (row + 1, col), (row, col - 1)]
        fresh = [(r, c) for r, c in around if 0 <= r < side and 0 <= c < side and (r, c) not in seen]
        if fresh:
            r, c = fresh[rng.integers(len(fresh))]
            seen.add((r, c))
            path.append((r, c))
            yield row + r + 1, col + c + 1
        else:
            path.pop()


def _finish(grid: np.ndarray, name: str, one_way: float | int, rng: np.random.Generator) -> Map:
    """Marks the start and turns a fraction of the passages one-way."""
    grid[1, 1] = START
    return _turn_one_way(Map(name, tuple("".join(row) for row in grid)), float(one_way), rng)


def check_fraction(name: str, value: float | int) -> None:
    """Raises ValueError unless the value is in [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: expected a number in [0, 1], got {value}.")


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raises TypeError unless the value is an integer, and ValueError unless it is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: expected an integer, got {value!r} of type {type(value).__name__}.")
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}.")
