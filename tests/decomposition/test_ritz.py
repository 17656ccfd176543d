"""The norm read within a span: against exact singular functions, whatever linear mixture of them was learnt."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.decomposition.bonus import RIDGE, compute_bonus, compute_ritz_bonus, whiten, whiten_sigma

N, K = 12, 4


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class World:
    """A random chain, its visitation, and the exact singular functions of D^½ P D'^-½ without the constant one."""

    def __init__(self, seed: int, k: int = K):
        rng = np.random.default_rng(seed)
        joint = rng.dirichlet(np.full(N, 0.5))[:, None] * rng.dirichlet(np.full(N, 0.5), size=N)
        self.joint, self.d, self.d_next = joint, joint.sum(axis=1), joint.sum(axis=0)
        root = np.sqrt(self.d)[:, None] * np.sqrt(self.d_next)
        U, self.sigma, V = np.linalg.svd(joint / root - root)
        self.f, self.g = U[:, :k] / np.sqrt(self.d)[:, None], V[:k].T / np.sqrt(self.d_next)[:, None]
        self.sigma = self.sigma[:k]

    def correlations(self, f: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (f.T * self.d) @ f, (g.T * self.d_next) @ g, f.T @ self.joint @ g


def mixtures(seed: int) -> tuple[np.ndarray, np.ndarray]:
    A, B = np.random.default_rng(seed).normal(size=(2, K, K))
    return A, B


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_any_mixture_of_the_exact_functions_has_their_norm(seed, weighted):
    world, (A, B) = World(seed), mixtures(seed + 10)
    f, g = world.f @ A, world.g @ B
    C_f, C_g, sigma = map(jnp.asarray, world.correlations(f, g))
    found = compute_ritz_bonus(jnp.asarray(f), C_f, C_g, sigma, weighted, ridge=0.0)
    expected = compute_bonus(jnp.asarray(world.f), jnp.asarray(world.sigma), weighted, sigma_floor=0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_singular_values_within_the_span(seed):
    world, (A, B) = World(seed), mixtures(seed + 20)
    f, g = world.f @ A, world.g @ B
    C_f, C_g, sigma = map(jnp.asarray, world.correlations(f, g))
    between = whiten_sigma(C_f, C_g, sigma, ridge=0.0)
    np.testing.assert_allclose(np.linalg.svd(between, compute_uv=False), world.sigma, rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_plain_norm_never_exceeds_the_pseudo_count(seed):
    """ℓ(s) ≤ 1/d(s) whatever was learnt, and the mean of ℓ over visits is the number of features."""
    world = World(seed)
    f = np.random.default_rng(seed).standard_cauchy(size=(N, K))
    f = f - world.d @ f
    C = jnp.asarray((f.T * world.d) @ f)
    found = np.asarray(compute_ritz_bonus(jnp.asarray(f), C, C, C, weighted=False, ridge=0.0))
    assert np.all(found <= world.d**-0.5 * (1 + 1e-9))
    assert world.d @ found**2 == pytest.approx(K)


def test_a_direction_that_no_visited_state_needs_shows():
    """Two states that are never visited: one like a visited one, one that is like none, though no larger."""
    rng = np.random.default_rng(0)
    f = rng.normal(size=(N, K)) * [1.0, 1.0, 1.0, 0.0]
    C = jnp.asarray(f.T @ f / N)
    new = jnp.asarray([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    like, unlike = compute_ritz_bonus(new, C, C, C, weighted=False)
    assert unlike > 50 * like


def test_the_floor_takes_the_place_of_small_singular_values():
    sigma = jnp.diag(jnp.asarray([0.9, 0.0]))
    found = compute_ritz_bonus(jnp.eye(2), jnp.eye(2), jnp.eye(2), sigma, sigma_ridge=0.5, ridge=0.0)
    np.testing.assert_allclose(found, [(0.81 + 0.25) ** -0.5, 2.0])


def test_whitened_rows_are_uncorrelated():
    rows = np.random.default_rng(1).normal(size=(50, K)) @ mixtures(3)[0]
    C = rows.T @ rows / 50
    white = np.asarray(whiten(jnp.asarray(C), jnp.asarray(rows).reshape(5, 10, K), ridge=0.0)).reshape(50, K)
    np.testing.assert_allclose(white.T @ white / 50, np.eye(K), atol=1e-9)


def a_matrix_that_is_not_quite_positive(k: int = 64, below: float = -3e-5) -> jax.Array:
    """Correlations of k features of few kinds, with what rounding on some device makes of a zero eigenvalue."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(k, k)))[0]
    eigenvalues = np.concatenate([np.full(4, k / 4), np.full(k - 4, below)])
    return jnp.asarray((Q * eigenvalues) @ Q.T, jnp.float32)


def test_correlations_of_few_kinds_of_rows_are_read_however_they_are_rounded():
    C, rows = a_matrix_that_is_not_quite_positive(), jax.random.normal(jax.random.key(0), (10, 64))
    assert not bool(jnp.all(jnp.isfinite(jnp.linalg.cholesky(C + RIDGE * jnp.eye(64)))))  # the control
    assert bool(jnp.all(jnp.isfinite(whiten(C, rows))))
    bonus = compute_ritz_bonus(rows, C, C, C, sigma_ridge=0.5)
    assert bool(jnp.all(jnp.isfinite(bonus) & (bonus > 0)))
    several = jax.jit(jax.vmap(whiten, in_axes=(0, None)))(jnp.stack([C, jnp.eye(64)]), rows)
    np.testing.assert_allclose(several[1], whiten(jnp.eye(64), rows), rtol=1e-5)
    assert bool(jnp.all(jnp.isfinite(several)))


def test_correlations_that_are_not_finite_stay_so():
    """And the loop ends."""
    assert bool(jnp.all(jnp.isnan(whiten(jnp.full((3, 3), jnp.nan), jnp.ones((2, 3))))))


def test_without_a_floor_values_of_zero_are_read_too():
    """And the loop ends, though ten times a ridge of 0 is 0."""
    found = compute_ritz_bonus(jnp.eye(2), jnp.eye(2), jnp.eye(2), jnp.zeros((2, 2)), sigma_ridge=0.0)
    assert bool(jnp.all(jnp.isfinite(found) & (found > 1)))
    nan = compute_ritz_bonus(jnp.eye(2), jnp.eye(2), jnp.eye(2), jnp.full((2, 2), jnp.nan), sigma_ridge=0.0)
    assert bool(jnp.all(jnp.isnan(nan)))
