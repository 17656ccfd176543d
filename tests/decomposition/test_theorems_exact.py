"""Theorems 1, 2 and 3 of the paper as tests, and the places where their conditions matter."""

from itertools import product

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from derex.decomposition import exact
from derex.decomposition.scores import bonus_rank_correlation
from derex.envs import FOUR_ROOMS, GridWorld

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**32 - 1)


def reversible_chain(seed, n):
    """A random walk on a weighted graph: its eigenvalues are real, and distinct almost surely."""
    weights = np.random.default_rng(seed).exponential(size=(n, n))
    weights = weights + weights.T
    return weights / weights.sum(axis=1, keepdims=True)


def ordered_eigenvectors(matrix):
    """Unit eigenvectors by descending eigenvalue, with deterministic signs; and the eigenvalues."""
    values, vectors = np.linalg.eig(matrix)
    order = np.argsort(-values.real)
    vectors = vectors[:, order].real
    signs = np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(len(matrix))])
    return vectors * signs, values.real[order]


def four_rooms(horizon=100):
    world = GridWorld(FOUR_ROOMS)
    P = exact.policy_transition_matrix(world.transition_tensor())
    d = exact.visitation(P, world.start, horizon)
    return P, d, exact.joint_matrix(d, P)


# ------------------------------------------------------------------------------- Theorem 1


@PROPERTY
@given(SEEDS, st.integers(2, 8), st.floats(0.1, 0.99))
def test_theorem_1_top_k_eigenvectors_are_shared_for_every_k(seed, n, gamma):
    """One ordered list of eigenvectors for both matrices is the claim for every k at once."""
    P = reversible_chain(seed, n)
    of_P, values = ordered_eigenvectors(P)
    assume(np.min(-np.diff(values)) > 1e-3)
    of_SR, successor_values = ordered_eigenvectors(exact.successor_representation(P, gamma))
    np.testing.assert_allclose(of_SR, of_P, atol=1e-6)
    np.testing.assert_allclose(successor_values, 1 / (1 - gamma * values), rtol=1e-9)


def test_theorem_1_orders_by_value_not_by_magnitude():
    """λ = (1, 0, -0.9): by magnitude -0.9 would come second in P, but it is last in (I - γP)⁻¹."""
    P = np.array([[0.025, 0.95, 0.025], [0.475, 0.05, 0.475], [0.025, 0.95, 0.025]])
    vectors, values = ordered_eigenvectors(P)
    np.testing.assert_allclose(values, [1.0, 0.0, -0.9], atol=1e-12)
    SR = exact.successor_representation(P, 0.9)
    by_size = np.argsort(-np.abs([v @ SR @ v / (v @ v) for v in vectors.T]))
    np.testing.assert_array_equal(by_size, [0, 1, 2])


# ------------------------------------------------------------------------------- Theorem 2


def test_theorem_2_unbiased_by_enumeration_of_independent_pairs():
    """E[A_n] over every data set of n = 3 pairs from a three-state chain is D P to rounding."""
    P = np.random.default_rng(0).dirichlet(np.ones(3), size=3)
    joint = exact.joint_matrix(np.array([0.6, 0.3, 0.1]), P)
    pairs = list(np.ndindex(3, 3))
    expectation = np.zeros((3, 3))
    for data in product(pairs, repeat=3):
        x, y = np.array(data).T
        expectation += np.prod([joint[pair] for pair in data]) * exact.empirical_joint(x, y, 3, 3)
    np.testing.assert_allclose(expectation, joint, atol=1e-14)


def test_theorem_2_unbiased_by_enumeration_of_episodes():
    """Pairs of one episode are dependent, and still E[A_n] = D P with d the episode's mean visitation."""
    P, horizon = np.random.default_rng(1).dirichlet(np.ones(3), size=3), 5
    expectation = np.zeros((3, 3))
    for tail in product(range(3), repeat=horizon):
        states = np.array((0, *tail))
        probability = np.prod(P[states[:-1], states[1:]])
        expectation += probability * exact.empirical_joint(states[:-1], states[1:], 3, 3)
    joint = exact.joint_matrix(exact.visitation(P, 0, horizon), P)
    np.testing.assert_allclose(expectation, joint, atol=1e-14)


def test_theorem_2_consistent_at_the_rate_of_the_square_root():
    """‖A_n - D P‖ falls like n^{-1/2} on four rooms: a hundredfold sample, a tenth of the error."""
    _, _, joint = four_rooms()
    world = GridWorld(FOUR_ROOMS)
    sizes = np.array([2_000, 20_000, 200_000])
    errors = []
    for row, n in enumerate(sizes):
        squares = []
        for seed in range(6):
            sample = world.sample_transitions(jax.random.key(100 * row + seed), int(n))
            A_n = exact.empirical_joint(sample.state, sample.next_state, 104, 104)
            squares.append(np.sum((A_n - joint) ** 2))
        errors.append(np.sqrt(np.mean(squares)))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)


# ------------------------------------------------------------------------------- Theorem 3


@PROPERTY
@given(SEEDS, st.integers(2, 8))
def test_theorem_3_counting_norm_at_full_rank(seed, n):
    """‖f_U(x_s)‖²_{Λ⁻¹} = α_s / d(s)² with α_s = (P Pᵀ)⁻¹_ss, for invertible P and D."""
    rng = np.random.default_rng(seed)
    P, d = rng.dirichlet(np.ones(n), size=n), rng.dirichlet(np.ones(n))
    assume(np.linalg.cond(P) < 1e4)
    assume(d.min() > 1e-3)
    bonus = exact.decompose(exact.joint_matrix(d, P), geometry="counting").bonus()
    alpha = np.diag(np.linalg.inv(P @ P.T))
    np.testing.assert_allclose(bonus**2, alpha / d**2, rtol=1e-6)


def test_theorem_3_does_not_hold_for_a_truncated_decomposition():
    rng = np.random.default_rng(0)
    P, d = rng.dirichlet(np.ones(8), size=8), rng.dirichlet(np.ones(8))
    bonus = exact.decompose(exact.joint_matrix(d, P), k=4, geometry="counting").bonus()
    assert np.max(np.abs(bonus**2 * d**2 / np.diag(np.linalg.inv(P @ P.T)) - 1)) > 0.5


def test_theorem_3_condition_fails_in_four_rooms():
    P, d, joint = four_rooms()
    assert np.linalg.matrix_rank(P) < 104
    assert d.min() > 0
    assert exact.decompose(joint, geometry="counting").rank < 104


@pytest.mark.parametrize(
    ("k", "counting", "visitation", "unweighted"),
    [
        (2, -0.99, 0.97, 0.97),
        (3, -0.99, 0.96, 0.96),
        (8, -0.98, 0.95, 0.95),
        (16, -0.97, 0.96, 0.97),
        (32, -0.78, 0.97, 0.98),
        (64, 0.00, 0.97, 0.99),
    ],
)
def test_truncated_counting_bonus_has_the_wrong_sign(k, counting, visitation, unweighted):
    """Rank correlation of the bonus with 1/d: four rooms, random walk from a corner, horizon 100."""
    _, d, joint = four_rooms()
    found = exact.decompose(joint, k)
    counted = bonus_rank_correlation(exact.decompose(joint, k, "counting").bonus(), d)
    assert counted == pytest.approx(counting, abs=0.07)
    assert bonus_rank_correlation(found.bonus(), d) == pytest.approx(visitation, abs=0.015)
    assert bonus_rank_correlation(found.bonus(weighted=False), d) == pytest.approx(unweighted, abs=0.015)


@pytest.mark.parametrize(("horizon", "expected"), [(100, 0.96), (250, 0.86), (500, 0.66), (1000, 0.37)])
def test_flat_visitation_lowers_the_rank_correlation_of_the_exact_bonus(horizon, expected):
    _, d, joint = four_rooms(horizon)
    assert bonus_rank_correlation(exact.decompose(joint, 16).bonus(), d) == pytest.approx(expected, abs=0.01)
