"""The exact decomposition of states and tests: what f of histories converges to where histories tell the state.

With a known start and moves that never fail a history determines its state s_t, so that f(h_t) = φ(s_t), and g is the
conditional expectation g(τ) = E[φ(s)|τ] up to scale. The operator behind it is known up to an average over tests:

    (M Mᵀ)_{s s'} = E_τ[ P(s|τ) P(s'|τ) ] / √(d(s) d(s')),

where P(s|τ) ∝ d(s) P(τ|s) comes from an exact backward recursion over the test. Its eigenvalues are σ_i².

Shapes: B trajectories, T steps, n states, A actions, k features.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from derex.envs import HiddenAgent
from derex.envs.hidden import Walk


class TestDecomposition(NamedTuple):
    """Singular values and functions of states and their tests, the constant mode left out."""

    __test__ = False  # not for pytest

    singular_values: Float[np.ndarray, " m"]
    left: Float[np.ndarray, "n m"]  # φ_i(s), unit variance under d; 0 where never visited
    d: Float[np.ndarray, " n"]


def decompose_tests(
    env: HiddenAgent, walk: Walk, longest: int, actions: bool = True, seed: int = 0
) -> TestDecomposition:
    """All singular values for tests of 1 ≤ L ≤ `longest` steps, averaged over the tests of a walk.

    Args:
        env: the world.
        walk: trajectories of the uniform random policy.
        longest: L_max.
        actions: whether tests hold their actions.
        seed: of the tests' ends.
    """
    state = np.asarray(walk.state)
    n, T = env.world.n_states, state.shape[1]
    if longest >= T:
        raise ValueError(f"longest: expected less than the {T} steps of the walk, got {longest}.")
    counted = T - longest
    prior = np.bincount(state[:, :counted].ravel(), minlength=n) / state[:, :counted].size
    total = np.zeros((n, n))
    for t, likelihood in _likelihoods(env, walk, longest, actions, np.random.default_rng(seed)):
        if t < counted:
            posterior = likelihood * prior
            posterior /= posterior.sum(axis=1, keepdims=True)
            total += posterior.T @ posterior
    total /= total.sum()
    d = total.sum(axis=1)
    seen = d > 0
    root = np.sqrt(d[seen])
    values, vectors = np.linalg.eigh(total[np.ix_(seen, seen)] / np.outer(root, root) - np.outer(root, root))
    order = np.argsort(-values)[: int(seen.sum()) - 1]
    left = np.zeros((n, len(order)))
    left[seen] = vectors[:, order] / root[:, None]
    return TestDecomposition(np.sqrt(np.maximum(values[order], 0.0)), left, d)


def _likelihoods(env: HiddenAgent, walk: Walk, longest: int, actions: bool, rng: np.random.Generator):
    """P(τ_t | s_t = s) up to a factor, for t = T - 2, …, 0: ℓ_t(s) = Σ_s' P(s'|s, a_t) O(o_{t+1}|s') ℓ_{t+1}(s')."""
    state, hidden, previous = (np.asarray(part) for part in (walk.state, walk.hidden, walk.previous_action))
    B, T = state.shape
    moves = env.world.transition_tensor()  # (n, A, n)
    phase = rng.integers(0, longest, B)
    later = np.ones((B, env.world.n_states))
    for t in range(T - 2, -1, -1):
        ends: Bool[np.ndarray, " B"] = (t + 1 - phase) % longest == 0
        later = np.where(ends[:, None], 1.0, later) * _emission(
            state[:, t + 1], hidden[:, t + 1], later.shape[1]
        )
        by_action = np.einsum("bm,nam->ban", later, moves, optimize=True)
        later = by_action[np.arange(B), previous[:, t + 1]] if actions else by_action.mean(axis=1)
        later = later / later.max(axis=1, keepdims=True)
        yield t, later


def _emission(state: np.ndarray, hidden: np.ndarray, n: int) -> Float[np.ndarray, "B n"]:
    return np.where(hidden[:, None], 1.0, state[:, None] == np.arange(n)).astype(np.float64)
