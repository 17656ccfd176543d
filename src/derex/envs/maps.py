"""Grid maps as data: a picture in text, and what follows from it without any randomness.

Characters: ``#`` wall; ``.`` or space floor; ``S`` floor, and the cell where episodes start;
``^ > v <`` one-way doors, entered and left only in the arrow's direction.
Cells outside the picture count as walls, so a map need not be framed.

Floor cells are the states, numbered in reading order. Moves are numbered as in `MOVES`.
Letters in shapes: H rows and W columns of the picture, n floor cells.
"""

import textwrap
from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int8, Int32

WALL = "#"
FLOOR = "."
START = "S"
ARROWS = "^>v<"
MOVE_NAMES = ("up", "right", "down", "left")
MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)], dtype=np.int32)
TWO_WAY = -1

_CHARACTERS = frozenset(WALL + FLOOR + START + ARROWS)


@dataclass(frozen=True)
class Map:
    """A rectangular picture of walls, floor and one-way doors.

    Attributes:
        name: what reports call the map.
        rows: one string for each row; spaces are stored as ``.``.
    """

    name: str
    rows: tuple[str, ...]

    def __post_init__(self) -> None:
        rows = tuple(row.replace(" ", FLOOR) for row in self.rows)
        _check_rows(self.name, rows)
        object.__setattr__(self, "rows", rows)

    @classmethod
    def from_text(cls, text: str, name: str = "map") -> "Map":
        """Reads a map from a (possibly indented) block of text, one line for each row.

        Common indentation is removed, so write floor in an outermost column as ``.``, not as a space.
        """
        return cls(name=name, rows=tuple(textwrap.dedent(text).strip("\n").split("\n")))

    def __str__(self) -> str:
        return "\n".join(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        """(H, W): rows and columns of the picture."""
        return len(self.rows), len(self.rows[0])

    @cached_property
    def characters(self) -> np.ndarray:
        """The picture as an (H, W) array of single characters."""
        return _frozen(np.array([list(row) for row in self.rows]))

    @cached_property
    def floor(self) -> Bool[np.ndarray, "H W"]:
        """Where the agent can stand, one-way doors included."""
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
        """(row, column) of every floor cell, in reading order: the state's id is its place here."""
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
        """The state that each move leads to; a blocked move stays."""
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

        A passage is a floor cell with floor on two opposite sides and walls on the two others: the
        doors of a map of rooms, the corridors of a maze.
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

        Rooms are what stays connected once every passage (`doorways`) and one-way door is taken out.
        """
        in_room = (self.doorways < 0) & (self.arrows == TWO_WAY)
        inside = in_room[self.positions[:, 0], self.positions[:, 1]]
        rooms = np.full(len(self.positions), -1, dtype=np.int32)
        for state in np.flatnonzero(inside):
            if rooms[state] < 0:
                rooms[reachable(self.successors, int(state), inside)] = rooms.max() + 1
        return _frozen(rooms)

    def reachable(self, start: int | None = None) -> Bool[np.ndarray, " n"]:
        """Which states some sequence of moves leads to from `start` (default: the map's own)."""
        return reachable(self.successors, self.start if start is None else start)

    def replace_cells(self, cells: dict[tuple[int, int], str], name: str | None = None) -> "Map":
        """The same map with some cells redrawn: ``{(row, column): character}``."""
        characters = self.characters.copy()
        for (row, column), character in cells.items():
            characters[row, column] = character
        return Map(name or self.name, tuple("".join(row) for row in characters))


def reachable(
    successors: Int32[np.ndarray, "n 4"], start: int, allowed: Bool[np.ndarray, " n"] | None = None
) -> Bool[np.ndarray, " n"]:
    """Which states can be reached from `start` by moves that stay among the `allowed` states."""
    table = successors.tolist()
    open_ = [True] * len(table) if allowed is None else allowed.tolist()
    found = np.zeros(len(table), dtype=bool)
    found[start] = True
    queue = deque([start])
    while queue:
        for state in table[queue.popleft()]:
            if open_[state] and not found[state]:
                found[state] = True
                queue.append(state)
    return found


def _check_rows(name: str, rows: tuple[str, ...]) -> None:
    widths = sorted({len(row) for row in rows})
    if len(widths) != 1:
        raise ValueError(
            f"map {name!r}: rows must be equally long, got widths {widths}. Pad short rows with "
            f"{WALL!r} or {FLOOR!r}; editors often strip spaces at the ends of lines."
        )
    unknown = sorted(set("".join(rows)) - _CHARACTERS)
    if unknown:
        raise ValueError(
            f"map {name!r}: unknown characters {unknown}. Use {WALL!r} for walls, {FLOOR!r} or a space for "
            f"floor, {START!r} for the start and {' '.join(ARROWS)} for one-way doors."
        )
    floor = sum(len(row) - row.count(WALL) for row in rows)
    if floor == 0:
        raise ValueError(f"map {name!r}: there is no floor cell. Draw at least one {FLOOR!r}.")
    starts = sum(row.count(START) for row in rows)
    if starts > 1:
        raise ValueError(f"map {name!r}: {starts} start cells {START!r}, expected at most one.")


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
