"""Partially observed grid worlds (Appendix "Ablation Study for 4-Rooms POMDP Domain"), and their exact Bayes filter.

"With probability p the agent's marker (red dot) is completely hidden": the observation is an image of the world from
above, and when the dot is missing the state must be inferred from the history. p = 0 is full observability. The
paper's setting is

    HiddenAgent(GridWorld(FOUR_ROOMS), p).rollout(key, n_envs, horizon=250)

In this deterministic world with a single start the history determines the state for every p; a larger p only makes
memory harder. With `slip` or `random_start` the state is uncertain; `filter` computes its exact distribution: the
belief, a sufficient statistic of the history, so the ground truth for history representations.

Letters in shapes: n states, A actions, B episodes, T = horizon + 1 observations per episode.
"""

import numbers
from typing import Any, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Float32, Float64, Int32, PRNGKeyArray, UInt8

from derex.envs.drawing import frame_table
from derex.envs.grid.gridworld import GridWorld, take
from derex.envs.grid.maps import check_count, check_fraction, reachable
from derex.types import NO_ACTION, Indexed, Trajectories

HIDDEN = -1
"""id of a hidden state"""

_SUM_TOLERANCE = 1e-4  # allows for probabilities rounded to single precision


class Walk(NamedTuple):
    """B episodes with their true states: row b is s_0, …, s_{T-1}."""

    state: Int32[Array, "B T"]
    """the true state s_t"""
    hidden: Bool[Array, "B T"]
    """whether the dot is missing from o_t"""
    previous_action: Int32[Array, "B T"]
    """the chosen action a_{t-1}, before any slip; `NO_ACTION` at t = 0"""


class HiddenAgent:
    """A grid world observed from above; the agent's dot is missing with probability p at each step."""

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
        check_fraction("p", p)
        check_count("size", size)
        if not isinstance(random_start, bool | np.bool_):
            raise TypeError(f"random_start: expected True or False, got {random_start!r}.")
        self.world, self.p, self.size, self.random_start = world, float(p), size, random_start
        reached = reachable(world.successors, world.start)
        possible = reached if random_start else np.arange(world.n_states) == world.start
        self.prior: Float64[np.ndarray, " n"] = possible / possible.sum()
        """distribution of an episode's first state"""
        self.prior.flags.writeable = False
        self.frames: UInt8[np.ndarray, "n_and_1 size size 3"] = frame_table(world, size)
        """the frame of every state and, at index n, the frame without the agent; read-only"""

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
        check_count("n_envs", n_envs)
        check_count("horizon", horizon)
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
        """Pr(s_t | o_0, a_0, …, o_t) at every step of a `rollout` with the same policy; see `bayes_filter`."""
        seen = jnp.where(walk.hidden, HIDDEN, walk.state)
        tensor = self.world.transition_tensor()
        return bayes_filter(tensor, self.prior, seen, walk.previous_action, policy=policy)

    def _frame_ids(self, walk: Walk) -> Int32[Array, "B T"]:
        return jnp.where(walk.hidden, self.world.n_states, walk.state)


def bayes_filter(
    transitions: Any, prior: Any, seen: Any, previous_action: Any, first: Any = None, *, policy: Any = None
) -> Float32[Array, "B T n"]:
    """b_t(s) = Pr(s_t = s | o_0, a_0, o_1, …, a_{t-1}, o_t), computed exactly.

    With b_0(s) ∝ O(o_0|s) prior(s) the recursion is (cf. Appendix "Ablation Study for 4-Rooms POMDP Domain")

        b_t(s') ∝ O(o_t|s') Σ_s P(s'|s, a_{t-1}) π(a_{t-1}|s) b_{t-1}(s).

    An observation shows or hides the state, with a probability that does not depend on the state. So O(o|s') is
    proportional to 1{s' = seen} if the state is seen, which makes b_t one-hot, and constant if it is hidden.

    The factor π is the evidence of the chosen action about the state. It is constant, and can be omitted, when actions
    do not depend on the hidden state: when they are random, or chosen from the history of observations. It must be
    given when the policy reads the true state, as `GridWorld.rollout` with a `policy` does.

    Events of probability 0 do not break the filter: a state that is seen gets probability 1 even if the prior or the
    transitions exclude it, and an action that `policy` excludes in every possible state leaves the belief unchanged.

    Args:
        transitions: P[s, a, s'] = P(s'|s, a), shape (n, A, n).
        prior: distribution of an episode's first state, shape (n,).
        seen: the state at (b, t), or `HIDDEN`; shape (B, T).
        previous_action: a_{t-1}, shape (B, T); ignored at the first step of an episode.
        first: True at the first step of an episode, where the belief is reset to the prior; shape (B, T). Column 0
            always counts as True. None: one episode per row.
        policy: π[s, a], shape (n, A), if actions depend on the true state; otherwise None.

    Returns:
        The beliefs, shape (B, T, n); each sums to one. Computing them needs B n (A + 1) numbers of extra memory.
    """
    transitions, seen = _read_array("transitions", transitions, float), _read_array("seen", seen, int)
    if len(transitions.shape) != 3 or transitions.shape[0] != transitions.shape[2]:
        raise ValueError(f"transitions: expected shape (states, actions, states), got {transitions.shape}.")
    if len(seen.shape) != 2:
        fix = "For one trajectory: seen[None]."
        raise ValueError(f"seen: expected shape (trajectories, steps), got {seen.shape}. {fix}")
    if not seen.shape[1]:
        raise ValueError(f"seen: expected at least one step, got shape {seen.shape}.")
    n, n_actions = transitions.shape[:2]
    prior = _read_array("prior", prior, float, (n,))
    previous_action = _read_array("previous_action", previous_action, int, seen.shape)
    first = np.zeros(seen.shape, bool) if first is None else _read_array("first", first, bool, seen.shape)
    policy = None if policy is None else _read_array("policy", policy, float, (n, n_actions))
    tables = {"transitions": transitions, "prior": prior, "policy": policy}
    for name, table in tables.items():
        _check_distributions(name, table)
    _check_ids(seen, previous_action, first, n, n_actions)
    floats = (None if table is None else jnp.asarray(table, jnp.float32) for table in tables.values())
    ids = (jnp.asarray(each, jnp.int32) for each in (seen, previous_action))
    return _filter(*floats, *ids, jnp.asarray(first).at[:, 0].set(True))


@jax.jit
def _filter(
    transitions: Float32[Array, "n A n"],
    prior: Float32[Array, " n"],
    policy: Float32[Array, "n A"] | None,
    seen: Int32[Array, "B T"],
    previous_action: Int32[Array, "B T"],
    first: Bool[Array, "B T"],
) -> Float32[Array, "B T n"]:
    def step(belief: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        seen, action, first = now
        if policy is not None:  # π(a|s) b(s) / Σ_s π(a|s) b(s); the belief itself where the sum is 0
            weighted = policy.T[action] * belief
            total = weighted.sum(axis=1, keepdims=True)
            belief = jnp.where(total > 0, weighted / jnp.where(total > 0, total, 1.0), belief)
        # Σ_s P(s'|s, a) b(s), as one product for all actions, so that P(·|·, a) is not copied for each of the B rows.
        # HIGHEST: the default precision is lower on accelerators.
        moved = jnp.einsum("bs,sat->bat", belief, transitions, precision=jax.lax.Precision.HIGHEST)
        moved = jnp.take_along_axis(moved, jnp.maximum(action, 0)[:, None, None], axis=1)[:, 0]
        predicted = jnp.where(first[:, None], prior, moved)
        # keeps rounding errors from accumulating
        predicted = predicted / predicted.sum(axis=1, keepdims=True)
        belief = jnp.where(seen[:, None] == HIDDEN, predicted, jax.nn.one_hot(seen, len(prior)))
        return belief, belief

    start = jnp.broadcast_to(prior, (len(seen), len(prior)))
    _, beliefs = jax.lax.scan(step, start, (seen.T, previous_action.T, first.T))
    return beliefs.swapaxes(0, 1)


def _read_array(name: str, values: Any, kind: type, shape: tuple[int, ...] | None = None) -> Any:
    """Converts values other than JAX arrays to NumPy; checks the kind of their dtype and, if given, their shape."""
    expected, kinds = {float: ("numbers", "biuf"), int: ("integers", "iu"), bool: ("booleans", "b")}[kind]
    array = values if isinstance(values, Array) else np.asarray(values)
    if np.dtype(array.dtype).kind not in kinds:
        fix = f"To convert: np.asarray({name}).astype({kind.__name__})."
        raise TypeError(f"{name}: expected {expected}, got {array.dtype}. {fix}")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}.")
    return array


def _check_distributions(name: str, table: Any) -> None:
    if table is None or isinstance(table, jax.core.Tracer):  # whose values cannot be checked
        return
    table = np.asarray(table)
    sums = table.sum(axis=-1)
    if not (np.all(table >= 0) and np.all(np.abs(sums - 1.0) < _SUM_TOLERANCE)):
        raise ValueError(
            f"{name}: expected probabilities that sum to one over the last axis; got a least entry of "
            f"{table.min():.4g} and sums between {sums.min():.4g} and {sums.max():.4g}. Normalise them."
        )


def _check_ids(seen: Any, previous_action: Any, first: Any, n: int, n_actions: int) -> None:
    if any(isinstance(array, jax.core.Tracer) for array in (seen, previous_action, first)):
        return
    seen, actions = np.asarray(seen), np.where(np.asarray(first), 0, np.asarray(previous_action))[:, 1:]
    if np.any((seen < HIDDEN) | (seen >= n)):
        raise ValueError(
            f"seen: expected state ids in [0, {n - 1}], or {HIDDEN} where hidden; "
            f"got values between {seen.min()} and {seen.max()}."
        )
    if np.any((actions < 0) | (actions >= n_actions)):
        raise ValueError(
            f"previous_action: expected actions in [0, {n_actions - 1}] except where an episode begins; got values "
            f"between {actions.min()} and {actions.max()}. Mark every step without a previous action in `first`."
        )
