"""Mistakes that reviewers made on purpose, and what the estimator must say or do about them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from derex import DeRex, exact


def small(**options):
    return DeRex(**{"k": 2, "encoder": "linear", "steps": 5, "batch_size": 32, "random_state": 0} | options)


@pytest.mark.parametrize("spoil", [lambda x: x + 1e9, lambda x: x * 1e-300])
def test_variation_that_single_precision_loses_is_refused(vectors, spoil):
    x, y = (side.astype(np.float64) for side in vectors)
    with pytest.raises(ValueError, match=r"X: column 0 varies by .* Centre and scale"):
        small().fit(spoil(x), y)


def test_sparse_matrices_are_refused(vectors):
    with pytest.raises(TypeError, match=r"toarray|[Ss]parse"):
        small().fit(scipy.sparse.csr_matrix(vectors[0]), vectors[1])


def test_a_stream_cannot_have_more_features_than_states():
    ids = np.arange(60) % 5
    with pytest.raises(ValueError, match="k: expected less than the 5 states"):
        small(k=5, encoder="tabular", n_states=5).partial_fit(ids, (ids + 1) % 5)


def test_streaming_after_a_fit_keeps_what_the_fit_saw(vectors):
    x, y = vectors
    model = small().fit(x, y)
    far = 100.0 * np.ones((1, x.shape[1]), np.float32)
    guard = type(model._guards.x)
    model.partial_fit(x, y)
    assert type(model._guards.x) is guard
    assert np.isfinite(model.bonus(far)).all()


def test_a_function_with_the_wrong_arguments_is_named(vectors):
    with pytest.raises(TypeError, match=r"encoder: a function is called as encoder\(key, shape, k\)"):
        small(encoder=lambda x: x).fit(*vectors)


@pytest.mark.parametrize("k", [2.0, "2", True])
def test_exact_names_a_k_that_is_no_integer(k):
    with pytest.raises((TypeError, ValueError), match="k"):
        exact.decompose(np.full((4, 4), 1 / 16), k)


def test_parameters_changed_after_training_do_not_spoil_the_file(vectors, tmp_path):
    model = small().fit(*vectors)
    before = model.transform(vectors[0])
    model.set_params(k=5, encoder="mlp").save(tmp_path / "m.derex")
    loaded = DeRex.load(tmp_path / "m.derex")
    assert (loaded.k, loaded.encoder) == (2, "linear")
    np.testing.assert_array_equal(loaded.transform(vectors[0]), before)


class Half(eqx.Module):
    weight: jax.Array

    def __call__(self, x):
        return (x.astype(jnp.bfloat16) @ self.weight).astype(jnp.float32)


def test_reduced_precision_modules_survive_a_file(vectors, tmp_path):
    def build(key, shape, k):
        return Half(jax.random.normal(key, (*shape, k), jnp.bfloat16))

    model = small(encoder=build).fit(*vectors)
    model.save(tmp_path / "m.derex")
    loaded = DeRex.load(tmp_path / "m.derex", encoder=build)
    np.testing.assert_array_equal(loaded.transform(vectors[0]), model.transform(vectors[0]))
