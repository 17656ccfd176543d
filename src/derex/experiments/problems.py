"""Enumerable problems that the studies share: a grid world, transitions of a random policy, and their exact answers."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from derex.decomposition import exact
from derex.decomposition.bonus import SIGMA_FLOOR
from derex.envs import FOUR_ROOMS, GridWorld, Map, frames, random_maze, random_rooms

FRESH_MAPS = 100  # generator seeds of mazes start here


def named_map(name: str, seed: int) -> tuple[Map, int]:
    """A map and the horizon of its episodes. Mazes and rooms are new for every seed and have one-way doors."""
    if name == "four-rooms":
        return FOUR_ROOMS, 100
    if name == "maze":
        return random_maze(FRESH_MAPS + seed, size=17, loops=0.2, one_way=0.2), 300
    if name == "rooms":
        return random_rooms(FRESH_MAPS + seed, rows=3, cols=3, room=4, one_way=0.5), 100
    raise ValueError(f"maps: expected 'four-rooms', 'maze' or 'rooms', got {name!r}.")


@dataclass(frozen=True, eq=False)
class Problem:
    """Transitions of the uniform random policy in a grid world, as state ids."""

    name: str
    world: GridWorld
    state: Int[np.ndarray, " n"]
    next_state: Int[np.ndarray, " n"]

    @cached_property
    def joint(self) -> Float[np.ndarray, "s s"]:
        """A_n of this data set (Section 3)."""
        size = self.world.n_states
        return np.asarray(exact.empirical_joint(self.state, self.next_state, size, size))

    @cached_property
    def d(self) -> Float[np.ndarray, " s"]:
        """Visitation of each state in this data set."""
        return self.joint.sum(axis=1)

    def largest_k(self) -> int:
        """Most singular functions that the data has."""
        return int(min((self.d > 0).sum(), (self.joint.sum(axis=0) > 0).sum())) - 1

    def exact_bonus(self, k: int) -> Float[np.ndarray, " s"]:
        """The bonus of the exact truncated decomposition, with the floor on σ that the learnt one has."""
        return exact.decompose(self.joint, k).bonus(floor=SIGMA_FLOOR)

    def observations(self, encoder: str) -> np.ndarray:
        """What the encoder sees of each state: its id, its coordinates, or its picture."""
        states = np.arange(self.world.n_states)
        if encoder == "tabular":
            return states.astype(np.int32)
        return np.asarray(frames(self.world) if encoder == "conv" else self.world.coordinates(states))


def make_problem(name: str, seed: int, transitions: int, closed_room: int | None = None) -> Problem:
    """Sample a problem; with `closed_room` the agent cannot enter that room, so the data has nothing of it."""
    map_, horizon = named_map(name, seed)
    world = GridWorld(map_)
    walked = world if closed_room is None else world.close(world.rooms == closed_room)
    data: Any = walked.sample_transitions(jax.random.key(seed), transitions, horizon=horizon)
    return Problem(name, world, np.asarray(data.state), np.asarray(data.next_state))
