"""Tasks on grid worlds with one reward: 1 at the goal, which ends the episode.

    four-rooms         from the top-left to the bottom-right corner; truncated after 250 steps, as in the paper
    rooms-chain-N      from the first to the last of N rooms in a row, each 5 x 5 cells; truncated after 25 N steps
    key-rooms-N        the same with N + 1 rooms and N locked doors, each with a key in the room before it

The chains ask how far a novelty bonus has to carry an agent. A random walk succeeds once in 4 episodes with one room,
in 76 with two, in 10⁹ with eight; with one key in 125, with two in 17 000, with three in 7 million.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, Int32, PRNGKeyArray, Shaped, UInt8

from derex.envs.drawing import BLUE, ORANGE, Cell, Colour, Picture, frame_table, grid_picture
from derex.envs.grid.gridworld import GridWorld
from derex.envs.grid.maps import FLOOR, FOUR_ROOMS, MOVES, START, WALL, Map
from derex.envs.interface import BuiltinEnvironment, vector
from derex.types import Discrete, EnvironmentSpec

SUCCESS = 0.5  # halfway between the only two returns, 0 and 1


class GoalWalk(BuiltinEnvironment):
    """Walks from the start of a map to a goal; states are the floor cells, numbered in reading order."""

    def __init__(self, name: str, map: Map, goal: Cell, n_features: int, horizon: int) -> None:
        self.world = GridWorld(map)
        self.goal = int(map.state_ids[goal])
        states = self.world.n_states, self.world.positions
        self.spec = EnvironmentSpec(name, vector(n_features), Discrete(4), horizon, SUCCESS, *states)

    def start(self, key: PRNGKeyArray) -> Int32[Any, ""]:
        return jnp.int32(self.world.start)

    def move(self, state: Int32[Any, ""], action: Int[Array, ""]) -> tuple[Int32[Any, ""], Array, Array]:
        """Moves by one cell; walls block."""
        state = jnp.asarray(self.world.successors)[state, action]
        reached = state == self.goal
        return state, reached.astype(jnp.float32), reached

    def state_id(self, state: Int32[Any, ""]) -> Int32[Any, ""]:
        """The number of the floor cell."""
        return state

    def render(self, state: Int32[Any, ""]) -> Picture:
        """Draws the map from above."""
        return self.draw(state, {}, {})

    def draw(self, cell: Int32[Any, ""], tints: dict[Cell, Colour], keys: dict[Cell, Colour]) -> Picture:
        """The floor's rectangle with the agent in a floor cell; `tints` and `keys` as of `grid_picture`."""
        corner = top, left = self.world.positions.min(axis=0)
        height, width = self.world.inside_shape
        walls = ~self.world.map.floor[top : top + height, left : left + width]
        agent, goal = ((self.world.positions[int(place)] - corner).tolist() for place in (cell, self.goal))
        return grid_picture(walls, tuple(agent), tuple(goal), tints, keys)


# --- four rooms ---------------------------------------------------------------------------------------------------

GOAL_COLOUR = (0, 160, 0)
HIDE = 0.5  # probability that the dot is missing in `four-rooms-hidden`


class FourRooms(GoalWalk):
    """`four-rooms`: the observation is one-hot over the 11 x 11 cells of the floor's rectangle (Figure 2)."""

    def __init__(self) -> None:
        super().__init__("four-rooms", FOUR_ROOMS, (11, 11), n_features=121, horizon=250)

    def observe(self, state: Int32[Array, ""], key: PRNGKeyArray) -> Shaped[Array, "*size"]:
        return self.world.one_hot(state)


class FourRoomsPixels(FourRooms):
    """`four-rooms-pixels`: a 30 x 30 image from above, with a red agent and a green goal."""

    def __init__(self, name: str = "four-rooms-pixels") -> None:
        super().__init__()
        table = frame_table(self.world, 30)
        cell = np.any(table[self.goal] != table[-1], axis=-1)  # the goal's pixels
        shown = np.arange(len(table)) != self.goal  # where the agent does not stand on it
        coloured = shown[:, None, None, None] & cell[..., None]
        self.frames = np.where(coloured, np.asarray(GOAL_COLOUR, np.uint8), table)
        self.frames.flags.writeable = False
        observation = jax.ShapeDtypeStruct(self.frames.shape[1:], jnp.uint8)
        self.spec = self.spec._replace(name=name, observation=observation)

    def observe(self, state: Int32[Array, ""], key: PRNGKeyArray) -> UInt8[Array, "30 30 3"]:
        return jnp.asarray(self.frames)[state]


class FourRoomsHidden(FourRoomsPixels):
    """`four-rooms-hidden`: the same frames, but the agent's dot is missing with probability 0.5 at each step."""

    def __init__(self) -> None:
        super().__init__("four-rooms-hidden")

    def observe(self, state: Int32[Array, ""], key: PRNGKeyArray) -> UInt8[Array, "30 30 3"]:
        hidden = jax.random.uniform(key) < HIDE
        return jnp.asarray(self.frames)[jnp.where(hidden, self.world.n_states, state)]


# --- rooms in a row -------------------------------------------------------------------------------------------------

ROOM = 5  # rows and columns of a room
PITCH = ROOM + 1  # columns from a room to the next: the room and the wall behind it
START_CELL = (2, 0)  # at the left of the first room
GOAL_ROW = 2  # at the right of the last room
STEPS_PER_ROOM = 25  # of the time limit


class RoomsChain(GoalWalk):
    """`rooms-chain-N`: the observation is the row and the column, each one-hot (5 + 6N - 1 numbers).

    The doors are the same in every episode; neighbouring doors are in different rows.
    """

    def __init__(self, n: int) -> None:
        name, columns = f"rooms-chain-{n}", PITCH * n - 1
        goal = GOAL_ROW, columns - 1
        super().__init__(name, chain_map(n, door_rows(n), name), goal, ROOM + columns, STEPS_PER_ROOM * n)

    def observe(self, state: Int32[Any, ""], key: PRNGKeyArray) -> Float32[Array, " size"]:
        cell = jnp.asarray(self.world.positions)[state]
        sides = zip(cell, self.world.map.floor.shape, strict=True)
        return jnp.concatenate([jax.nn.one_hot(place, n) for place, n in sides]).astype(jnp.float32)


class HiddenChainState(NamedTuple):
    """The agent's cell and the doors of this episode; the last door is unused."""

    cell: Int32[Array, "2"]
    doors: Int32[Array, " N"]


class HiddenRoomsChain(BuiltinEnvironment):
    """`rooms-chain-N-hidden`: new doors in each episode, and only the 5 x 5 cells around the agent are seen.

    Each cell of the view is one-hot: wall, floor or goal; the outside counts as wall. The agent has to remember
    which room it is in and where the doors behind it are. States are the cells of the 5 x (6N - 1) rectangle in
    reading order, because any cell of an inner wall may be a door.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.width = PITCH * n - 1
        cells = np.argwhere(np.ones((ROOM, self.width))).astype(np.int32)
        name, horizon = f"rooms-chain-{n}-hidden", STEPS_PER_ROOM * n
        self.spec = EnvironmentSpec(name, vector(75), Discrete(4), horizon, SUCCESS, len(cells), cells)

    def start(self, key: PRNGKeyArray) -> HiddenChainState:
        doors = jnp.floor(jax.random.uniform(key, (self.n,)) * ROOM).astype(jnp.int32)
        return HiddenChainState(jnp.asarray(START_CELL, jnp.int32), doors)

    def move(self, state: HiddenChainState, action: Int[Array, ""]) -> tuple[HiddenChainState, Array, Array]:
        """Moves by one cell; walls block."""
        ahead = state.cell + jnp.asarray(MOVES)[action]
        blocked = self._is_wall(state.doors, ahead[0], ahead[1])
        state = state._replace(cell=jnp.where(blocked, state.cell, ahead))
        reached = self._is_goal(state.cell[0], state.cell[1])
        return state, reached.astype(jnp.float32), reached

    def state_id(self, state: HiddenChainState) -> Int32[Array, ""]:
        """The number of the cell in the rectangle."""
        return state.cell[0] * self.width + state.cell[1]

    def render(self, state: HiddenChainState) -> Picture:
        """Draws the rooms of this episode from above; unseen cells are darker."""
        row, column = np.asarray(state.cell).tolist()
        walls = ~chain_map(self.n, np.asarray(state.doors).tolist(), self.spec.name).floor
        rows, columns = np.indices(walls.shape)
        seen = (abs(rows - row) <= _VIEW.max()) & (abs(columns - column) <= _VIEW.max())
        return grid_picture(walls, (row, column), (GOAL_ROW, self.width - 1), seen=seen)

    def observe(self, state: HiddenChainState, key: PRNGKeyArray) -> Float32[Array, "75"]:
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


_VIEW = np.arange(-2, 3)  # rows or columns of the local view, seen from the agent


def door_rows(n: int) -> list[int]:
    """The row of each of the n - 1 doors: a function of n; neighbouring doors differ."""
    shifts = np.random.default_rng(n).integers(1, ROOM, size=n - 1)
    return ((START_CELL[0] + shifts.cumsum()) % ROOM).tolist()


def chain_map(n: int, doors: list[int], name: str) -> Map:
    """n rooms in a row as a map, with the start marked; a door after the last room is not drawn."""
    cells = np.full((ROOM, PITCH * n - 1), FLOOR)
    cells[:, ROOM::PITCH] = WALL
    for cell in _door_cells(doors[: n - 1]):
        cells[cell] = FLOOR
    cells[START_CELL] = START
    return Map(name, tuple("".join(row) for row in cells))


def _door_cells(rows: list[int]) -> list[Cell]:
    return [(row, room * PITCH + ROOM) for room, row in enumerate(rows)]


# --- keys -----------------------------------------------------------------------------------------------------------

KEY_COLOURS: tuple[Colour, ...] = (ORANGE, BLUE, (204, 121, 167))  # of keys and their doors, room by room
KEY_DISTANCE = 3  # moves, at least, from a key to the start and to either door of its room


class KeyRoomsState(NamedTuple):
    """The floor cell, and the keys held: bit i for the key of room i."""

    cell: Int32[Array, ""]
    held: Int32[Array, ""]


class KeyRooms(RoomsChain):
    """`key-rooms-N`: the observation is the row and the column, each one-hot, and 1 for each key held.

    A key is taken by walking over it; a locked door is a wall. Keys and doors are at the same places in every episode.
    States are numbered `held * cells + cell`: every floor cell with every set of keys, reachable or not.
    """

    def __init__(self, n: int) -> None:
        super().__init__(n + 1)
        self.n = n
        self.door_cells, self.key_cells = _door_cells(door_rows(n + 1)), key_cells(n)
        cells, ids = self.world.n_states, self.world.map.state_ids
        # As bits: the keys needed to enter a cell, and those that lie in it.
        self._needs, self._gives = np.zeros((2, cells), np.int32)
        for room in range(n):
            self._needs[ids[self.door_cells[room]]] = 1 << room
            self._gives[ids[self.key_cells[room]]] = 1 << room
        self.spec = self.spec._replace(
            name=f"key-rooms-{n}",
            observation=vector(self.spec.observation.shape[0] + n),
            n_states=cells * 2**n,
            positions=np.tile(self.world.positions, (2**n, 1)),
        )

    def start(self, key: PRNGKeyArray) -> KeyRoomsState:
        return KeyRoomsState(super().start(key), jnp.int32(0))

    def move(self, state: KeyRoomsState, action: Int[Array, ""]) -> tuple[KeyRoomsState, Array, Array]:
        """Moves by one cell; walls and locked doors block. Takes a key in the new cell."""
        ahead = jnp.asarray(self.world.successors)[state.cell, action]
        locked = (jnp.asarray(self._needs)[ahead] & ~state.held) != 0
        cell = jnp.where(locked, state.cell, ahead)
        state = KeyRoomsState(cell, state.held | jnp.asarray(self._gives)[cell])
        reached = cell == self.goal
        return state, reached.astype(jnp.float32), reached

    def observe(self, state: KeyRoomsState, key: PRNGKeyArray) -> Float32[Array, " size"]:
        held = (state.held >> jnp.arange(self.n, dtype=jnp.int32)) & 1
        return jnp.concatenate([super().observe(state.cell, key), held.astype(jnp.float32)])

    def state_id(self, state: KeyRoomsState) -> Int32[Array, ""]:
        """The number of the floor cell with the keys held."""
        return state.held * self.world.n_states + state.cell

    def render(self, state: KeyRoomsState) -> Picture:
        """Draws the rooms from above; missing keys have the colour of their doors."""
        missing = [room for room in range(self.n) if not int(state.held) >> room & 1]
        colours = {room: KEY_COLOURS[room % len(KEY_COLOURS)] for room in missing}
        doors = {self.door_cells[room]: colour for room, colour in colours.items()}
        keys = {self.key_cells[room]: colour for room, colour in colours.items()}
        return self.draw(state.cell, doors, keys)


def key_cells(n: int) -> list[Cell]:
    """(row, column) of each of n keys: a function of n."""
    rng = np.random.default_rng([n + 1, 1])
    doors = _door_cells(door_rows(n + 1))
    chosen = []
    for room in range(n):
        far_from = np.array([START_CELL, *doors[max(room - 1, 0) : room + 1]])
        inside = np.argwhere(np.ones((ROOM, ROOM))) + np.array([0, room * PITCH])
        distance = abs(inside[:, None] - far_from).sum(axis=-1).min(axis=1)
        free = inside[distance >= KEY_DISTANCE]
        row, column = free[int(rng.integers(len(free)))].tolist()
        chosen.append((row, column))
    return chosen
