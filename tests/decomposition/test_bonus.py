"""The exploration bonus, by hand and on the exact functions of Theorem 3."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.decomposition import exact
from derex.decomposition.bonus import SIGMA_FLOOR, compute_bonus
from derex.envs import FOUR_ROOMS, GridWorld


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_bonus_by_hand():
    """‖(3/0.5, 4/0.5)‖ = 10 and ‖(3/1, 4/0.25)‖ = √(9 + 256)."""
    f = jnp.array([3.0, 4.0])
    assert float(compute_bonus(f, jnp.array([0.5, 0.5]))) == 10.0
    assert float(compute_bonus(f, jnp.array([1.0, 0.25]))) == pytest.approx(np.sqrt(265))
    assert float(compute_bonus(f, jnp.array([1.0, 0.25]), weighted=False)) == 5.0


def test_small_singular_values_count_as_the_floor():
    f = jnp.array([0.3, 0.4])
    for small in (SIGMA_FLOOR, 0.01, 0.0, -0.5):
        assert float(compute_bonus(f, jnp.full(2, small))) == pytest.approx(0.5 / 0.05)
    assert float(compute_bonus(f, jnp.array([0.01, 0.01]), sigma_floor=0.2)) == pytest.approx(2.5)
    assert float(compute_bonus(f, jnp.array([0.01, 0.01]), sigma_floor=0.0)) == pytest.approx(50.0)
    assert float(compute_bonus(f, jnp.array([0.06, 0.06]))) == pytest.approx(0.5 / 0.06)


def test_the_floor_touches_the_weighted_form_alone():
    f, sigma = jnp.array([[0.3, 0.4]]), jnp.array([0.01, 0.001])
    assert float(compute_bonus(f, sigma, weighted=False, sigma_floor=3.0)[0]) == pytest.approx(0.5)


def test_one_number_for_each_row_of_any_batch():
    f = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3)))
    sigma = jnp.array([0.9, 0.5, 0.1])
    found = compute_bonus(f, sigma)
    assert found.shape == (2, 5)
    np.testing.assert_allclose(found, np.sqrt(np.sum((np.asarray(f) / sigma) ** 2, -1)))


def test_theorem_3_scale_in_the_counting_geometry():
    """‖U_s‖_{Λ⁻¹} = √α_s / d(s) at full rank, in the paper's form without a floor."""
    rng = np.random.default_rng(3)
    P, d = rng.dirichlet(np.ones(5), size=5), rng.dirichlet(np.full(5, 2.0))
    truth = exact.decompose(exact.joint_matrix(d, P), geometry="counting")
    found = compute_bonus(jnp.asarray(truth.left), jnp.asarray(truth.singular_values), sigma_floor=0.0)
    np.testing.assert_allclose(found, np.sqrt(np.diag(np.linalg.inv(P @ P.T))) / d, rtol=1e-8)


def test_visitation_scale_of_the_plain_norm():
    """‖f(s)‖² = 1/d(s) - 1 at full rank of the functions that batch normalisation leads to, whatever P is."""
    rng = np.random.default_rng(4)
    P, d = rng.dirichlet(np.ones(6), size=6), rng.dirichlet(np.full(6, 2.0))
    truth = exact.decompose(exact.joint_matrix(d, P))
    found = compute_bonus(jnp.asarray(truth.left), jnp.asarray(truth.singular_values), weighted=False)
    np.testing.assert_allclose(found**2, 1 / d - 1, rtol=1e-9)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("floor", [SIGMA_FLOOR, 0.9])
def test_agrees_with_the_exact_bonus_in_four_rooms(weighted, floor):
    world = GridWorld(FOUR_ROOMS)
    P = exact.policy_transition_matrix(world.transition_tensor())
    truth = exact.decompose(exact.joint_matrix(exact.visitation(P, world.start, 100), P), 16)
    found = compute_bonus(jnp.asarray(truth.left), jnp.asarray(truth.singular_values), weighted, floor)
    np.testing.assert_allclose(found, truth.bonus(weighted, floor), rtol=1e-10)
