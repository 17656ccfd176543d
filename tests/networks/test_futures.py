"""Where tests end: every mask of a short stream, every phase, against plain loops.

The lengths of tests are measured, not derived: a reverse LSTM whose weights are set by hand counts the steps it reads.
"""

from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.networks.histories import (
    BoundedTests,
    Embedded,
    Embedding,
    Future,
    HistoryNetworks,
    NextHistory,
    TestsToEnd,
    count_steps_left,
    make_future,
    read_backwards,
)
from derex.networks.recurrent import LSTM

T = 7
LONGEST = [1, 2, 3, T, T + 2]


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def all_masks():
    """Every (first, valid) of a stream of T steps whose padding comes last: T·2ᵀ of them, as rows."""
    first = np.array(list(product([False, True], repeat=T)))
    lengths = np.repeat(np.arange(1, T + 1), len(first))
    return np.tile(first, (T, 1)), np.arange(T) < lengths[:, None]


def some_masks(n):
    """Masks of several episodes in a row, with and without padding."""
    first, valid = all_masks()
    several = np.flatnonzero((first & valid)[:, 1:].sum(axis=1) >= 1)
    chosen = np.random.default_rng(0).choice(several, n, replace=False)
    return first[chosen], valid[chosen]


def loop_left(first, valid):
    """Walks on from each step until an episode begins or the padding does."""
    left = np.full(first.shape, -1)
    for b, t in zip(*np.nonzero(valid), strict=True):
        end = t
        while end + 1 < T and valid[b, end + 1] and not first[b, end + 1]:
            end += 1
        left[b, t] = end - t
    return left


def each_with_all_phases(masks, longest):
    """Every mask with each of the phases 0, …, longest - 1: masks as rows, and a phase for each row."""
    first, valid = (np.repeat(mask, longest, axis=0) for mask in masks)
    return first, valid, np.tile(np.arange(longest, dtype=np.int32), len(masks[0]))


def counting(g=1e-3):
    """Networks in which g(τ) is the number of steps of τ: all gates open, a cell that grows by g at every step."""
    lstm = LSTM(1, 1, key=jax.random.key(0))
    bias = jnp.array([50.0, 50.0, np.arctanh(g), 50.0])
    weights = (jnp.zeros((1, 4)), jnp.zeros((1, 4)), bias)
    lstm = eqx.tree_at(lambda m: (m.input_weight, m.state_weight, m.bias), lstm, weights)
    embedding = Embedding(eqx.nn.Identity(), 1, 1, 1, key=jax.random.key(0))
    return HistoryNetworks(embedding, lstm, lstm, lambda b: b, lambda b: jnp.arctanh(b) / g, True)


def lengths_of_tests(future, first, valid, phase):
    """L of the test of each history but the last, row by row, as the networks read it."""

    @jax.jit
    def measured(first, valid, phase):
        nothing = jnp.zeros((*first.shape, 1))
        left = count_steps_left(first, valid)
        return future.read(counting(), Embedded(nothing, nothing), nothing, left, phase)

    found = np.asarray(measured(first, valid, phase))[:, 1:, 0]
    np.testing.assert_allclose(found, np.round(found), atol=1e-6)
    return np.round(found).astype(int)


def loop_lstm(lstm, inputs):
    """h after the last of some inputs, from nothing remembered, in NumPy."""
    h, c = np.zeros(lstm.width), np.zeros(lstm.width)
    for x in inputs:
        gates = x @ np.asarray(lstm.input_weight) + h @ np.asarray(lstm.state_weight) + np.asarray(lstm.bias)
        i, f, g, o = gates.reshape(4, -1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
    return h


def test_steps_left_of_every_mask():
    first, valid = all_masks()
    np.testing.assert_array_equal(jax.jit(count_steps_left)(first, valid), loop_left(first, valid))


def test_steps_left_by_hand():
    first = jnp.array([[True, False, False, True, False, True, True, True]])
    valid = jnp.array([[True, True, True, True, True, True, True, False]])
    np.testing.assert_array_equal(count_steps_left(first, valid), [[2, 1, 0, 1, 0, 0, 0, -1]])


@pytest.mark.parametrize("longest", LONGEST)
def test_reading_backwards_is_reading_each_test_from_scratch(longest):
    """From the next step ≡ phase, or the episode's end if that is nearer, back to t."""
    first, valid, phase = each_with_all_phases(some_masks(6), longest)
    rng = np.random.default_rng(longest)
    lstm, embedded = LSTM(2, 3, key=jax.random.key(0)), rng.normal(size=(*first.shape, 2))
    left = loop_left(first, valid)
    found = eqx.filter_jit(read_backwards)(
        lstm, jnp.asarray(embedded), jnp.asarray(left), jnp.asarray(phase), longest
    )
    assert found.shape == (*first.shape, 3)
    for b, t in zip(*np.nonzero(valid), strict=True):
        end = t
        while end % longest != phase[b] and left[b, end] > 0:
            end += 1
        wanted = loop_lstm(lstm, embedded[b, t : end + 1][::-1])
        np.testing.assert_allclose(found[b, t], wanted, rtol=1e-10, atol=1e-12)


def test_reading_to_the_end_of_every_mask():
    """τ_t is o_{t+1}, …, to the last step of the episode, whatever the mask."""
    first, valid = all_masks()
    future = TestsToEnd()
    phase = future.draw_on_host(np.random.default_rng(0), len(first), T)
    left = loop_left(first, valid)[:, :-1]
    counted = left >= future.needs
    np.testing.assert_array_equal(lengths_of_tests(future, first, valid, phase)[counted], left[counted])


@pytest.mark.parametrize("longest", [1, 2, 3, T - 1])
def test_lengths_are_uniform_and_independent_of_t(longest):
    """Over all phases, for each counted history of every mask: 1, …, longest, each once; none leaves its episode."""
    future, masks = BoundedTests(longest), all_masks()
    found = lengths_of_tests(future, *each_with_all_phases(masks, longest)).reshape(-1, longest, T - 1)
    left = loop_left(*masks)[:, :-1]
    counted = left >= future.needs
    assert counted.any(axis=0).sum() == T - longest  # at each t that leaves room, in some mask
    by_phase = np.moveaxis(found, 1, -1)[counted]
    np.testing.assert_array_equal(
        np.sort(by_phase, axis=-1), np.tile(np.arange(1, longest + 1), (counted.sum(), 1))
    )
    assert np.all(by_phase <= left[counted][:, None])


@pytest.mark.parametrize("longest", [2, 3])
def test_with_one_step_less_a_history_could_not_count(longest):
    """Control: its longest test does not fit, so that its lengths are others than those of earlier histories."""
    masks = all_masks()
    found = lengths_of_tests(BoundedTests(longest), *each_with_all_phases(masks, longest))
    short = loop_left(*masks)[:, :-1] == longest - 1
    lengths = np.sort(np.moveaxis(found.reshape(-1, longest, T - 1), 1, -1)[short], axis=-1)
    np.testing.assert_array_equal(np.unique(lengths, axis=0), [[*range(1, longest), longest - 1]])


def test_phases_are_drawn_uniformly():
    phase = BoundedTests(5).draw_on_host(np.random.default_rng(0), 10_000, T)
    assert phase.dtype == np.int32
    counts = np.bincount(phase, minlength=5)
    assert len(counts) == 5
    assert np.sum((counts - 2_000) ** 2 / 2_000) < 18.5  # χ² with 4 degrees of freedom: one in a thousand
    again = BoundedTests(5).draw_on_host(np.random.default_rng(0), 10_000, T)
    np.testing.assert_array_equal(phase, again)


@pytest.mark.parametrize("future", [BoundedTests(3), TestsToEnd(), NextHistory()], ids=repr)
def test_a_future_is_a_hashable_value(future):
    """So that a compiled step is found again."""
    assert isinstance(future, Future)
    assert future.needs == (3 if isinstance(future, BoundedTests) else 1)
    again = type(future)(3) if isinstance(future, BoundedTests) else type(future)()
    assert (future, hash(future)) == (again, hash(again))
    assert future != BoundedTests(4)
    phase = future.draw_on_host(np.random.default_rng(0), 4, T)
    assert (phase.shape, phase.dtype) == ((4,), np.int32)


@pytest.mark.parametrize("tests", [0, -3, "foo"])
def test_tests_that_are_none_are_refused(tests: int | str) -> None:
    with pytest.raises(ValueError, match='at least 1, or "to-end"'):
        make_future(tests, tied=False)


def test_a_tied_objective_has_no_tests() -> None:
    assert make_future(8, tied=True) == NextHistory()
    assert make_future("to-end", tied=False) == TestsToEnd()
    assert make_future(8, tied=False) == BoundedTests(8)
