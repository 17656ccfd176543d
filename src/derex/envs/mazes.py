"""Generated maps: mazes, rows of rooms, and one-way doors drawn into any map.

Every generator takes an integer seed and returns the same map for the same arguments; every floor cell
can be reached from the start. One-way doors make the chain asymmetric: symmetrising it, as the graph
Laplacian must, then loses structure that the SVD keeps (Section 1).
"""

from collections.abc import Iterator

import numpy as np

from derex.envs.maps import ARROWS, FLOOR, START, TWO_WAY, WALL, Map

# The two arrows along each axis of a passage (`Map.doorways`): 0 up-down, 1 left-right.
_AXIS_ARROWS = {0: (ARROWS[0], ARROWS[2]), 1: (ARROWS[1], ARROWS[3])}


def random_maze(
    seed: int, size: int = 13, loops: float | int = 0.1, one_way: float | int = 0.2, name: str | None = None
) -> Map:
    """A maze of one-cell corridors: a spanning tree, extra openings, then one-way corridor cells.

    Args:
        seed: the same seed draws the same maze.
        size: side of the square map, frame included; odd, at least 5.
        loops: fraction of the walls left by the spanning tree that are opened.
        one_way: fraction of the corridor cells to turn into one-way doors. Fewer are drawn when more
            would put a cell out of reach of the start.
        name: name of the map; by default it says how the map was drawn.
    """
    if size < 5 or size % 2 == 0:
        raise ValueError(f"size: an odd number of at least 5 was expected, got {size}. Try {size | 1}.")
    _check_fraction("loops", loops)
    _check_fraction("one_way", one_way)
    rng = np.random.default_rng(seed)
    grid = np.full((size, size), WALL)
    grid[1::2, 1::2] = FLOOR
    for wall in _spanning_tree(size // 2, rng):
        grid[wall] = FLOOR
    closed = [wall for wall in _inner_walls(size) if grid[wall] == WALL]
    for index in rng.permutation(len(closed))[: round(loops * len(closed))]:
        grid[closed[index]] = FLOOR
    maze = _to_map(grid, name or f"maze {size}x{size} #{seed}")
    passages = _two_way_passages(maze)
    return _turn_one_way(maze, round(one_way * len(passages)), rng)[0]


def random_rooms(
    seed: int,
    rows: int = 2,
    cols: int = 2,
    room: int = 5,
    one_way: float | int = 0.0,
    name: str | None = None,
) -> Map:
    """Square rooms on a grid, with one door at a random place in each wall that two rooms share.

    Args:
        seed: the same seed draws the same map.
        rows: rows of rooms.
        cols: columns of rooms.
        room: side of a room in cells, at least 2.
        one_way: fraction of the doors to turn into one-way doors; a door stays two-way where both
            directions would put a room out of reach of the start.
        name: name of the map; by default it says how the map was drawn.
    """
    for argument, value, least in (("rows", rows, 1), ("cols", cols, 1), ("room", room, 2)):
        if value < least:
            raise ValueError(f"{argument}: expected at least {least}, got {value}.")
    _check_fraction("one_way", one_way)
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
    drawn = _to_map(grid, name or f"rooms {rows}x{cols} #{seed}")
    return _turn_one_way(drawn, round(one_way * len(_two_way_passages(drawn))), rng)[0]


def one_way_doors(map: Map, n: int, seed: int, name: str | None = None) -> Map:
    """Turns `n` doors or corridor cells of a map into one-way doors; all stays in reach of the start.

    Raises:
        ValueError: when fewer than `n` doors can be turned without cutting a cell off.
    """
    if n < 0:
        raise ValueError(f"n: expected a number of doors >= 0, got {n}.")
    if not map.reachable().all():
        raise ValueError(f"map: {map.name!r} has floor cells that its start does not reach already.")
    turned, count = _turn_one_way(map, n, np.random.default_rng(seed))
    if count < n:
        raise ValueError(
            f"n: only {count} doors of {map.name!r} could be made one-way with everything still in reach, "
            f"asked for {n}. Ask for fewer, or try another seed."
        )
    return Map(name or f"{map.name}, {n} one-way", turned.rows)


def _turn_one_way(map: Map, n: int, rng: np.random.Generator) -> tuple[Map, int]:
    """Turns up to `n` passages in random order, each in a random direction that cuts nothing off."""
    passages = _two_way_passages(map)
    turned = 0
    for index in rng.permutation(len(passages)):
        if turned == n:
            break
        row, column = passages[index]
        for arrow in rng.permutation(_AXIS_ARROWS[int(map.doorways[row, column])]):
            candidate = map.replace_cells({(row, column): str(arrow)})
            if candidate.reachable().all():
                map, turned = candidate, turned + 1
                break
    return map, turned


def _two_way_passages(map: Map) -> list[tuple[int, int]]:
    """Doors and corridor cells that are not one-way yet; the start is never one."""
    free = (map.doorways >= 0) & (map.arrows == TWO_WAY) & (map.state_ids != map.start)
    return [(int(row), int(column)) for row, column in np.argwhere(free)]


def _spanning_tree(side: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Walls to open so that a depth-first walk from the first of side x side cells meets them all."""
    seen = {(0, 0)}
    path = [(0, 0)]
    while path:
        row, col = path[-1]
        around = [(row - 1, col), (row, col + 1), (row + 1, col), (row, col - 1)]
        fresh = [(r, c) for r, c in around if 0 <= r < side and 0 <= c < side and (r, c) not in seen]
        if not fresh:
            path.pop()
            continue
        r, c = fresh[rng.integers(len(fresh))]
        seen.add((r, c))
        path.append((r, c))
        yield row + r + 1, col + c + 1


def _inner_walls(size: int) -> list[tuple[int, int]]:
    """Cells between two neighbouring cells of the maze's lattice."""
    return [(r, c) for r in range(1, size - 1) for c in range(1, size - 1) if (r + c) % 2 == 1]


def _to_map(grid: np.ndarray, name: str) -> Map:
    grid[1, 1] = START
    return Map(name, tuple("".join(row) for row in grid))


def _check_fraction(name: str, value: float | int) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: a fraction in [0, 1] was expected, got {value}.")
