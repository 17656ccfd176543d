"""Partially observed grid worlds (Appendix "Ablation Study for 4-Rooms POMDP Domain"), on any map.

"With probability p the agent's marker (red dot) is completely hidden": the observation is an image of the world from
above, and when the dot is missing the state must be inferred from the history. p = 0 is full observability. The
paper's setting is

    HiddenAgent(GridWorld(FOUR_ROOMS), p).rollout(key, n_envs, horizon=250)

In this deterministic world with a single start the history determines the state for every p; a larger p only makes
memory harder. With `slip` or `random_start` the state is uncertain; `filter` computes its exact distribution.

Letters in shapes: n states, B episodes, T = horizon + 1 observations per episode.
"""

import numbers
from typing import Any, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Float32, Float64, Int32, PRNGKeyArray, UInt8

from derex.envs.drawing import frame_table
from derex.envs.grid.filtering import HIDDEN, bayes_filter
from derex.envs.grid.gridworld import GridWorld, take
from derex.envs.grid.maps import reachable
from derex.types import NO_ACTION, Indexed, Trajectories


class Walk(NamedTuple):
    """B episodes with their true states: row b is s_0, …, s_{T-1}."""

    state: Int32[Array, "B T"]
    """the true state s_t"""
    hidden: Bool[Array, "B T"]
    """whether the dot is missing from o_t"""
    previous_action: Int32[Array, "B T"]
    """the chosen action a_{t-1}, before any slip; `NO_ACTION` at t = 0"""


class HiddenAgent:
    """A grid world observed from above; the agent's dot is missing with probability p at each step.

    Attributes:
        world: the grid world.
        p: the probability that the dot is missing.
        size: side of the frames in pixels.
        random_start: whether episodes start in a random state reachable from the world's start, or always there.
        prior: distribution of an episode's first state.
        frames: the frame of every state and, at index n, the frame without the agent; read-only.
    """

    @no_type_check  # wrong types are reported below
    def __init__(self, world: GridWorld, p: float | int, size: int = 30, random_start: bool = False) -> None:
        """Builds the environment.

        Args:
            world: the world, e.g. `GridWorld(FOUR_ROOMS)`.
            p: probability in [0, 1] that the agent is hidden.
            size: side of the frames in pixels, at least as many as the map has rows and columns.
            random_start: whether to draw the first state uniformly from the open states reachable from the world's
                start; the agent observes it only if it is not hidden.
        """
        if not isinstance(world, GridWorld):
            raise TypeError(
                f"world: expected a GridWorld, got {type(world).__name__}. From a map: GridWorld(FOUR_ROOMS)."
            )
        if isinstance(p, bool) or not isinstance(p, numbers.Real):
            raise TypeError(f"p: expected a number, got {p!r} of type {type(p).__name__}.")
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p: a probability in [0, 1] was expected, got {p}.")
        _check_integer("size", size)
        if not isinstance(random_start, bool | np.bool_):
            raise TypeError(f"random_start: expected True or False, got {random_start!r}.")
        self.world = world
        self.p = float(p)
        self.size = size
        self.random_start = random_start
        self.prior: Float64[np.ndarray, " n"] = _first_states(world, random_start)
        self.frames: UInt8[np.ndarray, "n_and_1 size size 3"] = frame_table(world, size)

    def __repr__(self) -> str:
        return f"HiddenAgent({self.world!r}, p={self.p}, size={self.size}, random_start={self.random_start})"

    @no_type_check
    def rollout(
        self, key: PRNGKeyArray, n_envs: int, horizon: int, policy: Float[Any, "n 4"] | None = None
    ) -> Walk:
        """Runs `n_envs` independent episodes of `horizon` steps, i.e. `horizon + 1` observations each.

        The same key gives the same states for every p, and a larger p hides a superset of the steps.

        Args:
            key: a PRNG key, used here only.
            n_envs: number of episodes B.
            horizon: number of steps; the paper's is 250.
            policy: π[s, a], rows sum to one; it reads the *true* state, so pass it to `filter` too. None is the
                uniformly random policy, as in the paper.
        """
        _check_integer("n_envs", n_envs)
        _check_integer("horizon", horizon)
        start_key, walk_key, hide_key = jax.random.split(key, 3)
        starts = None
        if self.random_start:
            possible = jnp.asarray(np.flatnonzero(self.prior), jnp.int32)
            starts = possible[jax.random.randint(start_key, (n_envs,), 0, len(possible))]
        state, action = self.world.rollout(walk_key, n_envs, horizon, policy, starts=starts)
        hidden = jax.random.uniform(hide_key, state.shape) < self.p
        no_action = jnp.full((n_envs, 1), NO_ACTION, jnp.int32)
        return Walk(state, hidden, jnp.concatenate([no_action, action], axis=1))

    def trajectories(self, walk: Walk) -> Trajectories:
        """Returns the agent's observations and actions, one episode per row; each distinct frame is stored once."""
        first = jnp.zeros_like(walk.hidden).at[:, 0].set(True)
        observation = Indexed(values=jnp.asarray(self.frames), index=self._frame_ids(walk))
        return Trajectories(observation, walk.previous_action, first, jnp.ones_like(first))

    def images(self, walk: Walk) -> UInt8[Array, "B T {self.size} {self.size} 3"]:
        """Returns the observations as images; `trajectories` holds the same in a fraction of the memory."""
        return take(self.frames, self._frame_ids(walk))

    def filter(self, walk: Walk, policy: Float[Any, "n 4"] | None = None) -> Float32[Array, "B T n"]:
        """Pr(s_t | o_0, a_0, …, o_t) at every step; see `bayes_filter`.

        Args:
            walk: from `rollout`.
            policy: the policy given to `rollout`.
        """
        seen = jnp.where(walk.hidden, HIDDEN, walk.state)
        tensor = self.world.transition_tensor()
        return bayes_filter(tensor, self.prior, seen, walk.previous_action, policy=policy)

    def _frame_ids(self, walk: Walk) -> Int32[Array, "B T"]:
        return jnp.where(walk.hidden, self.world.n_states, walk.state)


def _check_integer(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: expected an integer, got {value!r} of type {type(value).__name__}.")
    if value < 1:
        raise ValueError(f"{name}: expected at least 1, got {value}.")


def _first_states(world: GridWorld, random_start: bool) -> Float64[np.ndarray, " n"]:
    """Returns the uniform distribution over the states reachable from the start, or a point mass on it."""
    possible = (
        reachable(world.successors, world.start) if random_start else np.arange(world.n_states) == world.start
    )
    prior = possible / possible.sum()
    prior.flags.writeable = False
    return prior
