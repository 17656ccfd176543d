"""Batch normalisation and running statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.decomposition.statistics import (
    DECAY,
    EPSILON,
    BatchStatistics,
    Moments,
    batch_normalise,
    compute_moments,
    init_statistics,
    read_statistics,
    standardise,
    update_statistics,
    weighted_mean,
)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


UPDATE = jax.jit(update_statistics)


def random_statistics(seed, k=3):
    rng = np.random.default_rng(seed)
    rows = [jnp.asarray(rng.normal(size=k)) for _ in range(4)]
    return BatchStatistics(Moments(*rows[:2]), Moments(*rows[2:]), jnp.asarray(rng.normal(size=(k, k))))


def assert_close(found, wanted, rtol=1e-12):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-14), found, wanted)


# --------------------------------------------------------------------------------- one batch


def test_weighted_mean_by_hand():
    values = jnp.array([[1.0, 10.0], [4.0, 20.0], [100.0, 0.0]])
    np.testing.assert_array_equal(weighted_mean(values), [35.0, 10.0])
    np.testing.assert_allclose(weighted_mean(values, jnp.array([2.0, 1.0, 0.0])), [2.0, 40 / 3])
    np.testing.assert_array_equal(weighted_mean(values, jnp.zeros(3)), [0.0, 0.0])
    assert float(weighted_mean(values[:, 0], jnp.array([0.0, 3.0, 1.0]))) == 28.0


def test_moments_by_hand():
    z = jnp.array([[0.0, 1.0], [2.0, 1.0], [7.0, 4.0]])
    np.testing.assert_allclose(
        compute_moments(z), [[3.0, 2.0], [26 / 3, 2.0]]
    )  # 9 + 1 + 16 over 3, not over 2
    np.testing.assert_allclose(compute_moments(z, jnp.array([1.0, 1.0, 0.0])), [[1.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(compute_moments(z, jnp.array([3.0, 1.0, 0.0])), [[0.5, 1.0], [0.75, 0.0]])


def test_batch_normalise_by_hand():
    z, seen = batch_normalise(jnp.array([[1.0], [5.0]]), epsilon=0.0)
    np.testing.assert_array_equal(z, [[-1.0], [1.0]])
    np.testing.assert_array_equal(seen, [[3.0], [4.0]])
    z, _ = batch_normalise(jnp.array([[1.0], [5.0]]), epsilon=5.0)  # √(4 + 5) = 3
    np.testing.assert_allclose(z, [[-2 / 3], [2 / 3]])


@pytest.mark.parametrize("weights", [None, [1.0, 0.0, 1.0, 1.0, 0.0, 1.0], [2.0, 0.0, 1.0, 3.0, 1.0, 5.0]])
def test_batch_normalised_moments_are_zero_and_one(weights):
    """Variance v becomes v / (v + ε), over the rows that count."""
    z = 3.0 * jnp.asarray(np.random.default_rng(0).normal(size=(6, 4))) - 2.0
    weights = None if weights is None else jnp.asarray(weights)
    normalised, seen = batch_normalise(z, weights)
    mean, variance = compute_moments(normalised, weights)
    np.testing.assert_allclose(mean, 0.0, atol=1e-14)
    np.testing.assert_allclose(variance, seen.variance / (seen.variance + EPSILON), rtol=1e-12)
    assert_close(standardise(z, seen), normalised)


def test_masked_rows_are_transformed_but_not_counted():
    z = jnp.array([[1.0], [5.0], [1000.0]])
    normalised, seen = batch_normalise(z, jnp.array([1.0, 1.0, 0.0]), epsilon=0.0)
    np.testing.assert_array_equal(normalised, [[-1.0], [1.0], [498.5]])
    np.testing.assert_array_equal(seen, [[3.0], [4.0]])


def test_constant_features_become_zero_with_a_finite_gradient():
    z = jnp.full((4, 2), 7.0)
    normalised, _ = jax.jit(batch_normalise)(z)
    np.testing.assert_array_equal(normalised, 0.0)
    gradient = jax.jit(jax.grad(lambda z: jnp.sum(batch_normalise(z)[0][0])))(z)
    wanted = np.array([[0.75], [-0.25], [-0.25], [-0.25]]) / np.sqrt(EPSILON)
    np.testing.assert_allclose(gradient, np.tile(wanted, 2))


def test_gradient_of_normalisation_by_formula():
    """∂/∂z Σ c·ẑ = (c - mean c - ẑ mean(c ẑ)) / √(v + ε), the textbook backward pass."""
    z, c = np.random.default_rng(1).normal(size=(2, 5, 3))
    gradient = jax.jit(jax.grad(lambda z: jnp.sum(c * batch_normalise(z)[0])))(z)
    scale = np.sqrt(z.var(0) + EPSILON)
    normalised = (z - z.mean(0)) / scale
    formula = (c - c.mean(0) - normalised * (c * normalised).mean(0)) / scale
    np.testing.assert_allclose(gradient, formula, rtol=1e-10, atol=1e-13)


def test_standardise_takes_one_row_or_many():
    seen = Moments(jnp.array([1.0, 2.0]), jnp.array([4.0, 9.0]))
    np.testing.assert_allclose(standardise(jnp.array([3.0, -1.0]), seen, 0.0), [1.0, -1.0])
    assert standardise(jnp.ones((2, 3, 2)), seen).shape == (2, 3, 2)


# ------------------------------------------------------------------------- running statistics


def test_nothing_is_read_before_the_first_update():
    found = read_statistics(init_statistics(3))
    for leaf, shape in zip(jax.tree.leaves(found), [(3,)] * 4 + [(3, 3)], strict=True):
        np.testing.assert_array_equal(leaf, np.zeros(shape))


@pytest.mark.parametrize("decay", [0.0, 0.5, DECAY])
def test_after_one_update_the_statistics_are_that_update(decay):
    """Without the correction they would be 1 - decay of it: a hundredth."""
    seen = random_statistics(0)
    running = update_statistics(init_statistics(3), seen, decay)
    assert float(running.weight) == pytest.approx(1 - decay)
    assert_close(running.total, jax.tree.map(lambda x: (1 - decay) * x, seen))
    assert_close(read_statistics(running), seen)


def test_running_means_by_hand():
    """Decay 0.5, three updates: weights 1/8, 1/4, 1/2 of the oldest to the newest, over 7/8."""
    updates = [random_statistics(seed) for seed in range(3)]
    running = init_statistics(3)
    for seen in updates:
        running = update_statistics(running, seen, 0.5)
    wanted = jax.tree.map(lambda a, b, c: (a + 2 * b + 4 * c) / 7, *updates)
    assert float(running.weight) == 0.875
    assert_close(read_statistics(running), wanted)


def test_default_decay_forgets_within_some_hundred_updates():
    """After a hundred further updates the old value keeps 0.99^100 = 0.37 of its weight."""
    zero = jax.tree.map(jnp.zeros_like, random_statistics(0))
    old, new = (jax.tree.map(lambda x, v=v: x + v, zero) for v in (1.0, 0.0))
    running = init_statistics(3)
    for seen in [old] * 1000 + [new] * 100:
        running = UPDATE(running, seen)
    expected = 0.99**100 * (1 - 0.99**1000) / (1 - 0.99**1100)
    assert_close(read_statistics(running), jax.tree.map(lambda x: x + expected, zero), rtol=1e-9)


def test_constant_statistics_are_read_back_in_single_precision():
    with jax.enable_x64(False):
        seen = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), random_statistics(1))
        running = init_statistics(3)
        for _ in range(300):
            running = UPDATE(running, seen)
        found = read_statistics(running)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(found))
        assert_close(found, seen, rtol=1e-5)
