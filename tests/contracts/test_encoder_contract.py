"""What every named encoder promises: one suite for all entries of the table."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.decomposition.objectives import make_objective
from derex.estimators.data import GivenRows
from derex.estimators.fitting import init_fit_state, train_chunk
from derex.estimators.networks import Networks, make_identity_side
from derex.networks import ENCODERS, InputSpec
from derex.networks.layers import Fixed, trainable_mask

K, ROWS = 3, 12


def example(kind):
    """A specification and rows that fit it."""
    rng = np.random.default_rng(0)
    if kind == "ids":
        return InputSpec((), 6), rng.integers(0, 5, ROWS).astype(np.int32)
    shape = {"vectors": (4,), "images": (5, 6, 2)}[kind]
    return InputSpec(shape), 3.0 + 2.0 * rng.normal(size=(ROWS, *shape)).astype(np.float32)


@pytest.fixture(params=ENCODERS, scope="module")
def name(request):
    return request.param


@pytest.fixture(scope="module")
def spec_and_rows(name):
    return example(ENCODERS[name].inputs)


@pytest.fixture(scope="module")
def network(name, spec_and_rows):
    built = ENCODERS[name].build(jax.random.key(0), spec_and_rows[0], K)
    return built.prepared(spec_and_rows[1]) if hasattr(built, "prepared") else built


@pytest.fixture(scope="module")
def outputs(network, spec_and_rows):
    return jax.jit(jax.vmap(network))(jnp.asarray(spec_and_rows[1]))


def fixed_parts(tree):
    leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Fixed))
    return [leaf.value for leaf in leaves if isinstance(leaf, Fixed)]


def same(a, b):
    return jax.tree.all(
        jax.tree.map(lambda u, v: bool(jnp.array_equal(u, v)), *(eqx.filter(t, eqx.is_array) for t in (a, b)))
    )


def test_one_observation_gives_k_finite_numbers(network, spec_and_rows):
    out = network(jnp.asarray(spec_and_rows[1][0]))
    assert out.shape == (K,)
    assert out.dtype == jnp.float32
    assert np.all(np.isfinite(out))


def test_a_batch_is_its_rows(network, outputs, spec_and_rows):
    """The same under jit and vmap as one at a time, and in any order."""
    rows = jnp.asarray(spec_and_rows[1])
    np.testing.assert_allclose(outputs[3], network(rows[3]), rtol=1e-4, atol=1e-5)
    order = np.random.default_rng(1).permutation(ROWS)
    np.testing.assert_allclose(jax.jit(jax.vmap(network))(rows[order]), outputs[order], rtol=1e-4, atol=1e-5)


def test_outputs_vary_with_the_input(outputs):
    assert np.all(np.std(outputs, axis=0) > 0.0)


def test_building_is_deterministic(name, spec_and_rows):
    first, again, other = (
        ENCODERS[name].build(jax.random.key(seed), spec_and_rows[0], K) for seed in (0, 0, 1)
    )
    assert same(first, again)
    assert not same(first, other)


def test_features_are_what_the_last_layer_reads(network, outputs, spec_and_rows):
    """Outputs are an affine function of `features`."""
    if not hasattr(network, "features"):
        pytest.skip("a table has no features: its ids are remembered one by one")
    features = jax.vmap(network.features)(jnp.asarray(spec_and_rows[1]))
    wanted = features @ network.out.weight.T + network.out.bias
    np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-5)


def test_gradients_are_finite_and_reach_every_parameter(network, spec_and_rows):
    params, fixed = eqx.partition(network, trainable_mask(network))
    rows = jnp.asarray(spec_and_rows[1])

    @jax.jit
    def gradient(params):
        return jax.grad(lambda p: jnp.sum(jnp.sin(jax.vmap(eqx.combine(p, fixed))(rows))))(params)

    leaves = jax.tree.leaves(gradient(params))
    assert len(leaves) > 0
    assert all(np.all(np.isfinite(leaf)) and np.any(leaf != 0.0) for leaf in leaves)


def test_training_moves_the_parameters_and_nothing_else(name, network, spec_and_rows):
    sides = [
        make_identity_side(network, K),
        make_identity_side(ENCODERS[name].build(jax.random.key(1), spec_and_rows[0], K), K),
    ]
    state = init_fit_state(Networks(*sides), K)
    rows = jnp.asarray(spec_and_rows[1])
    items = (rows[None], rows[::-1][None])
    trained, progress = train_chunk(make_objective("derex", K), GivenRows(), state, items, jnp.full(1, 1e-2))
    assert bool(progress.finite)
    before, after = fixed_parts(state.networks), fixed_parts(trained.networks)
    assert len(before) >= 4  # mean and spread of both sides, and what the encoders add
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    moved = [
        not np.array_equal(a, b)
        for a, b in zip(
            *(jax.tree.leaves(eqx.filter(s.networks, trainable_mask(s.networks))) for s in (state, trained)),
            strict=True,
        )
    ]
    assert all(moved)


def test_preparing_sets_fixed_parts_only_from_the_data(name, spec_and_rows):
    spec, rows = spec_and_rows
    built = ENCODERS[name].build(jax.random.key(0), spec, K)
    if not hasattr(built, "prepared"):
        pytest.skip("nothing to prepare")
    prepared = built.prepared(rows)
    assert not all(
        np.array_equal(a, b) for a, b in zip(fixed_parts(built), fixed_parts(prepared), strict=True)
    )
    assert same(prepared, built.prepared(rows[::-1].copy()))  # whatever their order
    assert jax.tree.structure(prepared) == jax.tree.structure(built)
