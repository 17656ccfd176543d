"""The limit on standardised features: common states are untouched, a single rare one takes nothing over."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.decomposition.objectives import DeRexObjective, make_objective
from derex.decomposition.statistics import Half, batch_normalise, clip_outputs, sigma_hat

K = 3


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def halves(seed: int, rows: int = 40) -> list[Half]:
    outputs = np.random.default_rng(seed).normal(size=(2, 2, rows, K))
    return [Half(jnp.asarray(f), jnp.asarray(g), None) for f, g in outputs]


def test_cut_at_both_ends_and_not_at_all():
    z = jnp.asarray([[-7.0, 0.5, 6.5]])
    np.testing.assert_array_equal(clip_outputs(z, 6.0), [[-6.0, 0.5, 6.0]])
    assert clip_outputs(z, np.inf) is z


@pytest.mark.parametrize("seed", range(5))
def test_no_feature_exceeds_one_over_the_root_of_the_visitation(seed):
    """E[f_i²] = 1 allows |f_i(s)| ≤ d(s)^-½, hence a limit there or above changes neither loss nor gradient."""
    rng = np.random.default_rng(seed)
    d = rng.dirichlet(np.full(12, 0.3))
    f = rng.standard_cauchy(size=(12, K))  # as far from even as they come
    normal, _ = batch_normalise(jnp.asarray(f), jnp.asarray(d * 1e6), epsilon=0.0)
    assert np.all(np.abs(normal) <= d[:, None] ** -0.5 * (1 + 1e-9))


def test_a_limit_that_nothing_reaches_changes_nothing():
    first, second = halves(0)

    def loss(objective, f):
        return objective(Half(f, first.g, None), second).loss

    wide, none = DeRexObjective(limit=len(first.f) ** 0.5), DeRexObjective()
    assert loss(wide, first.f) == loss(none, first.f)
    np.testing.assert_array_equal(
        jax.grad(loss, argnums=1)(wide, first.f), jax.grad(loss, argnums=1)(none, first.f)
    )


def test_one_rare_row_does_not_take_sigma_over():
    """A row far from all others makes all features alike: unlimited, Σ̂ is full of ones; clipped, it hardly shows."""
    first, _ = halves(1, rows=4000)
    f, g = (z.at[0].add(1e4) for z in (first.f, first.g))
    unlimited = sigma_hat(batch_normalise(f)[0], batch_normalise(g)[0])
    np.testing.assert_allclose(unlimited, np.ones((K, K)), atol=0.01)
    cut_f, cut_g = (clip_outputs(batch_normalise(z)[0], 6.0) for z in (f, g))
    assert np.max(np.abs(sigma_hat(cut_f, cut_g))) < 0.02


def test_beyond_the_limit_the_gradient_leads_back():
    """The only way to a larger Σ̂ is through the statistics: to less of the row that makes up all the variance."""
    first, second = halves(2, rows=400)
    f = g = first.f.at[0, 0].set(50.0)  # everything else in f and g agrees, but does not show beside that row

    def loss(f):
        return DeRexObjective(0.0, limit=6.0)(Half(f, g, None), second).loss

    assert jax.grad(loss)(f)[0, 0] > 0


def test_the_objective_of_that_name_has_the_limit():
    assert make_objective("derex", 4, 10.0, 6.0) == DeRexObjective(10.0, limit=6.0)
