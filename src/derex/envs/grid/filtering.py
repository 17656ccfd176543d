"""Exact Bayes filter for states that are either observed or hidden.

The belief is a sufficient statistic of the history, so it is the ground truth for history representations.

Letters in shapes: n states, A actions, B trajectories side by side, T steps.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32

HIDDEN = -1
"""id of a hidden state"""

_SUM_TOLERANCE = 1e-4  # allows for probabilities rounded to single precision


def bayes_filter(
    transitions: Any,
    prior: Any,
    seen: Any,
    previous_action: Any,
    first: Any = None,
    *,
    policy: Any = None,
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
    transitions, prior = _array("transitions", transitions, "biuf"), _array("prior", prior, "biuf")
    policy = None if policy is None else _array("policy", policy, "biuf")
    seen, previous_action = _array("seen", seen, "iu"), _array("previous_action", previous_action, "iu")
    first = np.zeros(seen.shape, dtype=bool) if first is None else _array("first", first, "b")
    _check_shapes(transitions, prior, seen, previous_action, first, policy)
    for name, table in (("transitions", transitions), ("prior", prior), ("policy", policy)):
        _check_distributions(name, table)
    _check_ids(seen, previous_action, first, *transitions.shape[:2])
    return _filter(
        jnp.asarray(transitions, jnp.float32),
        jnp.asarray(prior, jnp.float32),
        None if policy is None else jnp.asarray(policy, jnp.float32),
        jnp.asarray(seen, jnp.int32),
        jnp.asarray(previous_action, jnp.int32),
        jnp.asarray(first).at[:, 0].set(True),
    )


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
        if policy is not None:
            belief = _given_action(belief, action, policy)
        predicted = jnp.where(first[:, None], prior, _predicted(belief, action, transitions))
        predicted = predicted / predicted.sum(
            axis=1, keepdims=True
        )  # keeps rounding errors from accumulating
        belief = jnp.where(seen[:, None] == HIDDEN, predicted, jax.nn.one_hot(seen, len(prior)))
        return belief, belief

    start = jnp.broadcast_to(prior, (len(seen), len(prior)))
    _, beliefs = jax.lax.scan(step, start, (seen.T, previous_action.T, first.T))
    return beliefs.swapaxes(0, 1)


def _given_action(
    belief: Float32[Array, "B n"], action: Int32[Array, " B"], policy: Float32[Array, "n A"]
) -> Float32[Array, "B n"]:
    """π(a|s) b(s) / Σ_s π(a|s) b(s); the belief itself where the sum is 0."""
    weighted = policy.T[action] * belief
    total = weighted.sum(axis=1, keepdims=True)
    return jnp.where(total > 0, weighted / jnp.where(total > 0, total, 1.0), belief)


def _predicted(
    belief: Float32[Array, "B n"], action: Int32[Array, " B"], transitions: Float32[Array, "n A n"]
) -> Float32[Array, "B n"]:
    """Σ_s P(s'|s, a) b(s), as one product for all actions, so that P(·|·, a) is not copied for each of the B rows."""
    # HIGHEST: the default precision is lower on accelerators
    moved = jnp.einsum("bs,sat->bat", belief, transitions, precision=jax.lax.Precision.HIGHEST)
    return jnp.take_along_axis(moved, jnp.maximum(action, 0)[:, None, None], axis=1)[:, 0]


def _array(name: str, values: Any, kinds: str) -> Any:
    """Converts values other than JAX arrays to NumPy and checks the kind of their dtype."""
    array = values if isinstance(values, Array) else np.asarray(values)
    if np.dtype(array.dtype).kind not in kinds:
        expected = {"iu": "integers", "b": "booleans"}.get(kinds, "numbers")
        to = {"iu": "int", "b": "bool"}.get(kinds, "float")
        raise TypeError(
            f"{name}: expected {expected}, got {array.dtype}. To convert: np.asarray({name}).astype({to})."
        )
    return array


def _check_shapes(
    transitions: Any, prior: Any, seen: Any, previous_action: Any, first: Any, policy: Any
) -> None:
    if len(transitions.shape) != 3 or transitions.shape[0] != transitions.shape[2]:
        raise ValueError(f"transitions: expected shape (states, actions, states), got {transitions.shape}.")
    if len(seen.shape) != 2:
        raise ValueError(
            f"seen: expected shape (trajectories, steps), got {seen.shape}. For one trajectory: seen[None]."
        )
    if not seen.shape[1]:
        raise ValueError(f"seen: expected at least one step, got shape {seen.shape}.")
    n, n_actions = transitions.shape[:2]
    expected = (
        ("prior", prior, (n,)),
        ("previous_action", previous_action, seen.shape),
        ("first", first, seen.shape),
        ("policy", policy, (n, n_actions)),
    )
    for name, array, shape in expected:
        if array is not None and array.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {array.shape}.")


def _is_traced(*arrays: Any) -> bool:
    """Returns whether any array is a tracer, whose values cannot be checked."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def _check_distributions(name: str, table: Any) -> None:
    if table is None or _is_traced(table):
        return
    table = np.asarray(table)
    sums = table.sum(axis=-1)
    if not (np.all(table >= 0) and np.all(np.abs(sums - 1.0) < _SUM_TOLERANCE)):
        raise ValueError(
            f"{name}: expected probabilities that sum to one over the last axis; got a least entry of "
            f"{table.min():.4g} and sums between {sums.min():.4g} and {sums.max():.4g}. Normalise them."
        )


def _check_ids(seen: Any, previous_action: Any, first: Any, n: int, n_actions: int) -> None:
    if _is_traced(seen, previous_action, first):
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
