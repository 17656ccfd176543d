"""Batches of trajectories: what an update draws, and what networks say of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex import exact
from derex.estimators import data as sources
from derex.estimators.data import StreamData, trajectories_to_device
from derex.estimators.networks import make_networks
from derex.estimators.trajectories import (
    check_trajectories,
    compute_fingerprint,
    deduplicate,
    make_stream_spec,
)
from derex.networks.histories import BoundedTests, NextHistory, TestsToEnd, count_steps_left, read_backwards
from derex.networks.recurrent import LSTM
from derex.types import Indexed, Trajectories

B, T, K = 7, 8, 2
RNG = np.random.default_rng(0)
INDEX = RNG.integers(0, 4, (B, T))
TABLE = RNG.normal(size=(4, 3)).astype(np.float32)
FIRST = np.zeros((B, T), bool)
FIRST[:, 0] = True
FIRST[2, 4] = True
VALID = np.arange(T) < np.array([8, 5, 8, 7, 8, 1, 6])[:, None]
X = check_trajectories(Trajectories(TABLE[INDEX], RNG.integers(0, 3, (B, T)), FIRST, VALID))
LEFT = np.asarray(count_steps_left(jnp.asarray(X.first), jnp.asarray(X.valid)))
FUTURES = {"bounded": BoundedTests(3), "to the end": TestsToEnd(), "next": NextHistory()}


def data_of(X=X, future=FUTURES["bounded"], batch_size=4, seed=5, useful=(0, 1, 2, 3, 4, 6)):
    return StreamData(X, np.asarray(useful, np.int32), future, batch_size, seed)


@pytest.fixture(scope="module")
def networks():
    return make_networks("auto", make_stream_spec(X, None), 8, K, False, True, jax.random.key(0))


def same(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


# ------------------------------------------------------------------------------------- what is drawn


def test_draws_depend_on_the_number_of_the_update_alone():
    data = data_of()
    whole = data.items(0, 6)
    same(data.items(2, 3), jax.tree.map(lambda leaf: leaf[2:5], whole))
    same(data_of().items(0, 6), whole)
    other = data_of(seed=6).items(0, 6)
    assert not np.array_equal(other.trajectories.observation, whole.trajectories.observation)
    assert not np.array_equal(*whole.trajectories.previous_action[:2])  # two updates, two draws


def test_draws_are_uniform_over_the_useful_streams():
    numbered = X._replace(previous_action=np.repeat(np.arange(B, dtype=np.int32)[:, None], T, axis=1))
    drawn = data_of(numbered, useful=(0, 2, 6), batch_size=8).items(0, 300)
    numbers, counts = np.unique(drawn.trajectories.previous_action[:, :, 0], return_counts=True)
    assert numbers.tolist() == [0, 2, 6]
    np.testing.assert_allclose(counts / 2400, 1 / 3, atol=0.04)  # four standard deviations
    np.testing.assert_allclose(np.bincount(np.ravel(drawn.phase)) / 2400, 1 / 3, atol=0.04)
    first, second = (np.asarray(drawn.trajectories.previous_action)[:, half, 0] for half in (0, 4))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.25  # the halves are independent


def test_a_sample_holds_each_useful_stream_once():
    numbered = X._replace(previous_action=np.repeat(np.arange(B, dtype=np.int32)[:, None], T, axis=1))

    def numbers(most):
        batches = data_of(numbered).sample(most)
        assert all(len(batch.phase) <= 4 for batch in batches)
        return [int(n) for batch in batches for n in batch.trajectories.previous_action[:, 0]]

    assert numbers(99) == [0, 1, 2, 3, 4, 6]
    some = numbers(5)
    assert len(set(some)) == 5
    assert set(some) <= {0, 1, 2, 3, 4, 6}
    assert numbers(5) == some


def test_batches_are_even_and_chunks_bounded(monkeypatch):
    assert data_of(batch_size=5).batch_size == 4
    assert data_of().chunk == 100
    update = 4 * T * (3 * 4 + 4 + 1 + 1)  # bytes: numbers, action and two flags of each step
    monkeypatch.setattr(sources, "STREAM_CHUNK_BYTES", 7 * update + 1)
    assert data_of().chunk == 7
    monkeypatch.setattr(sources, "STREAM_CHUNK_BYTES", 1)
    assert data_of().chunk == 1


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("uint8", "uint8"),
        ("bool", "bool"),
        ("int64", "int32"),
        ("uint16", "int32"),
        ("float64", "float32"),
        ("float16", "float32"),
    ],
)
def test_types_on_the_device(given, read):
    values = np.array([[0, 1, 1]]).astype(given)
    moved = trajectories_to_device(Trajectories({"a": values}, values, values > 0, values > 0))
    assert {str(moved.observation["a"].dtype), str(moved.previous_action.dtype)} == {read}
    np.testing.assert_array_equal(moved.previous_action, values)


# ------------------------------------------------------------------------------------- what is read


def pairs_by_hand(networks, batch, future):
    """f(h_t) and g(τ_t) of every pair that counts, each history and each test read from scratch."""
    read = jax.jit(networks.forward.__call__), jax.jit(networks.reverse.__call__)
    embedded = networks.embed(batch.trajectories)
    first, valid, phase = (np.asarray(a) for a in (*batch.trajectories[2:], batch.phase))
    left = np.asarray(count_steps_left(jnp.asarray(first), jnp.asarray(valid)))
    f, g = [], []
    for b, t in zip(*np.nonzero(left >= future.needs), strict=True):
        start = np.flatnonzero(first[b, : t + 1])[-1]
        if isinstance(future, BoundedTests):
            end = next(e for e in range(t + 1, T + 3) if (e - phase[b]) % future.longest == 0)
        else:
            end = t + left[b, t]
        rows = embedded.history[b, start : t + 1], embedded.test[b, t + 1 : end + 1][::-1]
        belief, test = (
            lstm(each[:, None], jnp.ones((len(each), 1)), networks.forward.initial(1))[0][-1, 0]
            for lstm, each in zip(read, rows, strict=True)
        )
        f.append(networks.f(belief))
        g.append(networks.g(test))
    return np.stack(f), np.stack(g)


@pytest.mark.parametrize("name", ["bounded", "to the end"])
def test_pairs_that_count(networks, name):
    data = data_of(future=FUTURES[name], batch_size=6)
    (batch,) = data.sample(6)
    f, g, _ = data.encode_sample(networks, 6)
    assert len(f) == np.sum(LEFT[data.useful] >= FUTURES[name].needs)
    wanted_f, wanted_g = pairs_by_hand(networks, batch, FUTURES[name])
    np.testing.assert_allclose(f, wanted_f, atol=1e-6)
    np.testing.assert_allclose(g, wanted_g, atol=1e-6)


def test_next_histories(networks):
    data = data_of(future=NextHistory(), batch_size=6)
    (batch,) = data.sample(6)
    f, g, counted = (np.asarray(a) for a in data.source.encode(batch, networks))
    np.testing.assert_allclose(g[:, :-1], f[:, 1:], atol=1e-6)
    np.testing.assert_array_equal(counted, LEFT[data.useful, :-1] >= 1)


def test_halves_are_the_batch_cut_in_two(networks):
    data = data_of()
    item = jax.tree.map(lambda leaf: leaf[0], data.items(0, 1))
    f, g, counted = data.source.encode(item, networks)
    for half, rows in zip(data.source.halves(item, networks), (slice(0, 2), slice(2, 4)), strict=True):
        np.testing.assert_array_equal(half.f, f[rows].reshape(-1, K))
        np.testing.assert_array_equal(half.g, g[rows].reshape(-1, K))
        np.testing.assert_array_equal(half.weights, counted[rows].ravel())


def test_repeated_observations_are_what_they_stand_for(networks):
    indexed = check_trajectories(X._replace(observation=Indexed(TABLE, INDEX)))
    plain, stored = data_of(), data_of(indexed)
    same(stored.items(0, 2).phase, plain.items(0, 2).phase)
    assert stored.items(0, 2).trajectories.observation.shape == (2, 4, T)
    for a, b in zip(plain.encode_sample(networks, 9)[:2], stored.encode_sample(networks, 9)[:2], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_distinct_observations_are_stored_once():
    stored = deduplicate(X, most=5)  # four rows and the zeros of the padding
    assert len(stored.observation.values) == 5
    np.testing.assert_array_equal(stored.observation.values[stored.observation.index], X.observation)
    assert deduplicate(X, most=4) is X
    parts = X._replace(observation={"a": X.observation, "b": X.observation})
    assert deduplicate(parts, most=99) is parts


def test_fingerprints_tell_any_change():
    changed = [
        X._replace(observation=X.observation + np.float32(1e-6)),
        X._replace(previous_action=X.previous_action + 1),
        X._replace(first=X.valid),
        X._replace(valid=X.first),
        X._replace(observation=X.observation.view(np.int32)),
        X.rows(slice(1, None)),
    ]
    copy = jax.tree.map(np.copy, X)
    assert compute_fingerprint(copy) == compute_fingerprint(X)
    assert len({compute_fingerprint(each) for each in [X, *changed]}) == 7


# ------------------------------------------------------------------------------------- clocks


class Counter(LSTM):
    """Counts the steps it has read."""

    def __init__(self):
        super().__init__(1, 1, key=jax.random.key(0))

    def __call__(self, inputs, keep, memory):
        counts = []
        for kept in keep:
            counts.append((counts[-1] if counts else 0.0) * kept + 1.0)
        return jnp.stack(counts)[..., None], memory


@pytest.mark.parametrize(("name", "clocks"), [("to the end", 5), ("bounded", 0)])
def test_tests_to_the_end_of_equal_episodes_are_clocks(name, clocks):
    """The joint of t and the length of its test, over every phase: all of t is told by it, or nothing."""
    steps, future = 7, FUTURES[name]
    phases = np.arange(3) if name == "bounded" else future.draw_on_host(RNG, 3, steps)
    left = jnp.tile(jnp.arange(steps)[::-1], (3, 1))
    counter = Counter()
    options = {"longest": 3} if name == "bounded" else {"longest": steps, "segments": 1}
    lengths = read_backwards(counter, jnp.zeros((3, steps, 1)), left, jnp.asarray(phases), **options)
    counted = np.asarray(left[:, :-1] >= future.needs)
    t, length = np.tile(np.arange(steps - 1), (3, 1))[counted], np.asarray(lengths)[:, 1:, 0][counted]
    sigma = exact.decompose(
        exact.empirical_joint(t, length.astype(int) - 1, steps - 1, steps - 1)
    ).singular_values
    assert np.sum(sigma > 1 - 1e-9) == clocks
    assert np.sum(sigma > 1e-9) == clocks
