"""The reward scaler: means written out, masks, and the numbers that made us clip."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.agents.update import Scale, deviation, initial_scale, scaled, update_scale


def test_before_any_update_nothing_is_scaled():
    values = jnp.array([-3.0, 0.0, 7.0])
    np.testing.assert_array_equal(scaled(values, initial_scale()), values)
    np.testing.assert_array_equal(scaled(jnp.array([30.0]), initial_scale()), [10.0])


def test_one_batch_gives_its_own_deviation():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=(4, 50)).astype(np.float32)
    scale = update_scale(initial_scale(), jnp.asarray(values))
    np.testing.assert_allclose(deviation(scale), values.std(), rtol=1e-5)
    np.testing.assert_allclose(scaled(jnp.asarray(values), scale), values / values.std(), rtol=1e-5)


def test_several_batches_against_a_weighted_mean():
    batches = np.random.default_rng(1).normal(1.0, [[0.5], [1.0], [4.0]], size=(3, 20)).astype(np.float32)
    scale = initial_scale()
    for batch in batches:
        scale = jax.jit(partial(update_scale, decay=0.9))(scale, jnp.asarray(batch))
    ages = 0.9 ** np.array([2, 1, 0])
    mean, square = (np.average(x.mean(axis=1), weights=ages) for x in (batches, batches**2))
    np.testing.assert_allclose(scale.weight, 1 - 0.9**3, rtol=1e-6)
    np.testing.assert_allclose(deviation(scale), np.sqrt(square - mean**2 + 1e-8), rtol=1e-5)


@pytest.mark.parametrize("kind", [bool, np.float32])
def test_what_is_masked_does_not_count(kind):
    values = np.array([1.0, 2.0, np.nan, 4.0], np.float32)
    mask = np.array([1, 1, 0, 1]).astype(kind)
    before = update_scale(initial_scale(), jnp.array([5.0, 6.0]))
    masked = update_scale(before, jnp.asarray(values), jnp.asarray(mask))
    np.testing.assert_allclose(masked, update_scale(before, jnp.array([1.0, 2.0, 4.0])), rtol=1e-6)


def test_a_batch_without_anything_changes_nothing():
    nothing = jnp.zeros(3, bool)
    assert update_scale(initial_scale(), jnp.ones(3), nothing) == initial_scale()
    before = update_scale(initial_scale(), jnp.array([1.0, 5.0]))
    assert update_scale(before, jnp.ones(3), nothing) == before


def test_the_first_reward_after_a_hundred_empty_batches_is_clipped():
    scale = initial_scale()
    for _ in range(100):
        scale = update_scale(scale, jnp.zeros(8))
    batch = jnp.zeros(32 * 1024).at[5].set(1.0)
    scale = update_scale(scale, batch)
    assert float(scaled(batch, scale, clip=None)[5]) == pytest.approx(1445, rel=0.01)
    np.testing.assert_array_equal(scaled(batch, scale), 10 * batch)
    np.testing.assert_array_equal(scaled(-batch, scale, clip=3.0), -3 * batch)


def test_a_constant_is_not_divided_by_zero():
    scale = update_scale(initial_scale(), jnp.zeros(4))
    assert float(deviation(scale)) == pytest.approx(1e-4)
    rounding = Scale(jnp.float32(1.0), jnp.float32(1.0 - 1e-6), jnp.float32(1.0))  # μ₂ < μ²
    assert float(deviation(rounding)) == pytest.approx(1e-4)


def test_zero_stays_zero_and_signs_stay():
    scale = update_scale(initial_scale(), jnp.array([10.0, 12.0]))
    np.testing.assert_allclose(scaled(jnp.array([0.0, 2.0, -2.0]), scale), [0.0, 2.0, -2.0], rtol=1e-5)


def test_a_floor_keeps_small_costs_small_and_large_rewards_at_unit_scale():
    costs = jnp.where(jnp.arange(1000) % 2, -0.0005, 0.0)
    alone = update_scale(initial_scale(), costs)
    np.testing.assert_allclose(scaled(costs, alone, smallest=1.0), costs)
    assert float(scaled(costs, alone).min()) == pytest.approx(-0.0005 / np.hypot(0.00025, 1e-4), rel=1e-3)
    large = update_scale(initial_scale(), 100.0 * jnp.arange(10.0))
    np.testing.assert_array_equal(scaled(costs, large, smallest=1.0), scaled(costs, large))
