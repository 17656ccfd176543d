"""Rows of rooms with one reward at the far end: how far a novelty bonus has to carry an agent.

N rooms of 5 x 5 cells stand in a row; the wall between two neighbours has one door. The agent starts at the left of the
first room; the only reward, 1, ends the episode at the right of the last. Episodes are truncated after 25 N steps. In
`rooms-chain-N` a random walk succeeds once in 4 episodes with one room, in 76 with two, in 10⁹ with eight.

In `key-rooms-N` N rooms hold a key each, taken by walking over it, which opens the door to the next room; a locked door
is a wall. A random walk succeeds once in 125 episodes with one key, in 17 000 with two, in 7 million with three.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, Int32, PRNGKeyArray, UInt8

from derex.envs.drawing import BLUE, ORANGE, Colour, grid_picture
from derex.envs.grid.gridworld import GridWorld
from derex.envs.grid.maps import FLOOR, MOVES, START, WALL, Map
from derex.types import Discrete, EnvironmentSpec

ROOM = 5  # rows and columns of a room
PITCH = ROOM + 1  # columns from a room to the next: the room and the wall behind it
START_CELL = (2, 0)
GOAL_ROW = 2
STEPS_PER_ROOM = 25  # of the time limit
SUCCESS = 0.5  # halfway between the only two returns, 0 and 1

_VIEW = np.arange(-2, 3)  # rows or columns of the local view, seen from the agent


class RoomsChain:
    """`rooms-chain-N`: the observation is the row and the column, each one-hot (5 + 6N - 1 numbers).

    The doors are the same in every episode; neighbouring doors are in different rows. States are the floor
    cells, numbered in reading order.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.world = GridWorld(chain_map(n, door_rows(n), f"rooms-chain-{n}"))
        self.goal = int(self.world.map.state_ids[GOAL_ROW, -1])
        self.spec = EnvironmentSpec(
            name=f"rooms-chain-{n}",
            observation=jax.ShapeDtypeStruct((ROOM + width(n),), jnp.float32),
            action=Discrete(len(MOVES)),
            horizon=STEPS_PER_ROOM * n,
            success_return=SUCCESS,
            n_states=self.world.n_states,
            positions=self.world.positions,
        )

    def reset(self, key: PRNGKeyArray) -> tuple[Int32[Array, ""], Float32[Array, " size"]]:
        """Starts at the left of the first room."""
        state = jnp.int32(self.world.start)
        return state, self._observe(state)

    def step(
        self, state: Int32[Array, ""], action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[Int32[Array, ""], Float32[Array, " size"], Float32[Array, ""], Bool[Array, ""]]:
        """Moves by one cell; walls block."""
        state = jnp.asarray(self.world.successors)[state, action]
        reached = state == self.goal
        return state, self._observe(state), reached.astype(jnp.float32), reached

    def state_id(self, state: Int32[Array, ""]) -> Int32[Array, ""]:
        """The number of the floor cell."""
        return state

    def render(self, state: Int32[Any, ""]) -> UInt8[np.ndarray, "H W 3"]:
        """Draws the rooms from above."""
        agent, goal = self.world.positions[int(state)], self.world.positions[self.goal]
        return grid_picture(~self.world.map.floor, tuple(agent.tolist()), tuple(goal.tolist()))

    def _observe(self, state: Int32[Array, ""]) -> Float32[Array, " size"]:
        return one_hot_cell(jnp.asarray(self.world.positions)[state], width(self.n))


class HiddenChainState(NamedTuple):
    """The agent's cell and the doors of this episode; the last door is unused."""

    cell: Int32[Array, "2"]
    doors: Int32[Array, " N"]


class HiddenRoomsChain:
    """`rooms-chain-N-hidden`: new doors in each episode, and only the 5 x 5 cells around the agent are seen.

    Each cell of the view is one-hot: wall, floor or goal; the outside counts as wall. The agent has to remember
    which room it is in and where the doors behind it are. States are the cells of the 5 x (6N - 1) rectangle in
    reading order, because any cell of an inner wall may be a door.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.width = width(n)
        rows, columns = np.indices((ROOM, self.width), dtype=np.int32)
        self.spec = EnvironmentSpec(
            name=f"rooms-chain-{n}-hidden",
            observation=jax.ShapeDtypeStruct((len(_VIEW) ** 2 * 3,), jnp.float32),
            action=Discrete(len(MOVES)),
            horizon=STEPS_PER_ROOM * n,
            success_return=SUCCESS,
            n_states=ROOM * self.width,
            positions=np.stack([rows.ravel(), columns.ravel()], axis=1),
        )

    def reset(self, key: PRNGKeyArray) -> tuple[HiddenChainState, Float32[Array, "75"]]:
        """Starts at the left of the first room, with new doors."""
        doors = jnp.floor(jax.random.uniform(key, (self.n,)) * ROOM).astype(jnp.int32)
        state = HiddenChainState(jnp.asarray(START_CELL, jnp.int32), doors)
        return state, self._observe(state)

    def step(
        self, state: HiddenChainState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[HiddenChainState, Float32[Array, "75"], Float32[Array, ""], Bool[Array, ""]]:
        """Moves by one cell; walls block."""
        ahead = state.cell + jnp.asarray(MOVES)[action]
        blocked = self._is_wall(state.doors, ahead[0], ahead[1])
        state = state._replace(cell=jnp.where(blocked, state.cell, ahead))
        reached = self._is_goal(state.cell[0], state.cell[1])
        return state, self._observe(state), reached.astype(jnp.float32), reached

    def state_id(self, state: HiddenChainState) -> Int32[Array, ""]:
        """The number of the cell in the rectangle."""
        return state.cell[0] * self.width + state.cell[1]

    def render(self, state: HiddenChainState) -> UInt8[np.ndarray, "H W 3"]:
        """Draws the rooms of this episode from above; unseen cells are darker."""
        row, column = np.asarray(state.cell).tolist()
        doors = np.asarray(state.doors)[: self.n - 1].tolist()
        walls = ~chain_map(self.n, doors, self.spec.name).floor
        rows, columns = np.indices(walls.shape)
        seen = (abs(rows - row) <= _VIEW.max()) & (abs(columns - column) <= _VIEW.max())
        return grid_picture(walls, (row, column), (GOAL_ROW, self.width - 1), seen=seen)

    def _observe(self, state: HiddenChainState) -> Float32[Array, "75"]:
        rows = (state.cell[0] + jnp.asarray(_VIEW, jnp.int32))[:, None]
        columns = (state.cell[1] + jnp.asarray(_VIEW, jnp.int32))[None, :]
        wall = self._is_wall(state.doors, rows, columns)
        goal = self._is_goal(rows, columns)
        return jnp.stack([wall, ~wall & ~goal, goal], axis=-1).astype(jnp.float32).ravel()

    def _is_wall(
        self, doors: Int32[Array, " N"], row: Int32[Array, "*#r"], column: Int32[Array, "*#r"]
    ) -> Bool[Array, "*r"]:
        outside = (row < 0) | (row >= ROOM) | (column < 0) | (column >= self.width)
        door = doors[jnp.clip(column // PITCH, 0, self.n - 1)]
        return outside | ((column % PITCH == ROOM) & (row != door))

    def _is_goal(self, row: Int32[Array, "*#r"], column: Int32[Array, "*#r"]) -> Bool[Array, "*r"]:
        return (row == GOAL_ROW) & (column == self.width - 1)


def width(n: int) -> int:
    """Columns of n rooms with the walls between them."""
    return PITCH * n - 1


def door_rows(n: int) -> list[int]:
    """The row of each of the n - 1 doors: a function of n; neighbouring doors differ."""
    rows, row = [], START_CELL[0]
    for shift in np.random.default_rng(n).integers(1, ROOM, size=n - 1):
        row = (row + int(shift)) % ROOM
        rows.append(row)
    return rows


def chain_map(n: int, doors: list[int], name: str) -> Map:
    """n rooms in a row as a map, with the start marked."""
    cells = np.full((ROOM, width(n)), FLOOR)
    cells[:, ROOM::PITCH] = WALL
    for room, row in enumerate(doors):
        cells[row, room * PITCH + ROOM] = FLOOR
    cells[START_CELL] = START
    return Map(name, tuple("".join(row) for row in cells))


def one_hot_cell(cell: Int32[Array, "2"], columns: int) -> Float32[Array, " size"]:
    """The row one-hot, then the column one-hot."""
    row, column = jax.nn.one_hot(cell[0], ROOM), jax.nn.one_hot(cell[1], columns)
    return jnp.concatenate([row, column]).astype(jnp.float32)


KEY_COLOURS: tuple[Colour, ...] = (ORANGE, BLUE, (204, 121, 167))  # of keys and their doors, room by room
KEY_DISTANCE = 3  # moves, at least, from a key to the start and to either door of its room


class KeyRoomsState(NamedTuple):
    """The floor cell, and the keys held: bit i for the key of room i."""

    cell: Int32[Array, ""]
    held: Int32[Array, ""]


class KeyRooms:
    """`key-rooms-N`: the observation is the row and the column, each one-hot, and 1 for each key held.

    States are numbered `held * cells + cell`: every floor cell with every set of keys, reachable or not. Keys and doors
    are at the same places in every episode.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.rooms = n + 1
        self.world = GridWorld(chain_map(self.rooms, door_rows(self.rooms), f"key-rooms-{n}"))
        cells = self.world.n_states
        ids = self.world.map.state_ids
        self.goal = int(ids[GOAL_ROW, -1])
        self.key_cells = key_cells(n)
        self._needs = np.zeros(cells, np.int32)  # keys needed to enter a cell, as bits
        self._gives = np.zeros(cells, np.int32)  # keys in a cell, as bits
        for room, row in enumerate(door_rows(self.rooms)):
            self._needs[ids[row, room * PITCH + ROOM]] = 1 << room
            self._gives[ids[self.key_cells[room]]] = 1 << room
        self.spec = EnvironmentSpec(
            name=f"key-rooms-{n}",
            observation=jax.ShapeDtypeStruct((ROOM + width(self.rooms) + n,), jnp.float32),
            action=Discrete(len(MOVES)),
            horizon=STEPS_PER_ROOM * self.rooms,
            success_return=0.5,
            n_states=cells * 2**n,
            positions=np.tile(self.world.positions, (2**n, 1)),
        )

    def reset(self, key: PRNGKeyArray) -> tuple[KeyRoomsState, Float32[Array, " size"]]:
        """Starts at the left of the first room, without keys."""
        state = KeyRoomsState(jnp.int32(self.world.start), jnp.int32(0))
        return state, self._observe(state)

    def step(
        self, state: KeyRoomsState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[KeyRoomsState, Float32[Array, " size"], Float32[Array, ""], Bool[Array, ""]]:
        """Moves by one cell; walls and locked doors block. Takes a key in the new cell."""
        ahead = jnp.asarray(self.world.successors)[state.cell, action]
        locked = (jnp.asarray(self._needs)[ahead] & ~state.held) != 0
        cell = jnp.where(locked, state.cell, ahead)
        state = KeyRoomsState(cell, state.held | jnp.asarray(self._gives)[cell])
        reached = cell == self.goal
        return state, self._observe(state), reached.astype(jnp.float32), reached

    def state_id(self, state: KeyRoomsState) -> Int32[Array, ""]:
        """The number of the floor cell with the keys held."""
        return state.held * self.world.n_states + state.cell

    def render(self, state: KeyRoomsState) -> UInt8[np.ndarray, "H W 3"]:
        """Draws the rooms from above; missing keys have the colour of their doors."""
        missing = [room for room in range(self.n) if not int(state.held) >> room & 1]
        colours = {room: KEY_COLOURS[room % len(KEY_COLOURS)] for room in missing}
        rows = door_rows(self.rooms)
        doors = {(rows[room], room * PITCH + ROOM): colour for room, colour in colours.items()}
        keys = {self.key_cells[room]: colour for room, colour in colours.items()}
        agent, goal = (self.world.positions[int(place)].tolist() for place in (state.cell, self.goal))
        return grid_picture(~self.world.map.floor, tuple(agent), tuple(goal), doors, keys)

    def _observe(self, state: KeyRoomsState) -> Float32[Array, " size"]:
        place = one_hot_cell(jnp.asarray(self.world.positions)[state.cell], width(self.rooms))
        keys = (state.held >> jnp.arange(self.n, dtype=jnp.int32)) & 1
        return jnp.concatenate([place, keys.astype(jnp.float32)])


def key_cells(n: int) -> list[tuple[int, int]]:
    """(row, column) of each of n keys: a function of n."""
    rng = np.random.default_rng([n + 1, 1])
    doors = [(row, room * PITCH + ROOM) for room, row in enumerate(door_rows(n + 1))]
    chosen = []
    for room in range(n):
        far_from = [START_CELL, *doors[max(room - 1, 0) : room + 1]]
        inside = [(row, room * PITCH + column) for row in range(ROOM) for column in range(ROOM)]
        free = [
            (row, column)
            for row, column in inside
            if all(abs(row - r) + abs(column - c) >= KEY_DISTANCE for r, c in far_from)
        ]
        chosen.append(free[int(rng.integers(len(free)))])
    return chosen
