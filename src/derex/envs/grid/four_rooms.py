"""Four rooms with a goal: from the top-left to the bottom-right corner, with three kinds of observations.

Reaching the goal gives a reward of 1 and terminates; otherwise episodes are truncated after 250 steps, as in the paper.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, Int32, PRNGKeyArray, Shaped, UInt8

from derex.envs.drawing import frame_table, grid_picture
from derex.envs.grid.gridworld import GridWorld
from derex.envs.grid.maps import FOUR_ROOMS, MOVES
from derex.types import Discrete, EnvironmentSpec

HORIZON = 250
GOAL_COLOUR = (0, 160, 0)
HIDE = 0.5  # probability that the dot is missing in `four-rooms-hidden`


class FourRooms:
    """`four-rooms`: the observation is one-hot over the 11 x 11 cells of the floor's rectangle (Figure 2).

    States are the 104 floor cells, numbered in reading order; the goal is the last.
    """

    def __init__(self) -> None:
        self.world = GridWorld(FOUR_ROOMS)
        self.goal = self.world.n_states - 1
        self.spec = self._spec("four-rooms", jax.ShapeDtypeStruct((121,), jnp.float32))

    def reset(self, key: PRNGKeyArray) -> tuple[Int32[Array, ""], Shaped[Array, "*size"]]:
        """Starts in the top-left corner."""
        state = jnp.int32(self.world.start)
        return state, self._observe(state, key)

    def step(
        self, state: Int32[Array, ""], action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[Int32[Array, ""], Shaped[Array, "*size"], Float32[Array, ""], Bool[Array, ""]]:
        """Moves by one cell; walls block."""
        state = jnp.asarray(self.world.successors)[state, action]
        reached = state == self.goal
        return state, self._observe(state, key), reached.astype(jnp.float32), reached

    def state_id(self, state: Int32[Array, ""]) -> Int32[Array, ""]:
        """Returns the number of the floor cell."""
        return state

    def render(self, state: Int32[Any, ""]) -> UInt8[np.ndarray, "H W 3"]:
        """Draws the rooms from above, always with the agent."""
        agent, goal = (self.world.positions[int(place)] - 1 for place in (state, self.goal))
        inside = ~self.world.map.floor[1:-1, 1:-1]
        return grid_picture(inside, tuple(agent.tolist()), tuple(goal.tolist()))

    def _spec(self, name: str, observation: jax.ShapeDtypeStruct) -> EnvironmentSpec:
        return EnvironmentSpec(
            name=name,
            observation=observation,
            action=Discrete(len(MOVES)),
            horizon=HORIZON,
            success_return=0.5,
            n_states=self.world.n_states,
            positions=self.world.positions,
        )

    def _observe(self, state: Int32[Array, ""], key: PRNGKeyArray) -> Shaped[Array, "*size"]:
        return self.world.one_hot(state)


class FourRoomsPixels(FourRooms):
    """`four-rooms-pixels`: a 30 x 30 image from above, with a red agent and a green goal."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = _frames_with_goal(self.world, self.goal)
        self.spec = self._spec("four-rooms-pixels", jax.ShapeDtypeStruct(self.frames.shape[1:], jnp.uint8))

    def _observe(self, state: Int32[Array, ""], key: PRNGKeyArray) -> UInt8[Array, "30 30 3"]:
        return jnp.asarray(self.frames)[state]


class FourRoomsHidden(FourRoomsPixels):
    """`four-rooms-hidden`: the same frames, but the agent's dot is missing with probability 0.5 at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = self.spec._replace(name="four-rooms-hidden")

    def _observe(self, state: Int32[Array, ""], key: PRNGKeyArray) -> UInt8[Array, "30 30 3"]:
        hidden = jax.random.uniform(key) < HIDE
        return jnp.asarray(self.frames)[jnp.where(hidden, self.world.n_states, state)]


def _frames_with_goal(world: GridWorld, goal: int) -> UInt8[np.ndarray, "n_and_1 30 30 3"]:
    """Returns `frame_table` with the goal's cell coloured, except in the frame with the agent on it."""
    table = frame_table(world, 30).copy()
    cell = np.any(table[goal] != table[-1], axis=-1)
    seen = np.arange(len(table)) != goal
    table[seen] = np.where(cell[..., None], np.asarray(GOAL_COLOUR, np.uint8), table[seen])
    table.flags.writeable = False
    return table
