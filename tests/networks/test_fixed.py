"""Parts that are set from data once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.networks import Tabular
from derex.networks.encoders import count_ids
from derex.networks.layers import Fixed, Standardise, iterate_blocks, trainable_mask

ROWS = np.array([[0.0, 5.0, 7.0], [4.0, 5.0, -1.0], [2.0, 5.0, 3.0]])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8])
def test_standardise_spans_one_unit(dtype):
    scale = Standardise(3).prepared(ROWS.astype(dtype))
    scaled = jax.vmap(scale)(jnp.asarray(ROWS, jnp.float32))
    np.testing.assert_allclose(scaled, [[-1, 0, 1], [1, 0, -1], [0, 0, 0]], atol=1e-6)


def test_bytes_are_read_by_their_values():
    rows = np.array([[0, 10], [200, 30]], np.uint8)
    scaled = jax.vmap(Standardise(2).prepared(rows))(jnp.asarray(rows))
    np.testing.assert_allclose(scaled, [[-1, -1], [1, 1]], atol=1e-6)


def test_blocks_and_counts_do_not_depend_on_the_size_of_a_block(monkeypatch):
    ids = np.random.default_rng(0).integers(0, 5, 100)
    monkeypatch.setattr("derex.networks.layers.BLOCK_BYTES", 24)
    assert [len(block) for block in iterate_blocks(ids)] == [3] * 33 + [1]
    np.testing.assert_array_equal(count_ids(ids, 7), np.bincount(ids, minlength=7))
    prepared = Standardise(3).prepared(ROWS)
    np.testing.assert_allclose(prepared.mean.value, ROWS.mean(axis=0))


def test_a_table_is_scaled_by_its_visits_and_starts_the_same():
    table = Tabular(4, 2, key=jax.random.key(0))
    prepared = table.prepared(np.array([0, 0, 0, 1, 2, 2, 2, 2]))
    np.testing.assert_allclose(prepared.scale.value[:, 0], np.sqrt(8 / np.array([3, 1, 4, 1])), rtol=1e-6)
    states = jnp.arange(4)
    np.testing.assert_allclose(jax.vmap(prepared)(states), jax.vmap(table)(states), rtol=1e-6)


def test_what_is_trained():
    tree = {"a": jnp.ones(2), "b": Fixed(jnp.ones(2)), "c": jnp.arange(3), "d": 1.5, "e": None}
    assert jax.tree.leaves(trainable_mask(tree)) == [True, False, False, False]
