"""Deep sea (bsuite's): a dive of N steps in which only one of 2^N sequences of actions finds the treasure.

The diver starts at the top left of N x N cells and falls by one row a step, one column to the left or to the right.
Going right costs 0.01 / N each time; a last step to the right out of the bottom-right cell gives 1. Which of the two
actions means right differs from cell to cell, fixed once for each N.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, Int32, PRNGKeyArray, UInt8

from derex.envs.drawing import grid_picture
from derex.types import Discrete, EnvironmentSpec

MOVE_COST = 0.01  # of N steps to the right


class DeepSeaState(NamedTuple):
    """The diver's place; row N is below the bottom, where the episode has ended."""

    row: Int32[Array, ""]
    column: Int32[Array, ""]


class DeepSea:
    """`deep-sea-N`: the observation is one-hot over the N x N cells, and, as in bsuite, all zeros after the last step.

    States are the cells that the diver can be in (column <= row) in reading order, then the end, drawn below the
    bottom-left cell.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.right_action = np.random.default_rng(n).integers(0, 2, size=(n, n), dtype=np.int32)
        rows, columns = np.tril_indices(n)
        cells = np.stack([np.append(rows, n), np.append(columns, 0)], axis=1)
        self.spec = EnvironmentSpec(
            name=f"deep-sea-{n}",
            observation=jax.ShapeDtypeStruct((n * n,), jnp.float32),
            action=Discrete(2),
            horizon=n,
            success_return=0.5,
            n_states=len(cells),
            positions=cells.astype(np.int32),
        )

    def reset(self, key: PRNGKeyArray) -> tuple[DeepSeaState, Float32[Array, " cells"]]:
        """At the top left."""
        state = DeepSeaState(jnp.int32(0), jnp.int32(0))
        return state, self._observe(state)

    def step(
        self, state: DeepSeaState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[DeepSeaState, Float32[Array, " cells"], Float32[Array, ""], Bool[Array, ""]]:
        """One row down; the dive ends after N steps by its own rule."""
        right = action == jnp.asarray(self.right_action)[state.row, state.column]
        treasure = right & (state.column == self.n - 1)
        reward = treasure.astype(jnp.float32) - right.astype(jnp.float32) * (MOVE_COST / self.n)
        column = jnp.clip(state.column + jnp.where(right, 1, -1), 0, self.n - 1)
        state = DeepSeaState(state.row + 1, column)
        return state, self._observe(state), reward, state.row == self.n

    def state_id(self, state: DeepSeaState) -> Int32[Array, ""]:
        """The cell's place among those of the triangle."""
        ended = state.row == self.n
        return state.row * (state.row + 1) // 2 + jnp.where(ended, 0, state.column)

    def render(self, state: DeepSeaState) -> UInt8[np.ndarray, "H W 3"]:
        """The cells that a dive can reach, darker with depth, the treasure's in green; the lowest row is the end."""
        depths = np.arange(self.n + 1) / self.n
        water = [(round(205 - 150 * d), round(230 - 110 * d), round(250 - 60 * d)) for d in depths]
        reach = {(row, column): water[row] for row in range(self.n) for column in range(row + 1)}
        end = {(self.n, column): (222, 204, 166) for column in range(self.n)}
        walls = np.triu(np.ones((self.n + 1, self.n), bool), k=1)
        agent = int(state.row), int(state.column)
        return grid_picture(walls, agent, (self.n - 1, self.n - 1), reach | end)

    def _observe(self, state: DeepSeaState) -> Float32[Array, " cells"]:
        cell = state.row * self.n + state.column  # outside, and so all zeros, in row N
        return jax.nn.one_hot(cell, self.n * self.n, dtype=jnp.float32)
