"""Grid worlds: enumerable dynamics, exact transition matrices and fast batched sampling.

A world provides the tensor P[s, a, s'] for the exact decomposition, sampled transitions for learning, and
features of the state (coordinates, the 121-dimensional one-hot encoding of Figure 2; images are in
`derex.envs.drawing`).

Letters in shapes: n states, B environments, T steps.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Float32, Int, Int32, PRNGKeyArray, Shaped

from derex.envs.grid.maps import MOVES, Map, check_count, check_fraction
from derex.types import Transitions


class GridWorld:
    """A walk on the floor cells of a map with the moves up, right, down and left.

    A move into a wall or against a one-way door has no effect. With probability `slip` the chosen move is
    replaced by one drawn uniformly from all four.
    """

    n_actions = len(MOVES)

    def __init__(
        self,
        map: Map,
        slip: float | int = 0.0,
        start: int | np.integer | None = None,
        closed: Bool[np.ndarray, " n"] | None = None,
    ) -> None:
        """Builds the world.

        Args:
            map: the map, e.g. `FOUR_ROOMS`.
            slip: probability in [0, 1] that a move is replaced by a uniformly random one.
            start: start state; by default the map's ``S``, else its first floor cell.
            closed: states that cannot be entered. They keep their ids, so functions learnt while a room was
                closed can be evaluated at the room's states; see `close`.
        """
        self.map = map
        self.n_states = len(map.positions)
        """number of floor cells n; states are numbered in reading order"""
        check_fraction("slip", slip)
        self.slip = float(slip)
        self.start = map.start if start is None else int(start)
        if not 0 <= self.start < self.n_states:
            raise ValueError(f"start: expected a state id in [0, {self.n_states - 1}], got {self.start}.")
        self.closed = np.zeros(self.n_states, bool) if closed is None else closed.copy()
        if self.closed.shape != (self.n_states,):
            raise ValueError(f"closed: expected a mask of shape ({self.n_states},), got {self.closed.shape}.")
        if self.closed[self.start]:
            raise ValueError(f"closed: start state {self.start} cannot be closed. Choose another `start`.")
        self.positions: Int32[np.ndarray, "n 2"] = map.positions
        """(row, column) of every state"""
        self.rooms: Int32[np.ndarray, " n"] = map.rooms
        """the room of every state, -1 for doors (see `Map.rooms`)"""
        stay, ahead = np.arange(self.n_states, dtype=np.int32)[:, None], map.successors
        self.successors: Int32[np.ndarray, "n 4"] = np.where(self.closed[ahead], stay, ahead)
        """next state for each state and move, without slip"""
        inside = map.positions - map.positions.min(axis=0)
        height, width = (inside.max(axis=0) + 1).tolist()
        self.inside_shape: tuple[int, int] = (height, width)
        """of the bounding box of the floor cells"""
        self.inside_index: Int32[np.ndarray, " n"] = inside[:, 0] * np.int32(width) + inside[:, 1]
        """index of every state in that box, in reading order"""
        last = np.array([height, width]) - 1
        self._coordinates = ((2 * inside - last) / np.maximum(last, 1)).astype(np.float32)

    def __repr__(self) -> str:
        return f"GridWorld({self.map.name!r}, n_states={self.n_states}, slip={self.slip}, start={self.start})"

    def close(self, states: Bool[np.ndarray, " n"] | Int[np.ndarray, " m"]) -> "GridWorld":
        """Returns a copy in which `states` cannot be entered, e.g. ``world.close(world.rooms == 3)``."""
        closed = self.closed.copy()
        closed[states] = True
        return GridWorld(self.map, self.slip, self.start, closed)

    def transition_tensor(self) -> Float[np.ndarray, "n 4 n"]:
        """P[s, a, s'] = (1 - slip) 1{s' = succ(s, a)} + slip/4 Σ_b 1{s' = succ(s, b)} (Section 2)."""
        moved = np.zeros((self.n_states, self.n_actions, self.n_states))
        rows, moves = np.indices(self.successors.shape)
        moved[rows, moves, self.successors] = 1.0
        return (1.0 - self.slip) * moved + self.slip * moved.mean(axis=1, keepdims=True)

    def rollout(
        self,
        key: PRNGKeyArray,
        n_envs: int,
        horizon: int,
        policy: Float[Any, "n 4"] | None = None,
        *,
        starts: Int[Any, " {n_envs}"] | None = None,
    ) -> tuple[Int32[Array, "{n_envs} {horizon}+1"], Int32[Array, "{n_envs} {horizon}"]]:
        """Runs `n_envs` independent episodes of `horizon` steps in parallel.

        Args:
            key: a PRNG key, used here only.
            n_envs: number of episodes B.
            horizon: number of steps T per episode.
            policy: π[s, a], rows sum to one; None is the uniformly random policy.
            starts: first state of each episode; None is the world's start.

        Returns:
            States (B, T + 1) and chosen actions (B, T), before any slip.
        """
        check_count("n_envs", n_envs)
        check_count("horizon", horizon)
        cumulative = _cumulative_policy(policy, self.n_states, self.n_actions)
        first = jnp.asarray(np.full(n_envs, self.start) if starts is None else starts, dtype=jnp.int32)
        return _rollout(key, jnp.asarray(self.successors), cumulative, self.slip, first, horizon)

    def sample_transitions(
        self, key: PRNGKeyArray, n: int, horizon: int = 100, policy: Float[Any, "n 4"] | None = None
    ) -> Transitions:
        """Draws exactly `n` transitions (s, a, s'), none of which spans two episodes.

        If `horizon` does not divide `n`, one more episode is run and randomly chosen transitions are
        dropped: the expected frequencies are those of whole episodes for every `n` (Theorem 2).
        """
        check_count("n", n)
        check_count("horizon", horizon)
        n_envs = -(-n // horizon)
        rollout_key, drop_key = jax.random.split(key)
        states, actions = self.rollout(rollout_key, n_envs, horizon, policy)
        columns = (states[:, :-1].reshape(-1), actions.reshape(-1), states[:, 1:].reshape(-1))
        if n < n_envs * horizon:
            kept = jnp.sort(jax.random.permutation(drop_key, n_envs * horizon)[:n])
            columns = tuple(column[kept] for column in columns)
        return Transitions(*columns)

    def coordinates(self, states: Int[Any, "*batch"]) -> Float32[Any, "*batch 2"]:
        """Returns (row, column) of the states, with the floor's bounding box scaled to [-1, 1]²."""
        return take(self._coordinates, states)

    def one_hot(self, states: Int[Any, "*batch"]) -> Float32[Any, "*batch cells"]:
        """Returns one-hot encodings over the cells of the floor's bounding box: 121 in four rooms (Figure 2)."""
        xp = jnp if isinstance(states, Array) else np
        cells = xp.arange(self.inside_shape[0] * self.inside_shape[1])
        return (take(self.inside_index, states)[..., None] == cells).astype(xp.float32)


def take(table: Shaped[np.ndarray, "n *rest"], states: Int[Any, "*batch"]) -> Shaped[Any, "..."]:
    """Returns rows of a table: a NumPy array for NumPy ids, a JAX array (also under jit) for JAX ids."""
    return jnp.asarray(table)[states] if isinstance(states, Array) else table[np.asarray(states)]


@partial(jax.jit, static_argnames="horizon")
def _rollout(
    key: PRNGKeyArray,
    successors: Int32[Array, "n 4"],
    cumulative: Float32[Array, "n 3"],
    slip: Any,
    first: Int32[Array, " B"],
    horizon: int,
) -> tuple[Int32[Array, "B {horizon}+1"], Int32[Array, "B {horizon}"]]:
    def step(state: Array, key: Array) -> tuple[Array, tuple[Array, Array]]:
        choice, slipped, other = jax.random.uniform(key, (3, len(state)))
        action = jnp.sum(choice[:, None] >= cumulative[state], axis=1, dtype=jnp.int32)
        random_move = jnp.floor(other * successors.shape[1]).astype(jnp.int32)
        move = jnp.where(slipped < slip, random_move, action)
        next_state = successors[state, move]
        return next_state, (next_state, action)

    _, (states, actions) = jax.lax.scan(step, first, jax.random.split(key, horizon))
    return jnp.concatenate([first[None], states]).T, actions.T


def _cumulative_policy(policy: Any, n_states: int, n_actions: int) -> Float32[Array, "n 3"]:
    """Σ_{b <= a} π[s, b] for all actions but the last: inverse-transform sampling compares with these."""
    shape = n_states, n_actions
    policy = np.full(shape, 1.0 / n_actions) if policy is None else np.asarray(policy, dtype=np.float64)
    if policy.shape != shape:
        raise ValueError(f"policy: expected shape {shape}, one row for each state; got {policy.shape}.")
    sums = policy.sum(axis=1, keepdims=True)
    if not (np.all(policy >= 0) and np.allclose(sums, 1.0, atol=1e-5)):
        raise ValueError(
            "policy: every row must be non-negative and sum to one, got sums between "
            f"{sums.min():.4g} and {sums.max():.4g}. Normalise the rows."
        )
    cumulative = np.cumsum(policy / sums, axis=1)
    return jnp.asarray(cumulative[:, :-1], dtype=jnp.float32)
