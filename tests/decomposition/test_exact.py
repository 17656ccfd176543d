"""The exact decomposition and the matrices it starts from."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from derex.decomposition import exact
from derex.envs import FOUR_ROOMS, GridWorld, random_rooms

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(2, 9)


def random_joint(seed, n, m, sparsity=0.0):
    """A random joint distribution; `sparsity` of its entries are zero, but no whole row or column."""
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=(n, m)) * (rng.random((n, m)) >= sparsity)
    weights[np.arange(max(n, m)) % n, np.arange(max(n, m)) % m] += 0.1
    return weights / weights.sum()


def four_rooms_joint(horizon=100):
    world = GridWorld(FOUR_ROOMS)
    P = exact.policy_transition_matrix(world.transition_tensor())
    return exact.joint_matrix(exact.visitation(P, world.start, horizon), P)


# ---------------------------------------------------------------------------------- by hand


def test_two_state_chain_by_hand():
    """P flips with probability 0.2, d is flat: σ = 1 - 2·0.2 and f = ±1, whatever the signs of U."""
    found = exact.decompose(np.array([[0.4, 0.1], [0.1, 0.4]]))
    np.testing.assert_allclose(found.singular_values, [0.6], atol=1e-12)
    np.testing.assert_allclose(np.abs(found.left), [[1.0], [1.0]], atol=1e-12)
    np.testing.assert_allclose(found.left, found.right, atol=1e-12)
    # LAPACK's last digit depends on the processor.
    assert found.left[0, 0] == pytest.approx(-found.left[1, 0], abs=1e-12)


def test_two_state_singular_value_is_the_correlation_coefficient():
    """For a 2 x 2 joint, σ is the phi coefficient (a d - b c) / √(product of the four marginals)."""
    joint = np.array([[0.5, 0.2], [0.1, 0.2]])
    phi = (0.5 * 0.2 - 0.2 * 0.1) / np.sqrt(0.7 * 0.3 * 0.6 * 0.4)
    found = exact.decompose(joint)
    np.testing.assert_allclose(found.singular_values, [phi], atol=1e-12)
    np.testing.assert_allclose(np.abs(found.left[:, 0]), [np.sqrt(3 / 7), np.sqrt(7 / 3)], atol=1e-12)


def test_counting_geometry_is_the_plain_svd():
    joint = random_joint(0, 5, 4)
    found = exact.decompose(joint, geometry="counting")
    np.testing.assert_allclose(found.singular_values, np.linalg.svd(joint, compute_uv=False), atol=1e-14)
    np.testing.assert_allclose(found.left * found.singular_values @ found.right.T, joint, atol=1e-14)
    np.testing.assert_allclose(found.left.T @ found.left, np.eye(4), atol=1e-12)


def test_independent_states_leave_nothing_to_decompose():
    """s' independent of s: A = d d'ᵀ is its constant mode alone. The weighted bonus is then 0, not NaN."""
    found = exact.decompose(np.outer([0.2, 0.3, 0.5], [0.6, 0.3, 0.1]))
    np.testing.assert_allclose(found.singular_values, 0.0, atol=1e-15)
    assert found.rank == 0
    np.testing.assert_array_equal(found.bonus(), 0.0)
    np.testing.assert_allclose(found.bonus(weighted=False) ** 2, 1 / found.d - 1, rtol=1e-9)


# ------------------------------------------------------------------------------- properties


@PROPERTY
@given(SEEDS, SIZES, SIZES, st.sampled_from([0.0, 0.5]))
def test_visitation_functions_are_orthonormal_and_rebuild_the_joint(seed, n, m, sparsity):
    joint = random_joint(seed, n, m, sparsity)
    found = exact.decompose(joint)
    f, g, sigma, d, d_next = found.left, found.right, found.singular_values, found.d, found.d_next
    k = min(n, m) - 1
    np.testing.assert_allclose(d @ f, np.zeros(k), atol=1e-10)
    np.testing.assert_allclose(d_next @ g, np.zeros(k), atol=1e-10)
    np.testing.assert_allclose(f.T * d @ f, np.eye(k), atol=1e-10)
    np.testing.assert_allclose(g.T * d_next @ g, np.eye(k), atol=1e-10)
    np.testing.assert_allclose(f.T @ joint @ g, np.diag(sigma), atol=1e-10)
    np.testing.assert_allclose(np.outer(d, d_next) * (1 + f * sigma @ g.T), joint, atol=1e-10)
    assert np.all(sigma <= 1.0)
    assert np.all(np.diff(sigma) <= 0)


@PROPERTY
@given(SEEDS, SIZES)
def test_full_rank_norm_is_the_inverse_of_visitation(seed, n):
    """‖f(s)‖² = 1/d(s) - 1 at full rank, in the visitation geometry, for any P: also a singular one."""
    joint = random_joint(seed, n, n, sparsity=0.6)
    found = exact.decompose(joint)
    np.testing.assert_allclose(found.bonus(weighted=False) ** 2, 1 / found.d - 1, rtol=1e-8, atol=1e-8)


def test_full_rank_norm_holds_in_four_rooms_although_its_matrix_is_singular():
    found = exact.decompose(four_rooms_joint())
    assert found.rank < found.k == 103
    np.testing.assert_allclose(found.bonus(weighted=False) ** 2, 1 / found.d - 1, rtol=1e-9)


@PROPERTY
@given(SEEDS, SIZES, SIZES, st.sampled_from(["visitation", "counting"]))
def test_renaming_states_renames_the_decomposition(seed, n, m, geometry):
    joint = random_joint(seed, n, m)
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(n), rng.permutation(m)
    original = exact.decompose(joint, geometry=geometry)
    renamed = exact.decompose(joint[rows][:, columns], geometry=geometry)
    np.testing.assert_allclose(renamed.singular_values, original.singular_values, atol=1e-12)
    np.testing.assert_allclose(
        renamed.left * renamed.singular_values @ renamed.right.T,
        (original.left * original.singular_values @ original.right.T)[rows][:, columns],
        atol=1e-9,
    )
    np.testing.assert_allclose(renamed.bonus(), original.bonus()[rows], rtol=1e-6)


@PROPERTY
@given(SEEDS, st.integers(8, 14), st.integers(8, 14), st.sampled_from(["visitation", "counting"]))
def test_iterative_and_dense_agree(seed, n, m, geometry):
    joint = random_joint(seed, n, m, sparsity=0.5)
    dense = exact.decompose(joint, 3, geometry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "DENSE_LIMIT", 1)
        iterative = exact.decompose(sp.coo_array(joint), 3, geometry)
    np.testing.assert_allclose(iterative.singular_values, dense.singular_values, atol=1e-10)
    np.testing.assert_allclose(
        iterative.left * iterative.singular_values @ iterative.right.T,
        dense.left * dense.singular_values @ dense.right.T,
        atol=1e-6,
    )


@PROPERTY
@given(SEEDS, SIZES, SIZES)
def test_truncation_keeps_the_leading_components(seed, n, m):
    joint = random_joint(seed, n, m)
    full = exact.decompose(joint)
    for k in range(1, full.k + 1):
        np.testing.assert_array_equal(exact.decompose(joint, k).left, full.left[:, :k])


# ------------------------------------------------------------------------------ large, sparse


def test_large_sparse_joint_is_decomposed_without_being_made_dense(monkeypatch):
    """Some 2 500 states, past the limit; checked through the definition Aᵀ f = D' g Σ."""
    world = GridWorld(random_rooms(0, rows=7, cols=7, room=7))
    n = world.n_states
    move = sp.csr_array(
        (np.full(4 * n, 0.25), (np.repeat(np.arange(n), 4), world.successors.ravel())), (n, n)
    )
    joint = exact.joint_matrix(exact.visitation(move, np.full(n, 1 / n), 10), move)
    assert sp.issparse(joint)
    assert n > exact.DENSE_LIMIT
    monkeypatch.setattr(exact, "to_dense", lambda matrix: pytest.fail("the joint was made dense"))
    found, again = exact.decompose(joint, 6), exact.decompose(joint, 6)
    np.testing.assert_array_equal(found.left, again.left)
    assert np.all(np.diff(found.singular_values) <= 0)
    f, g, d = found.left, found.right, found.d
    np.testing.assert_allclose(d @ f, 0.0, atol=1e-9)
    np.testing.assert_allclose((f.T * d) @ f, np.eye(6), atol=1e-9)
    np.testing.assert_allclose(joint.T @ f, found.d_next[:, None] * g * found.singular_values, atol=1e-11)


def test_iterative_values_below_its_accuracy_are_zero(monkeypatch):
    monkeypatch.setattr(exact, "DENSE_LIMIT", 1)
    low_rank = np.kron(random_joint(0, 3, 3), np.full((4, 4), 1 / 16))
    found = exact.decompose(sp.csr_array(low_rank), 5)
    np.testing.assert_array_equal(found.singular_values[2:], 0.0)
    assert found.rank == 2
    assert np.all(np.isfinite(found.bonus()))


# ------------------------------------------------------------------------ unvisited and bonus


@pytest.mark.parametrize("geometry", ["visitation", "counting"])
def test_unvisited_states_have_zero_functions_and_infinite_bonus(geometry):
    inner = random_joint(1, 4, 5)
    joint = np.zeros((6, 6))
    joint[np.ix_([0, 2, 3, 5], [0, 1, 2, 4, 5])] = inner
    found, expected = exact.decompose(joint, geometry=geometry), exact.decompose(inner, geometry=geometry)
    np.testing.assert_array_equal(found.left[[1, 4]], 0.0)
    np.testing.assert_array_equal(found.right[3], 0.0)
    np.testing.assert_allclose(found.left[[0, 2, 3, 5]], expected.left, atol=1e-12)
    for weighted in (True, False):
        bonus = found.bonus(weighted)
        assert np.all(np.isinf(bonus[[1, 4]]))
        np.testing.assert_allclose(bonus[[0, 2, 3, 5]], expected.bonus(weighted), rtol=1e-9)


def test_bonus_by_hand():
    left = np.array([[3.0, 4.0], [0.0, 2.0]])
    half = np.array([0.5, 0.5])
    found = exact.Decomposition(left, left, np.array([0.5, 0.1]), half, half, "visitation")
    np.testing.assert_allclose(found.bonus(weighted=False), [5.0, 2.0])
    np.testing.assert_allclose(found.bonus(), [np.hypot(6, 40), 20.0])
    np.testing.assert_allclose(found.bonus(sigma_floor=0.25), [np.hypot(6, 16), 8.0])


def test_null_directions_are_left_out_unless_floored():
    left = np.array([[1.0, 5.0], [1.0, 5.0]])
    half = np.array([0.5, 0.5])
    found = exact.Decomposition(left, left, np.array([0.5, 1e-17]), half, half, "visitation")
    np.testing.assert_allclose(found.bonus(), 2.0)
    np.testing.assert_allclose(found.bonus(sigma_floor=0.1), np.hypot(2.0, 50.0))
    with pytest.raises(ValueError, match="sigma_floor: expected a number >= 0, got -1"):
        found.bonus(sigma_floor=-1)


def test_state_action_rows_give_a_rectangular_joint():
    world = GridWorld(FOUR_ROOMS, slip=0.1)
    P_sas = world.transition_tensor()
    P_pi = exact.policy_transition_matrix(P_sas)
    d = exact.visitation(P_pi, world.start, 100)
    joint = exact.joint_matrix(np.repeat(d, 4) / 4, exact.state_action_matrix(P_sas))
    found = exact.decompose(joint, 5)
    assert found.left.shape == (416, 5)
    assert found.right.shape == (104, 5)
    states_only = exact.decompose(exact.joint_matrix(d, P_pi), 5)
    np.testing.assert_allclose(found.d_next, states_only.d_next, atol=1e-12)
    assert np.all(found.singular_values >= states_only.singular_values)  # the action says more of s'


def test_float32_drift_is_renormalised():
    joint = random_joint(0, 4, 4).astype(np.float32)
    assert exact.decompose(joint).d.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("joint", "arguments", "message"),
    [
        (np.eye(3), {}, "joint: entries must sum to one .* got a sum of 3.*joint_matrix"),
        (np.full((2, 2), 0.2), {}, "joint: .* got a sum of 0.8"),
        (np.array([[1.5, -0.5], [0.0, 0.0]]), {}, "joint: .* negative entry -0.5"),
        (np.array([[np.nan, 0.5], [0.0, 0.5]]), {}, "joint: .* NaN"),
        (np.zeros((0, 2)), {}, r"joint: .* shape \(0, 2\)"),
        (np.array([[1.0, 0.0], [0.0, 0.0]]), {}, "joint: only one row or column is ever visited"),
        (np.eye(3) / 3, {"k": 3}, "k: expected 1 <= k <= 2, got 3"),
        (np.eye(3) / 3, {"k": 0}, "k: expected 1 <= k <= 2, got 0"),
        (np.eye(3) / 3, {"k": 4, "geometry": "counting"}, "k: expected 1 <= k <= 3, got 4"),
    ],
)
def test_bad_joints_and_ranks_are_named(joint, arguments, message):
    with pytest.raises(ValueError, match=message):
        exact.decompose(joint, **arguments)


def test_unknown_geometry_names_the_choices():
    with pytest.raises((ValueError, TypeError), match=r"visitation.*counting"):
        exact.decompose(np.eye(2) / 2, geometry="euclidean")  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [2.0, "2", True])
def test_a_k_that_is_not_an_integer_is_refused(k):
    with pytest.raises((TypeError, ValueError), match="k"):
        exact.decompose(np.full((4, 4), 1 / 16), k)
