"""Diagnostic tasks: catch and deep sea (of bsuite), and recall, a test of memory."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int, Int32, PRNGKeyArray

from derex.envs.drawing import BLUE, FAINT, INK, ORANGE, Picture, box, canvas, disc, grid_picture
from derex.envs.interface import BuiltinEnvironment, vector
from derex.types import Discrete, EnvironmentSpec

SUCCESS = 0.5  # return of deep sea and recall, between that of a failure and 1
ROWS, COLUMNS = 10, 5


class CatchState(NamedTuple):
    """Row and column of the ball, and column of the paddle."""

    ball_row: Int32[Array, ""]
    ball_column: Int32[Array, ""]
    paddle: Int32[Array, ""]


class Catch(BuiltinEnvironment):
    """`catch`: move a paddle under a falling ball; the reward, 1 or -1, comes when the ball is down, after 9 steps.

    Actions are left, stay and right. The ball starts in a random column of the top row and the paddle in the middle.
    The observation is the 10 x 5 board, 1 where the ball and the paddle are.
    """

    spec = EnvironmentSpec("catch", vector(ROWS * COLUMNS), Discrete(3), horizon=ROWS - 1, success_return=1.0)

    def start(self, key: PRNGKeyArray) -> CatchState:
        column = jnp.floor(jax.random.uniform(key) * COLUMNS).astype(jnp.int32)
        return CatchState(jnp.int32(0), column, jnp.int32(COLUMNS // 2))

    def move(self, state: CatchState, action: Int[Array, ""]) -> tuple[CatchState, Array, Array]:
        """Moves the paddle; the ball falls by one row."""
        paddle = jnp.clip(state.paddle + action.astype(jnp.int32) - 1, 0, COLUMNS - 1)
        state = CatchState(state.ball_row + 1, state.ball_column, paddle)
        down = state.ball_row == ROWS - 1
        caught = jnp.where(state.ball_column == paddle, jnp.float32(1), jnp.float32(-1))
        return state, jnp.where(down, caught, 0), down

    def observe(self, state: CatchState, key: PRNGKeyArray) -> Float32[Array, "50"]:
        cells = np.arange(ROWS * COLUMNS)
        ball = state.ball_row * COLUMNS + state.ball_column
        paddle = (ROWS - 1) * COLUMNS + state.paddle
        return ((ball == cells) | (paddle == cells)).astype(jnp.float32)

    def render(self, state: CatchState) -> Picture:
        """Draws the board with a red ball and a blue paddle."""
        paddle = {(ROWS - 1, int(state.paddle)): BLUE}
        ball = int(state.ball_row), int(state.ball_column)
        return grid_picture(np.zeros((ROWS, COLUMNS), bool), ball, tints=paddle)


MOVE_COST = 0.01  # in total, of N steps to the right


class DeepSeaState(NamedTuple):
    """The diver's cell; in row N, below the bottom, the episode has ended."""

    row: Int32[Array, ""]
    column: Int32[Array, ""]


class DeepSea(BuiltinEnvironment):
    """`deep-sea-N`: a dive of N steps in which one of 2^N sequences of actions finds the treasure.

    The diver starts at the top left of N x N cells and falls by one row a step, one column to the left or the right.
    Going right costs 0.01 / N; a last step to the right from the bottom-right cell gives 1. Which action means right
    differs from cell to cell and is fixed for each N. The observation is one-hot over the cells, all zeros after the
    last step as in bsuite.

    States are the cells that the diver can be in (column <= row) in reading order, then the end, drawn below the
    bottom-left cell.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.right_action = np.random.default_rng(n).integers(0, 2, size=(n, n), dtype=np.int32)
        rows, columns = np.tril_indices(n)
        cells = np.stack([np.append(rows, n), np.append(columns, 0)], axis=1).astype(np.int32)
        name, observation = f"deep-sea-{n}", vector(n * n)
        self.spec = EnvironmentSpec(name, observation, Discrete(2), n, SUCCESS, len(cells), cells)

    def start(self, key: PRNGKeyArray) -> DeepSeaState:
        return DeepSeaState(jnp.int32(0), jnp.int32(0))

    def move(self, state: DeepSeaState, action: Int[Array, ""]) -> tuple[DeepSeaState, Array, Array]:
        """Falls by one row; the episode terminates after N steps."""
        right = action == jnp.asarray(self.right_action)[state.row, state.column]
        treasure = right & (state.column == self.n - 1)
        reward = treasure.astype(jnp.float32) - right.astype(jnp.float32) * (MOVE_COST / self.n)
        column = jnp.clip(state.column + jnp.where(right, 1, -1), 0, self.n - 1)
        return DeepSeaState(state.row + 1, column), reward, state.row + 1 == self.n

    def state_id(self, state: DeepSeaState) -> Int32[Array, ""]:
        """The number of the cell among those of the triangle."""
        ended = state.row == self.n
        return state.row * (state.row + 1) // 2 + jnp.where(ended, 0, state.column)

    def render(self, state: DeepSeaState) -> Picture:
        """Draws the reachable cells, darker with depth, the treasure in green; the lowest row is the end."""
        depths = np.arange(self.n + 1) / self.n
        water = [(round(205 - 150 * d), round(230 - 110 * d), round(250 - 60 * d)) for d in depths]
        reach = {(row, column): water[row] for row in range(self.n) for column in range(row + 1)}
        end = {(self.n, column): (222, 204, 166) for column in range(self.n)}
        walls = np.triu(np.ones((self.n + 1, self.n), bool), k=1)
        agent = int(state.row), int(state.column)
        return grid_picture(walls, agent, (self.n - 1, self.n - 1), reach | end)

    def observe(self, state: DeepSeaState, key: PRNGKeyArray) -> Float32[Array, " cells"]:
        cell = state.row * self.n + state.column  # in row N it is outside, so that one_hot is all zeros
        return jax.nn.one_hot(cell, self.n * self.n, dtype=jnp.float32)


CUES = 4


class RecallState(NamedTuple):
    """The cue of this episode, and the number of steps since it was shown."""

    cue: Int32[Array, ""]
    time: Int32[Array, ""]


class Recall(BuiltinEnvironment):
    """`recall-L`: one of 4 cues at the first step, L blank steps, then the signal to choose.

    The action after the signal gives 1 if it is the number of the cue, else 0, and ends the episode after L + 2 steps;
    other actions have no effect. The observation is the cue one-hot, then the signal: 5 numbers, all 0
    at a blank step and after the choice. Without memory the expected return is 1/4.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.spec = EnvironmentSpec(f"recall-{length}", vector(CUES + 1), Discrete(CUES), length + 2, SUCCESS)

    def start(self, key: PRNGKeyArray) -> RecallState:
        return RecallState(jnp.floor(jax.random.uniform(key) * CUES).astype(jnp.int32), jnp.int32(0))

    def move(self, state: RecallState, action: Int[Array, ""]) -> tuple[RecallState, Array, Array]:
        """Advances time; evaluates the choice at the last step."""
        chosen = state.time == self.length + 1
        reward = (chosen & (action == state.cue)).astype(jnp.float32)
        return state._replace(time=state.time + 1), reward, chosen

    def render(self, state: RecallState) -> Picture:
        """Draws the observation as bars (cues blue, signal orange), a dot under the cue, and a progress line."""
        picture, shown = canvas(240, 160), np.asarray(self.observe(state, jax.random.key(0)))
        for bar, value in enumerate(shown):
            left, colour = 20 + 42 * bar, ORANGE if bar == CUES else BLUE
            box(picture, (left, 20), (left + 32, 110), colour if value else FAINT)
        disc(picture, (36 + 42 * int(state.cue), 122), 4, INK)
        box(picture, (20, 140), (220, 146), FAINT)
        box(picture, (20, 140), (20 + 200 * min(int(state.time) / self.spec.horizon, 1.0), 146), INK)
        return picture

    def observe(self, state: RecallState, key: PRNGKeyArray) -> Float32[Array, "5"]:
        shown = jnp.where(state.time == 0, state.cue, -1)
        shown = jnp.where(state.time == self.length + 1, CUES, shown)
        return jax.nn.one_hot(shown, CUES + 1, dtype=jnp.float32)  # all zeros for -1
