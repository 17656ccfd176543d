"""A row of rooms behind locked doors: novelty of places is not enough, each room has to be unlocked first.

The rooms and the time limit are those of `rooms_chain`. N rooms hold a key each, taken by walking over it, which opens
the door from that room to the next and no other; a locked door is a wall. The one reward, 1, ends the episode at the
right of the room behind the last door. A random walk succeeds in one of 125 with one key, in one of 17 000 with two, in
one of 7 million with three.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, Int32, PRNGKeyArray, UInt8

from derex.envs.drawing import BLUE, ORANGE, Colour, grid_picture
from derex.envs.gridworld import GridWorld
from derex.envs.maps import MOVES
from derex.envs.rooms_chain import (
    GOAL_ROW,
    PITCH,
    ROOM,
    START_CELL,
    STEPS_PER_ROOM,
    chain_map,
    door_rows,
    one_hot_cell,
    width,
)
from derex.types import Discrete, EnvironmentSpec

KEY_COLOURS: tuple[Colour, ...] = (ORANGE, BLUE, (204, 121, 167))  # of keys and their doors, room by room
KEY_DISTANCE = 3  # moves, at least, from a key to the start and to either door of its room


class KeyRoomsState(NamedTuple):
    """The floor cell, and the keys held: bit i for the key of room i."""

    cell: Int32[Array, ""]
    held: Int32[Array, ""]


class KeyRooms:
    """`key-rooms-N`: the agent reads its row and column, each one-hot, and for each key 1 if it is held.

    States are numbered `held * cells + cell`: every floor cell with every set of keys, whether or not the two can
    come about together. Keys, like doors, are at the same places in every episode.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.rooms = n + 1
        self.world = GridWorld(chain_map(self.rooms, door_rows(self.rooms), f"key-rooms-{n}"))
        cells = self.world.n_states
        ids = self.world.map.state_ids
        self.goal = int(ids[GOAL_ROW, -1])
        self.key_cells = key_cells(n)
        self._needs = np.zeros(cells, np.int32)  # the keys without which a cell cannot be entered, as bits
        self._gives = np.zeros(cells, np.int32)  # the keys that lie in a cell
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
        """At the left of the first room, without keys."""
        state = KeyRoomsState(jnp.int32(self.world.start), jnp.int32(0))
        return state, self._observe(state)

    def step(
        self, state: KeyRoomsState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[KeyRoomsState, Float32[Array, " size"], Float32[Array, ""], Bool[Array, ""]]:
        """One move; into a wall or a locked door it stays. A key in the cell is taken."""
        ahead = jnp.asarray(self.world.successors)[state.cell, action]
        locked = (jnp.asarray(self._needs)[ahead] & ~state.held) != 0
        cell = jnp.where(locked, state.cell, ahead)
        state = KeyRoomsState(cell, state.held | jnp.asarray(self._gives)[cell])
        reached = cell == self.goal
        return state, self._observe(state), reached.astype(jnp.float32), reached

    def state_id(self, state: KeyRoomsState) -> Int32[Array, ""]:
        """The floor cell together with the keys held."""
        return state.held * self.world.n_states + state.cell

    def render(self, state: KeyRoomsState) -> UInt8[np.ndarray, "H W 3"]:
        """The rooms from above: keys that are not held, and the doors that they open, in the same colour."""
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
    """(row, column) of each of n keys: always the same for the same n, varied from room to room."""
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
