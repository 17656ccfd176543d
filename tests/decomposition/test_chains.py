"""Matrices of a chain, each against numbers worked out by hand or by brute force."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from derex.decomposition import exact
from derex.envs import FOUR_ROOMS, GridWorld

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**32 - 1)
FLIP = np.array([[0.9, 0.1], [0.3, 0.7]])


def random_chain(seed, n):
    return np.random.default_rng(seed).dirichlet(np.ones(n), size=n)


def test_policy_transition_matrix_mixes_actions():
    P_sas = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [1.0, 0.0]]])
    np.testing.assert_allclose(exact.policy_transition_matrix(P_sas), [[0.5, 0.5], [0.75, 0.25]])
    policy = np.array([[0.2, 0.8], [1.0, 0.0]])
    np.testing.assert_allclose(exact.policy_transition_matrix(P_sas, policy), [[0.2, 0.8], [0.5, 0.5]])


def test_state_action_matrix_orders_rows_by_state_then_action():
    P_sas = GridWorld(FOUR_ROOMS).transition_tensor()
    rows = exact.state_action_matrix(P_sas)
    assert rows.shape == (416, 104)
    np.testing.assert_array_equal(rows[4 * 17 + 2], P_sas[17, 2])


def test_visitation_by_hand():
    """From state 0: d_0 = (1, 0), d_1 = (0.9, 0.1), d_2 = (0.84, 0.16)."""
    np.testing.assert_allclose(exact.visitation(FLIP, 0, 1), [1.0, 0.0])
    expected = [(1 + 0.9 + 0.84) / 3, (0 + 0.1 + 0.16) / 3]
    np.testing.assert_allclose(exact.visitation(FLIP, 0, 3), expected)
    np.testing.assert_allclose(exact.visitation(sp.csr_array(FLIP), np.array([1.0, 0.0]), 3), expected)


def test_visitation_matches_sampled_frequencies():
    world = GridWorld(FOUR_ROOMS, slip=0.2)
    d = exact.visitation(exact.policy_transition_matrix(world.transition_tensor()), world.start, 100)
    sample = world.sample_transitions(jax.random.key(0), 400_000)
    frequency = np.bincount(np.asarray(sample.state), minlength=104) / 400_000
    assert 0.5 * np.abs(frequency - d).sum() < 0.02


@PROPERTY
@given(SEEDS, st.integers(2, 8))
def test_stationary_distribution_is_kept_by_the_chain(seed, n):
    P = random_chain(seed, n)
    d = exact.stationary_distribution(P)
    np.testing.assert_allclose(d @ P, d, atol=1e-10)
    assert d.sum() == pytest.approx(1.0)
    assert np.all(d >= 0)


def test_stationary_distribution_of_a_symmetric_world_is_flat():
    P = exact.policy_transition_matrix(GridWorld(FOUR_ROOMS).transition_tensor())
    np.testing.assert_allclose(exact.stationary_distribution(P), 1 / 104, rtol=1e-9)


def test_stationary_distribution_needs_one_recurrent_class():
    with pytest.raises(ValueError, match="P_pi: the chain has 2 recurrent classes"):
        exact.stationary_distribution(np.eye(2))
    np.testing.assert_allclose(
        exact.stationary_distribution(np.array([[0.5, 0.5], [0, 1]])), [0, 1], atol=1e-12
    )


def test_joint_matrix_has_the_right_marginals():
    d = np.array([0.25, 0.75])
    joint = exact.joint_matrix(d, FLIP)
    np.testing.assert_allclose(joint, [[0.225, 0.025], [0.225, 0.525]])
    np.testing.assert_allclose(exact.joint_matrix(d, sp.csr_array(FLIP)).toarray(), joint)


@pytest.mark.parametrize("sparse", [False, True])
def test_empirical_joint_counts_pairs(sparse):
    A_n = exact.empirical_joint(np.array([0, 0, 2, 0]), np.array([1, 1, 0, 3]), 3, 5, sparse)
    assert sp.issparse(A_n) == sparse
    expected = np.zeros((3, 5))
    expected[0, 1], expected[2, 0], expected[0, 3] = 0.5, 0.25, 0.25
    np.testing.assert_allclose(A_n.toarray() if sparse else A_n, expected)


def test_empirical_joint_takes_jax_ids_and_guesses_sizes():
    A_n = exact.empirical_joint(jax.numpy.array([0, 1]), jax.numpy.array([2, 0]))
    assert A_n.shape == (2, 3)
    assert A_n.sum() == pytest.approx(1.0)


def test_successor_representation_is_the_discounted_sum_of_powers():
    total = sum(0.8**t * np.linalg.matrix_power(FLIP, t) for t in range(200))
    np.testing.assert_allclose(exact.successor_representation(FLIP, 0.8), total, rtol=1e-12)


@PROPERTY
@given(SEEDS, st.integers(3, 8))
def test_laplacian_has_the_graph_properties(seed, n):
    joint = exact.joint_matrix(np.full(n, 1 / n), random_chain(seed, n))
    L = exact.laplacian(joint, normalised=False)
    np.testing.assert_allclose(L @ np.ones(n), 0.0, atol=1e-12)
    x = np.random.default_rng(seed).normal(size=n)
    quadratic = 0.5 * np.sum(joint * (x[:, None] - x[None, :]) ** 2)
    assert x @ L @ x == pytest.approx(quadratic, rel=1e-9)
    values = np.linalg.eigvalsh(exact.laplacian(joint))
    assert values[0] == pytest.approx(0.0, abs=1e-10)
    assert values[-1] <= 2 + 1e-10


@PROPERTY
@given(SEEDS, st.integers(3, 8))
def test_laplacian_functions_solve_the_eigenproblem(seed, n):
    joint = exact.joint_matrix(np.full(n, 1 / n), random_chain(seed, n))
    f = exact.laplacian_functions(joint, n - 1)
    w = (joint.sum(axis=0) + joint.sum(axis=1)) / 2
    np.testing.assert_allclose(w @ f, 0.0, atol=1e-9)
    np.testing.assert_allclose((f.T * w) @ f, np.eye(n - 1), atol=1e-9)
    energies = np.diag(f.T @ exact.laplacian(joint, normalised=False) @ f)
    np.testing.assert_allclose(energies, np.linalg.eigvalsh(exact.laplacian(joint))[1:], atol=1e-9)


def test_laplacian_and_svd_agree_on_reversible_positive_chains():
    """Symmetric P with positive eigenvalues, d flat: the same functions, with σ = 1 - eigenvalue of L."""
    world = GridWorld(FOUR_ROOMS)
    P = exact.policy_transition_matrix(world.transition_tensor())
    joint = exact.joint_matrix(np.full(104, 1 / 104), (np.eye(104) + P) / 2)
    f = exact.laplacian_functions(joint, 2)
    found = exact.decompose(joint, 2)
    np.testing.assert_allclose(np.abs(f), np.abs(found.left), atol=1e-7)


def test_laplacian_leaves_unvisited_states_at_zero():
    joint = np.zeros((4, 4))
    joint[:3, :3] = exact.joint_matrix(np.full(3, 1 / 3), random_chain(0, 3))
    assert np.all(exact.laplacian(joint)[3] == 0)
    assert np.all(exact.laplacian_functions(joint, 2)[3] == 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exact.policy_transition_matrix(np.ones((2, 2, 2))), "P_sas: .*every row to sum to one"),
        (lambda: exact.policy_transition_matrix(np.eye(2)[:, None], np.ones((2, 2)) / 2), "policy"),
        (lambda: exact.visitation(np.ones((2, 2)), 0, 3), "P_pi: .*got 2 for row 0"),
        (lambda: exact.visitation(np.eye(2), 0, 0), "horizon: expected at least 1 step, got 0"),
        (lambda: exact.visitation(np.eye(2), 2, 1), r"start: .*\[0, 1\], got 2"),
        (lambda: exact.visitation(np.eye(2), np.array([0.5, 0.6]), 1), "start: .* sum 1.1"),
        (lambda: exact.visitation(np.full((1, 2), 0.5), 0, 1), "P_pi"),
        (lambda: exact.joint_matrix(np.array([0.5, 0.6]), np.eye(2)), "d: .* sum 1.1"),
        (lambda: exact.joint_matrix(np.full(3, 1 / 3), np.eye(2)), "d"),
        (lambda: exact.empirical_joint(np.array([0, 5]), np.array([0, 0]), n_x=3), r"x: .*\[0, 2\]"),
        (lambda: exact.empirical_joint(np.array([0, -1]), np.array([0, 0])), "x: expected ids in"),
        (lambda: exact.empirical_joint(np.array([0, 1]), np.array([0])), "y"),
        (lambda: exact.successor_representation(np.eye(2), 1.0), r"gamma: .*\[0, 1\), got 1"),
        (lambda: exact.laplacian_functions(np.eye(2) / 2, 2), "k: expected 1 <= k <= 1"),
        (lambda: exact.laplacian(np.full((1, 2), 0.5)), "joint"),
    ],
)
def test_bad_arguments_are_named(call, message):
    """Shape mistakes surface as TypeError where the arrays' types are checked at run time."""
    with pytest.raises((ValueError, TypeError), match=message):
        call()
