"""Graph drawing, the Laplacian baseline: the appendix's sums, and what its two readings converge to."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from derex.decomposition import exact
from derex.decomposition.objectives import (
    attraction,
    graph_drawing_loss,
    orthonormality,
    paired_orthonormality,
)
from derex.decomposition.statistics import Half
from derex.envs import FOUR_ROOMS, GridWorld


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


LOSS = jax.jit(graph_drawing_loss, static_argnames=("lambda_r", "paired", "normalise"))
ORTHONORMALITY = jax.jit(orthonormality)


def half_of(f, g, weights=None):
    """A half from NumPy arrays; under jit they are JAX's own."""
    return Half(f, g, weights)


def random_halves(seed, k=3):
    """Two halves of five transitions, as NumPy arrays."""
    return [half_of(f, g) for f, g in np.random.default_rng(seed).normal(size=(2, 2, 5, k)) + 0.3]


def triple_loop(u, v):
    """L_diag and L_off as the appendix prints them: over pairs i and features j, l."""
    n, k = u.shape
    close = sum((u[i, j] - v[i, j]) ** 2 for i, j in product(range(n), range(k))) / (n * k)
    off = 0.0
    for i, j, l in product(range(n), range(k), range(k)):
        off += (u[i, j] * u[i, l] - (j == l)) * (v[i, j] * v[i, l] - (j == l))
    return close, off / (n * k**2)


# -------------------------------------------------------------------------------------- by hand


def test_pieces_by_hand():
    """Pairs (1, 0) → (0, 2) and (1, 1) → (3, -1): squared distances 5 and 8, (u·v)² - ‖u‖² - ‖v‖² + k = -3, -6."""
    u, v = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 2.0], [3.0, -1.0]])
    assert float(jax.jit(attraction)(u, v)) == 13 / 4
    assert float(jax.jit(paired_orthonormality)(u, v)) == -9 / 8
    # E[u uᵀ] - I = ((0, .5), (.5, -.5)) and E[v vᵀ] - I = ((3.5, -1.5), (-1.5, 1.5)).
    assert float(ORTHONORMALITY(u, v)) == pytest.approx((-0.75 - 0.75 - 0.75) / 4)


@pytest.mark.parametrize("k", [1, 3])
def test_paired_form_is_the_sum_of_the_appendix(k):
    first, second = random_halves(0, k)
    sums = [triple_loop(h.f, h.g) for h in (first, second)]
    close, off = np.mean(sums, axis=0)
    loss = LOSS(first, second, lambda_r=10.0, paired=True)
    assert float(loss) == pytest.approx(close + 10.0 * off, rel=1e-12)


def test_independent_form_is_the_average_over_all_cross_pairs():
    """Every u of one half against every u of the other: 25 pairs in the appendix's sum, none a transition."""
    first, second = random_halves(1)
    _, off = triple_loop(np.repeat(first.f, 5, axis=0), np.tile(second.f, (5, 1)))
    close = np.mean([triple_loop(h.f, h.g)[0] for h in (first, second)])
    assert float(ORTHONORMALITY(first.f, second.f)) == pytest.approx(off, rel=1e-12)
    assert float(LOSS(first, second, lambda_r=10.0)) == pytest.approx(close + 10.0 * off, rel=1e-12)


def test_independent_form_estimates_the_distance_to_orthonormality():
    """With the whole distribution in both halves it is ‖E[f fᵀ] - I‖² / k², zero for orthonormal functions."""
    f = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert float(ORTHONORMALITY(f, f)) == 0.0
    assert float(ORTHONORMALITY(2 * f, 2 * f)) == 2 * 3.0**2 / 4
    weights = np.array([1.0, 0.0, 0.0, 1.0])  # perfectly correlated: ((1, 1), (1, 1)) - I
    assert float(ORTHONORMALITY(f, f, weights, weights)) == 0.5


def test_halves_of_the_independent_form_may_differ_in_size():
    """E[u uᵀ] - I = 0.5 over two rows, E[v vᵀ] - I = 8/3 over three."""
    u, v = np.array([[1.0], [np.sqrt(2.0)]]), np.array([[3.0], [1.0], [1.0]])
    assert float(ORTHONORMALITY(u, v)) == pytest.approx(0.5 * 8 / 3)


def test_paired_form_is_unbounded_below_on_a_two_cycle():
    """f = c e_1 at one state and c e_2 at the other: L = 2c²/k + λ (k - 2c²)/k² = 5 - 4c² at k = 2, λ = 10."""
    for c in (1.0, 10.0, 100.0):
        half = half_of(np.array([[c, 0.0], [0.0, c]]), np.array([[0.0, c], [c, 0.0]]))
        assert float(LOSS(half, half, lambda_r=10.0, paired=True)) == pytest.approx(5 - 4 * c**2)
        independent = c**2 + 10.0 * (c**2 / 2 - 1) ** 2 / 2  # E[f fᵀ] = c²/2 I
        assert float(LOSS(half, half, lambda_r=10.0)) == pytest.approx(independent)
    assert float(LOSS(half, half, lambda_r=2.0, paired=True)) == pytest.approx(1.0)  # λ = k: bounded


def test_normalise_shares_its_statistics_between_both_ends():
    """u and v are normalised as one sample: their difference in mean is part of what is learnt, not removed."""
    first, second = random_halves(2)
    one, other = (normalised_by_hand(half) for half in (first, second))
    for paired in (True, False):
        found = LOSS(first, second, lambda_r=10.0, paired=paired, normalise=True)
        wanted = LOSS(one, other, lambda_r=10.0, paired=paired)
        assert float(found) == pytest.approx(float(wanted), rel=1e-12)
    moved = (Half(7.0 + 3.0 * h.f, 7.0 + 3.0 * h.g) for h in (first, second))
    assert float(LOSS(*moved, lambda_r=10.0, normalise=True)) == pytest.approx(float(found), rel=1e-4)


def normalised_by_hand(half):
    both = np.concatenate([half.f, half.g])
    mean, scale = both.mean(0), np.sqrt(both.var(0) + 1e-5)
    return Half((half.f - mean) / scale, (half.g - mean) / scale)


# ----------------------------------------------------------------------------------- four rooms


@pytest.fixture(scope="module")
def joint():
    P = exact.policy_transition_matrix(GridWorld(FOUR_ROOMS).transition_tensor())
    return exact.joint_matrix(exact.stationary_distribution(P), P)


def learn(joint, k, steps=2000, **options):
    """A tabular f by full-batch Adam on every pair (s, s') with its probability; and the last loss."""
    rows, columns = np.nonzero(joint)
    weights = jnp.asarray(joint[rows, columns])
    optimiser = optax.adam(optax.cosine_decay_schedule(3e-2, steps))

    def loss(f):
        half = Half(f[rows], f[columns], weights)
        return graph_drawing_loss(half, half, 10.0, **options)

    def step(carry, _):
        f, state = carry
        value, gradient = jax.value_and_grad(loss)(f)
        updates, state = optimiser.update(gradient, state)
        return (optax.apply_updates(f, updates), state), value

    @jax.jit
    def run(f):
        (f, _), values = jax.lax.scan(step, (f, optimiser.init(f)), None, steps)
        return f, values[-1]

    f, value = run(0.1 * jnp.asarray(np.random.default_rng(0).normal(size=(len(joint), k))))
    return np.asarray(f), float(value)


def overlap(f, functions, d):
    """‖Qᵀ U‖² / k of the spans of f and of the given functions under d: 1 where they are the same space."""
    Q, U = (np.linalg.qr(np.sqrt(d)[:, None] * z)[0] for z in (f, functions))
    return np.sum((Q.T @ U) ** 2) / U.shape[1]


def eigenvalues(joint, functions):
    """μ_i of I - P for each eigenfunction: half the mean squared difference of its two ends, E f_i² = 1."""
    rows, columns = np.nonzero(joint)
    return joint[rows, columns] @ (functions[rows] - functions[columns]) ** 2 / 2


def test_independent_form_finds_the_constant_and_the_smoothest_functions(joint):
    """At the minimum E f_i² = 1 - k μ_i / λ, and L = Σ_i 2 μ_i / k - μ_i² / λ."""
    k, d = 4, joint.sum(axis=1)
    truth = np.column_stack([np.ones(len(d)), exact.laplacian_functions(joint, k - 1)])
    f, loss = learn(joint, k)
    assert overlap(f, truth, d) > 0.9999
    mu = eigenvalues(joint, truth)
    assert loss == pytest.approx(np.sum(2 * mu / k - mu**2 / 10.0), rel=1e-4)
    sizes = np.sort(np.linalg.eigvalsh(f.T @ (d[:, None] * f)))
    np.testing.assert_allclose(sizes, np.sort(1 - k * mu / 10.0), atol=1e-4)


def test_normalised_independent_form_leaves_the_constant_out(joint):
    """Normalisation takes the mean away, so that all k functions vary; unit variance is then a constraint."""
    k, d = 4, joint.sum(axis=1)
    f, _ = learn(joint, k, normalise=True)
    assert overlap(f - d @ f, exact.laplacian_functions(joint, k), d) > 0.999


def test_paired_form_diverges_in_four_rooms(joint):
    """λ_r = 10 > k = 4: the loss falls without end, far from the eigenspace."""
    k, d = 4, joint.sum(axis=1)
    truth = np.column_stack([np.ones(len(d)), exact.laplacian_functions(joint, k - 1)])
    f, loss = learn(joint, k, steps=1000, paired=True)
    assert loss < -100
    assert np.max(np.abs(f)) > 10
    assert overlap(f, truth, d) < 0.3


def test_paired_form_is_bounded_but_wrong_for_more_features_than_its_penalty(joint):
    """λ_r = 10 < k = 16: it converges to a space that is not the eigenspace."""
    k, d = 16, joint.sum(axis=1)
    truth = np.column_stack([np.ones(len(d)), exact.laplacian_functions(joint, k - 1)])
    f, loss = learn(joint, k, paired=True)
    assert 0 < loss < 1
    assert 0.5 < overlap(f, truth, d) < 0.9
