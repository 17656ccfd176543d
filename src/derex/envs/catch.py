"""Catch (bsuite's): a ball falls down a board of 10 x 5, and the paddle in the bottom row has to be under it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, Int32, PRNGKeyArray, UInt8

from derex.envs.drawing import BLUE, grid_picture
from derex.types import Discrete, EnvironmentSpec

ROWS, COLUMNS = 10, 5

_CELLS = np.arange(ROWS * COLUMNS)


class CatchState(NamedTuple):
    """Where the ball is, and the paddle's column."""

    ball_row: Int32[Array, ""]
    ball_column: Int32[Array, ""]
    paddle: Int32[Array, ""]


class Catch:
    """`catch`: actions left, stay, right; the only reward, 1 or -1, comes when the ball is down, after 9 steps.

    The ball starts in a random column of the top row and the paddle in the middle. The observation is the board, 1
    where the ball and the paddle are.
    """

    spec = EnvironmentSpec(
        name="catch",
        observation=jax.ShapeDtypeStruct((ROWS * COLUMNS,), jnp.float32),
        action=Discrete(3),
        horizon=ROWS - 1,
        success_return=1.0,
    )

    def reset(self, key: PRNGKeyArray) -> tuple[CatchState, Float32[Array, "50"]]:
        """The ball in the top row."""
        column = jnp.floor(jax.random.uniform(key) * COLUMNS).astype(jnp.int32)
        state = CatchState(jnp.int32(0), column, jnp.int32(COLUMNS // 2))
        return state, _board(state)

    def step(
        self, state: CatchState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[CatchState, Float32[Array, "50"], Float32[Array, ""], Bool[Array, ""]]:
        """The paddle moves, the ball falls by one row."""
        paddle = jnp.clip(state.paddle + action.astype(jnp.int32) - 1, 0, COLUMNS - 1)
        state = CatchState(state.ball_row + 1, state.ball_column, paddle)
        down = state.ball_row == ROWS - 1
        caught = jnp.where(state.ball_column == paddle, jnp.float32(1), jnp.float32(-1))
        return state, _board(state), jnp.where(down, caught, 0), down

    def render(self, state: CatchState) -> UInt8[np.ndarray, "H W 3"]:
        """The board: a red ball, a blue paddle."""
        paddle = {(ROWS - 1, int(state.paddle)): BLUE}
        ball = int(state.ball_row), int(state.ball_column)
        return grid_picture(np.zeros((ROWS, COLUMNS), bool), ball, tints=paddle)


def _board(state: CatchState) -> Float32[Array, "50"]:
    ball = state.ball_row * COLUMNS + state.ball_column
    paddle = (ROWS - 1) * COLUMNS + state.paddle
    return ((ball == _CELLS) | (paddle == _CELLS)).astype(jnp.float32)
