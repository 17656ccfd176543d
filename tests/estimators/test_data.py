"""Where training pairs come from: every way to draw them means the same data set."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex import DeRex
from derex.decomposition.objectives import DeRexObjective, combined_loss
from derex.decomposition.statistics import sigma_hat
from derex.estimators import data as sources
from derex.estimators.data import (
    AllPairs,
    GivenRows,
    PairData,
    Rows,
    draw,
    find_distinct_rows,
    fits_device,
    is_memory_mapped,
    map_rows,
)

K, HALF = 2, 16


def pair_data(x, y, batch_size=2 * HALF, dtype="float32"):
    return PairData(x, y, (dtype, dtype), batch_size, np.random.default_rng(0), jax.random.key(0))


@pytest.fixture(scope="module")
def repeated():
    """50 pairs of 5 different vectors, in 9 combinations."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 3)).astype(np.float32)
    ids = np.stack([rng.integers(0, 3, 50), rng.integers(0, 3, 50)])
    return rows[ids[0]], rows[ids[1] + 2]


class Maps(NamedTuple):
    """What a source of pairs asks of networks."""

    f: eqx.nn.Linear
    g_or_f: eqx.nn.Linear


@pytest.fixture(scope="module")
def linear_maps():
    return Maps(*(eqx.nn.Linear(3, K, key=jax.random.key(i)) for i in range(2)))


# ------------------------------------------------------------------------------------- all pairs at once


def test_all_pairs_are_the_expectations_of_the_data_set(repeated, linear_maps):
    x, y = repeated
    data = pair_data(x, y)
    assert isinstance(data.source, AllPairs)
    assert data.source.counts.sum() == 50
    assert len(data.source.counts) == len(np.unique(np.hstack([x, y]), axis=0)) < 10
    first, second = data.source.halves(None, linear_maps)
    f, g = (np.asarray(jax.vmap(m)(rows)) for m, rows in zip(linear_maps, (x, y), strict=True))
    for half in (first, second):
        np.testing.assert_allclose(sigma_hat(*half), f.T @ g / 50, rtol=1e-5, atol=1e-6)


def test_a_step_on_all_pairs_descends_the_exact_loss(repeated, linear_maps):
    """∂L̂ with double sampling equals ∂L(Σ) of the full data set: there is nothing left to estimate."""
    x, y = repeated
    source, objective = pair_data(x, y).source, DeRexObjective(3.0)

    def standardised(z):
        return (z - z.mean(axis=0)) / jnp.sqrt(z.var(axis=0) + 1e-5)

    def exact_loss(maps):
        f, g = (standardised(jax.vmap(m)(rows)) for m, rows in zip(maps, (x, y), strict=True))
        return combined_loss(sigma_hat(f, g), 3.0)

    got = jax.jit(jax.grad(lambda maps: objective(*source.halves(None, maps)).loss))(linear_maps)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        got,
        jax.jit(jax.grad(exact_loss))(linear_maps),
    )


def test_drawn_rows_have_all_pairs_as_their_expectation(repeated, linear_maps):
    x, y = repeated
    whole, _ = pair_data(x, y).source.halves(None, linear_maps)
    source = Rows(jnp.asarray(x), jnp.asarray(y), None, None)
    numbers = draw(jax.random.key(0), 0, 50, steps=400, half=HALF)

    def drawn(item):
        first, second = source.halves(item, linear_maps)
        return sigma_hat(*first), sigma_hat(*second)

    first, second = map(np.asarray, jax.vmap(drawn)(numbers))
    error = first.std(axis=0) / np.sqrt(400)
    for half in (first, second):
        assert np.all(np.abs(half.mean(axis=0) - np.asarray(sigma_hat(*whole))) < 4 * error)
    correlation = [np.corrcoef(first[:, i, j], second[:, i, j])[0, 1] for i in range(K) for j in range(K)]
    assert np.abs(correlation).max() < 0.2  # the halves are independent


@pytest.mark.parametrize("most", [3, 100], ids=["stored as they are", "stored once"])
def test_stored_once_or_as_they_are_the_halves_are_the_same(repeated, linear_maps, most):
    x, y = repeated
    numbers = draw(jax.random.key(1), 0, 50, steps=1, half=HALF)[0]
    found = [find_distinct_rows(side, most) for side in (x, y)]
    stored = [side if one is None else side[one.first] for side, one in zip((x, y), found, strict=True)]
    ids = [None if one is None else jnp.asarray(one.inverse) for one in found]
    halves = Rows(*map(jnp.asarray, stored), *ids).halves(numbers, linear_maps)
    wanted = GivenRows().halves((jnp.asarray(x[numbers]), jnp.asarray(y[numbers])), linear_maps)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), halves, wanted)


# ------------------------------------------------------------------------------------- drawing


def test_draws_are_uniform_and_do_not_depend_on_the_chunk():
    key = jax.random.key(0)
    whole = draw(key, 0, 7, steps=300, half=8)
    assert whole.shape == (300, 16)
    np.testing.assert_array_equal(draw(key, 10, 7, steps=5, half=8), whole[10:15])
    frequency = np.bincount(np.ravel(whole), minlength=7) / whole.size
    np.testing.assert_allclose(frequency, 1 / 7, atol=0.02)


# ------------------------------------------------------------------------------------- distinct rows

ROWS: dict[str, np.ndarray] = {
    "ids": np.array([4, 1, 4, 4, 0, 1]),
    "negative": np.array([-4, 1, -4, -4, 0, 1], np.int8),
    "vectors": np.array([[0.5, 1], [2, 3], [0.5, 1], [0.5, 1], [0, 0], [2, 3]], np.float32),
    "images": np.stack([np.full((2, 3, 1), v, np.uint8) for v in (4, 1, 4, 4, 0, 1)]),
    "fortran": np.asfortranarray(np.array([[0.5, 1], [2, 3], [0.5, 1], [0.5, 1], [0, 0], [2, 3]])),
    "booleans": np.array([[0, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0], [0, 1, 0]], bool),
}


@pytest.mark.parametrize("name", ROWS)
def test_distinct_rows(name):
    rows = ROWS[name]
    found = find_distinct_rows(rows, most=3)
    assert found is not None
    assert len(found.first) == 3
    np.testing.assert_array_equal(rows[found.first][found.inverse], rows)
    assert find_distinct_rows(rows, most=2) is None


def test_distinct_rows_stop_reading_once_there_are_too_many(monkeypatch):
    read = []
    monkeypatch.setattr(sources, "HASH_ROWS", 10)
    hashed = sources.hash_rows
    monkeypatch.setattr(
        sources, "hash_rows", lambda block, *rest: read.append(len(block)) or hashed(block, *rest)
    )
    assert find_distinct_rows(np.arange(1000.0).reshape(500, 2), most=25) is None
    assert read == [10, 10, 10]


def test_rows_whose_codes_collide_are_not_taken_for_equal(monkeypatch):
    monkeypatch.setattr(sources, "hash_rows", lambda block, *_: np.zeros(len(block), np.uint64))
    assert find_distinct_rows(np.arange(6.0).reshape(3, 2), most=3) is None
    assert find_distinct_rows(np.ones((3, 2)), most=3) is not None


def test_codes_of_similar_rows_differ():
    pictures = np.zeros((2000, 7, 9, 3), np.uint8)
    pictures.reshape(2000, -1)[np.arange(2000), np.arange(2000) % 189] = 1 + np.arange(2000) // 189
    found = find_distinct_rows(pictures, most=2000)
    assert found is not None
    assert len(found.first) == 2000


# ------------------------------------------------------------------------------------- memory maps


@pytest.fixture
def mapped(tmp_path, vectors):
    """The same vectors in files."""
    found = []
    for name, side in zip("xy", vectors, strict=True):
        np.save(tmp_path / f"{name}.npy", side)
        found.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    return found


def test_a_memory_map_is_recognised_through_views(mapped, vectors):
    assert is_memory_mapped(mapped[0][5:, ::2])
    assert is_memory_mapped(np.asarray(mapped[0]).reshape(-1, 1))
    assert not is_memory_mapped(vectors[0])
    assert not fits_device((vectors[0], mapped[1]), ("float32", "float32"))
    assert fits_device(vectors, ("float32", "float32"))


def test_data_larger_than_the_accelerators_share_stays_on_the_host(vectors, monkeypatch):
    class Device:
        def memory_stats(self):
            return {"bytes_limit": 3500, "bytes_in_use": 1000}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert fits_device((vectors[0],), ("float32",))  # 720 bytes of 0.4 · 2500
    assert not fits_device(vectors, ("float32", "float32"))  # 1200
    assert fits_device(vectors, ("uint8", "uint8"))


def test_draw_by_draw_a_memory_map_trains_like_an_array(mapped, vectors, monkeypatch):
    monkeypatch.setattr("derex.estimators.data.find_distinct_rows", lambda *_, **__: None)
    options = {"k": 2, "encoder": "linear", "steps": 20, "batch_size": 32, "random_state": 0}
    device, host = DeRex(**options).fit(*vectors), DeRex(**options).fit(*mapped)
    np.testing.assert_allclose(host.transform(vectors[0]), device.transform(vectors[0]), atol=1e-4)
    np.testing.assert_allclose(host.sigma_, device.sigma_, atol=1e-5)


def test_items_of_a_memory_map_are_the_drawn_rows(mapped, vectors):
    data = pair_data(*mapped)
    assert isinstance(data.source, GivenRows)
    x, y = data.items(3, 4)
    numbers = draw(jax.random.key(0), 3, 60, steps=4, half=HALF)
    np.testing.assert_array_equal(x, vectors[0][numbers])
    np.testing.assert_array_equal(y, vectors[1][numbers])


def test_memory_mapped_ids(tmp_path, chain):
    np.save(tmp_path / "ids.npy", np.stack([chain.x, chain.y], axis=1))
    ids = np.load(tmp_path / "ids.npy", mmap_mode="r")
    options = {"k": 2, "encoder": "tabular", "steps": 20, "batch_size": 256, "random_state": 0}
    model = DeRex(**options).fit(ids[:, 0], ids[:, 1])
    assert model.transform(np.arange(8)).shape == (8, 2)
    assert model.score(chain.x, chain.y) > 0.1


# ------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize("n", [1, 127, 128, 129, 300])
def test_mapping_rows_in_blocks_is_mapping_rows(n, linear_maps, monkeypatch):
    monkeypatch.setattr("derex.estimators.data.BLOCK_ROWS", 128)
    rows = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    wanted = rows @ np.asarray(linear_maps[0].weight).T + np.asarray(linear_maps[0].bias)
    np.testing.assert_allclose(map_rows(linear_maps[0], rows, "float32"), wanted, rtol=1e-5, atol=1e-5)
    numbers = np.arange(n)[::-2]
    np.testing.assert_allclose(
        map_rows(linear_maps[0], rows, "float32", numbers), wanted[numbers], rtol=1e-5, atol=1e-5
    )
