"""Catch (bsuite's): a ball falls down a board of 10 x 5, and the paddle in the bottom row has to be under it.

Deep sea (bsuite's): a dive of N steps in which only one of 2^N sequences of actions finds the treasure.

The diver starts at the top left of N x N cells and falls by one row a step, one column to the left or to the right.
Going right costs 0.01 / N each time; a last step to the right out of the bottom-right cell gives 1. Which of the two
actions means right differs from cell to cell, fixed once for each N.

Recall: a cue is shown once and asked for L steps later; nothing in between helps to remember it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, Int32, PRNGKeyArray, UInt8

from derex.envs.drawing import BLUE, FAINT, INK, ORANGE, box, canvas, disc, grid_picture
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


CUES = 4


class RecallState(NamedTuple):
    """The cue of this episode, and how many steps ago it was shown."""

    cue: Int32[Array, ""]
    time: Int32[Array, ""]


class Recall:
    """`recall-L`: one of 4 cues at the first step, L blank steps, then the signal to choose.

    The action that answers the signal gives 1 if it is the cue's number, else 0, and ends the episode after L + 2
    steps; all other actions are without effect. The observation is the cue one-hot, then the signal: 5 numbers, all 0
    at a blank step and after the choice. Without memory the expected return is 1/4.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.spec = EnvironmentSpec(
            name=f"recall-{length}",
            observation=jax.ShapeDtypeStruct((CUES + 1,), jnp.float32),
            action=Discrete(CUES),
            horizon=length + 2,
            success_return=0.5,
        )

    def reset(self, key: PRNGKeyArray) -> tuple[RecallState, Float32[Array, "5"]]:
        """The cue is shown."""
        state = RecallState(jnp.floor(jax.random.uniform(key) * CUES).astype(jnp.int32), jnp.int32(0))
        return state, self._observe(state)

    def step(
        self, state: RecallState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[RecallState, Float32[Array, "5"], Float32[Array, ""], Bool[Array, ""]]:
        """Time passes, or the choice is made."""
        chosen = state.time == self.length + 1
        reward = (chosen & (action == state.cue)).astype(jnp.float32)
        state = state._replace(time=state.time + 1)
        return state, self._observe(state), reward, chosen

    def render(self, state: RecallState) -> UInt8[np.ndarray, "H W 3"]:
        """The observation as bars, cues in blue and the signal in orange; a dot is under the cue to be remembered,
        and the line below shows how much of the episode is over."""
        picture, shown = canvas(240, 160), np.asarray(self._observe(state))
        for bar, value in enumerate(shown):
            left, colour = 20 + 42 * bar, ORANGE if bar == CUES else BLUE
            box(picture, (left, 20), (left + 32, 110), FAINT)
            if value:
                box(picture, (left, 20), (left + 32, 110), colour)
        disc(picture, (36 + 42 * int(state.cue), 122), 4, INK)
        box(picture, (20, 140), (220, 146), FAINT)
        box(picture, (20, 140), (20 + 200 * min(int(state.time) / self.spec.horizon, 1.0), 146), INK)
        return picture

    def _observe(self, state: RecallState) -> Float32[Array, "5"]:
        shown = jnp.where(state.time == 0, state.cue, -1)
        shown = jnp.where(state.time == self.length + 1, CUES, shown)
        return jax.nn.one_hot(shown, CUES + 1, dtype=jnp.float32)  # all zeros for -1
