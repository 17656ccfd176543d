"""What every decomposition objective promises, whatever its loss: one suite for all names."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.decomposition.objectives import Estimate, make_objective
from derex.decomposition.statistics import BatchStatistics, Half

NAMES = ["derex", "nested", "laplacian"]
CENTRED = ["derex", "nested"]  # see only what varies: the constant mode is taken out
B, K = 6, 3
COUNTS = np.array([[1, 0, 2, 1, 3, 1], [2, 1, 1, 0, 1, 0]])  # eight rows in all and five, not B


@pytest.fixture(params=NAMES)
def objective(request):
    return make_objective(request.param, K, 3.0)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def half_of(f, g, weights=None):
    """A half from NumPy arrays; under jit they are JAX's own."""
    return Half(f, g, weights)


def random_halves(seed):
    """Two halves as NumPy arrays, with weights: some rows count twice and some not at all."""
    f_1, g_1, f_2, g_2 = np.random.default_rng(seed).normal(size=(4, B, K)) + 0.5
    return [half_of(f_1, g_1, COUNTS[0].astype(float)), half_of(f_2, g_2, COUNTS[1].astype(float))]


@partial(jax.jit, static_argnums=0)
def differentiate(objective, first, second):
    """The estimate, and the gradients of its loss and of its statistics with respect to (f, g) of each half."""

    def estimate(outputs):
        (f_1, g_1), (f_2, g_2) = outputs
        return objective(Half(f_1, g_1, first.weights), Half(f_2, g_2, second.weights))

    def loss(outputs):
        return estimate(outputs).loss

    def statistics(outputs):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(estimate(outputs).statistics))

    outputs = ((first.f, first.g), (second.f, second.g))
    return estimate(outputs), jax.grad(loss)(outputs), jax.grad(statistics)(outputs)


def assert_close(found, wanted, rtol=1e-10, atol=1e-13):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), found, wanted)


# ------------------------------------------------------------------------------------- a value


@pytest.mark.parametrize("name", NAMES)
def test_equal_and_hashable_by_value(name):
    one, same = make_objective(name, K, 3.0), make_objective(name, K, 3.0)
    assert one is not same
    assert one == same
    assert hash(one) == hash(same)
    assert len({make_objective(other, K, 3.0) for other in NAMES}) == len(NAMES)
    assert (make_objective(name, K, 2.0) == one) == (name == "nested")  # it has no penalty to weigh


@pytest.mark.parametrize("name", NAMES)
def test_equal_objectives_share_a_compiled_function(name):
    traces = []

    @partial(jax.jit, static_argnums=0)
    def loss(objective, f):
        traces.append(objective)
        return objective(Half(f, f), Half(f, f)).loss

    for lambda_r in (3.0, 3.0, 2.0):
        loss.trace(make_objective(name, K, lambda_r), np.eye(K))
    assert len(traces) == (1 if name == "nested" else 2)


def test_says_whether_both_sides_share_a_network(objective):
    assert isinstance(objective.tied, bool)
    assert objective.tied is type(objective).tied


# ---------------------------------------------------------------------------------- an estimate


def test_estimate_is_a_scalar_and_statistics_of_both_sides(objective):
    estimate, _, _ = differentiate(objective, *random_halves(0))
    assert isinstance(estimate, Estimate)
    assert isinstance(estimate.statistics, BatchStatistics)
    assert estimate.loss.shape == ()
    shapes = [leaf.shape for leaf in jax.tree.leaves(estimate.statistics)]
    assert shapes == [(K,)] * 4 + [(K, K)]
    assert np.max(np.abs(estimate.statistics.sigma)) <= 1.0  # correlations
    assert np.min(estimate.statistics.f.variance) > 0.0


def test_loss_and_gradient_are_finite_at_every_corner(objective):
    """Random outputs, constant ones (no variance), all zero, one row, and a half of which no row counts."""
    first, second = random_halves(1)
    constant = half_of(np.full((B, K), 2.0), np.full((B, K), -3.0), first.weights)
    zero = half_of(np.zeros((B, K)), np.zeros((B, K)), first.weights)
    single = half_of(first.f, first.g, np.eye(B)[2])
    empty = half_of(first.f, first.g, np.zeros(B))
    for half in (first, constant, zero, single, empty):
        for pair in ((half, second), (second, half), (half, half)):
            for leaf in jax.tree.leaves(differentiate(objective, *pair)):
                assert np.all(np.isfinite(leaf))


def test_both_halves_move_both_networks(objective):
    """No gradient is silently zero, but for the rows that do not count."""
    _, gradients, _ = differentiate(objective, *random_halves(2))
    for counts, pair in zip(COUNTS, gradients, strict=True):
        for gradient in pair:
            np.testing.assert_array_equal(np.any(np.asarray(gradient) != 0, axis=1), counts > 0)


def test_statistics_carry_no_gradient(objective):
    _, _, of_statistics = differentiate(objective, *random_halves(3))
    for leaf in jax.tree.leaves(of_statistics):
        np.testing.assert_array_equal(leaf, np.zeros((B, K)))


# ----------------------------------------------------------------------------------- symmetries


def test_order_of_rows_does_not_matter(objective):
    halves = random_halves(5)
    orders = np.random.default_rng(5).permuted(np.tile(np.arange(B), (2, 1)), axis=1)
    shuffled = [half_of(*(np.asarray(z)[o] for z in h)) for h, o in zip(halves, orders, strict=True)]
    found, gradients, _ = differentiate(objective, *shuffled)
    wanted, unshuffled, _ = differentiate(objective, *halves)
    assert_close(found, wanted)
    assert_close(gradients, tuple(tuple(z[o] for z in h) for h, o in zip(unshuffled, orders, strict=True)))


def test_halves_can_be_swapped(objective):
    first, second = random_halves(6)
    found, gradients, _ = differentiate(objective, second, first)
    wanted, unswapped, _ = differentiate(objective, first, second)
    assert_close(found, wanted)
    assert_close(gradients, unswapped[::-1])


def test_weights_are_counts(objective):
    """Rows repeated as often as they count: the same estimate, and gradients that sum over the copies."""
    halves = random_halves(7)
    rows = [np.repeat(np.arange(B), counts) for counts in COUNTS]
    repeated = [half_of(h.f[r], h.g[r]) for h, r in zip(halves, rows, strict=True)]
    found, gradients, _ = differentiate(objective, *halves)
    wanted, of_copies, _ = differentiate(objective, *repeated)
    assert_close(found, wanted)
    for pair, copies, r in zip(gradients, of_copies, rows, strict=True):
        for gradient, copy in zip(pair, copies, strict=True):
            np.testing.assert_allclose(gradient, np.eye(B)[r].T @ np.asarray(copy), rtol=1e-10, atol=1e-13)


def test_rows_of_weight_zero_influence_nothing(objective):
    halves = random_halves(8)
    masked = [(counts > 0)[:, None] for counts in COUNTS]
    other = [
        half_of(np.where(m, h.f, 1e3), np.where(m, h.g, -1e4), h.weights)
        for h, m in zip(halves, masked, strict=True)
    ]
    assert_close(differentiate(objective, *other), differentiate(objective, *halves))


@pytest.mark.parametrize("name", CENTRED)
def test_constants_added_to_f_or_g_change_neither_loss_nor_gradient(name):
    objective = make_objective(name, K, 3.0)
    halves = random_halves(9)
    c = np.array([5.0, -2.0, 0.5])
    moved = [half_of(h.f + c, h.g - 3.0 * c, h.weights) for h in halves]
    found, gradients, _ = differentiate(objective, *moved)
    wanted, unmoved, _ = differentiate(objective, *halves)
    assert_close(found.loss, wanted.loss)
    assert_close(found.statistics.sigma, wanted.statistics.sigma)
    assert_close(found.statistics.f.mean, wanted.statistics.f.mean + c)
    assert_close(gradients, unmoved, rtol=1e-9)


# ------------------------------------------------------------------------------ transformations


def test_several_problems_at_once_are_the_problems_one_by_one(objective):
    problems = [random_halves(seed) for seed in (10, 11)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *problems)
    together = jax.jit(jax.vmap(objective))(*stacked)
    for index, problem in enumerate(problems):
        alone, _, _ = differentiate(objective, *problem)
        assert_close(jax.tree.map(lambda leaf, i=index: np.asarray(leaf)[i], together), alone)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_is_that_of_the_outputs(objective, dtype):
    with jax.enable_x64(dtype == np.float64):
        found = jax.eval_shape(partial(differentiate, objective), *jax.tree.map(dtype, random_halves(12)))
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype(dtype)}
