"""The LSTM over whole streams: its equations, its hand-written gradient, resets and carried memory."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from derex.networks.recurrent import FORGET_BIAS, LSTM, LSTMState, scan

T, B, SIZE, H = 6, 3, 2, 4


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def draw(seed, T=T, scale=1.0):
    """Projected inputs, resets in about a third of the places, a recurrent weight and a memory to start from."""
    rng = np.random.default_rng(seed)
    keep = (rng.random((T, B)) < 0.7).astype(float)
    memory = LSTMState(*(jnp.asarray(part) for part in rng.normal(size=(2, B, H))))
    parts = (scale * rng.normal(size=(T, B, 4 * H)), keep, rng.normal(size=(H, 4 * H)))
    return *(jnp.asarray(part) for part in parts), memory


def plain(projected, keep, weight, memory):
    """`scan` for JAX to differentiate by itself."""
    return scan.fun(projected, keep, weight, memory)


def loop(projected, keep, weight, memory):
    """The equations of the class, one stream and step at a time, in NumPy."""

    def sigmoid(x):
        return 1.0 / (1.0 + np.exp(-x))

    projected, keep, weight, h_0, c_0 = map(np.asarray, (projected, keep, weight, *memory))
    outputs, last = np.zeros((*keep.shape, H)), (np.zeros_like(h_0), np.zeros_like(c_0))
    for b in range(keep.shape[1]):
        h, c = h_0[b], c_0[b]
        for t in range(keep.shape[0]):
            h, c = (h, c) if keep[t, b] else (np.zeros(H), np.zeros(H))
            i, f, g, o = (projected[t, b] + h @ weight).reshape(4, H)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            outputs[t, b] = h
        last[0][b], last[1][b] = h, c
    return outputs, last


@partial(jax.jit, static_argnums=0)
def pulled_back(form, projected, keep, weight, memory, direction):
    """Outputs, and what a direction in them means for inputs, weight and initial memory."""
    out, pull = jax.vjp(lambda p, w, m: form(p, keep, w, m), projected, weight, memory)
    return out, pull(direction)


def weighted(projected, keep, weight, memory):
    """A number that every output has a say in."""
    outputs, last = scan(projected, keep, weight, memory)
    return sum(jnp.sum(jnp.sin(3.0 * part)) for part in (outputs, *last))


def assert_close(found, wanted, atol=1e-12):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=atol), found, wanted)


@pytest.mark.parametrize("seed", range(3))
def test_outputs_are_the_equations(seed):
    found = jax.jit(scan)(*draw(seed))
    outputs, last = loop(*draw(seed))
    assert_close(found, (outputs, LSTMState(*map(jnp.asarray, last))))


def test_single_precision_stays_single():
    with jax.enable_x64(False):
        found, memory = scan(*draw(0))
    assert found.dtype == memory.hidden.dtype == memory.cell.dtype == np.float32
    np.testing.assert_allclose(found, loop(*draw(0))[0], rtol=1e-4, atol=1e-5)


def test_the_module_is_equinox_cell_with_its_weights():
    lstm = LSTM(SIZE, H, key=jax.random.key(0))
    cell = eqx.nn.LSTMCell(SIZE, H, key=jax.random.key(1))
    weights = (lstm.input_weight.T, lstm.state_weight.T, lstm.bias)
    cell = eqx.tree_at(lambda c: (c.weight_ih, c.weight_hh, c.bias), cell, weights)
    inputs = jax.random.normal(jax.random.key(2), (T, B, SIZE))

    @jax.jit
    def both():
        def step(memory, x):
            memory = jax.vmap(cell)(x, memory)
            return memory, memory[0]

        last, outputs = jax.lax.scan(step, tuple(lstm.initial(B)), inputs)
        return lstm(inputs, jnp.ones((T, B)), lstm.initial(B)), (outputs, LSTMState(*last))

    assert_close(*both())


def test_how_a_module_begins():
    """It remembers by default, rotates what it remembers, and depends on nothing but its key."""
    lstm, again, other = (LSTM(SIZE, H, key=jax.random.key(seed)) for seed in (0, 0, 1))
    assert (lstm.width, lstm.input_weight.shape) == (H, (SIZE, 4 * H))
    np.testing.assert_array_equal(lstm.bias.reshape(4, H), np.outer([0, FORGET_BIAS, 0, 0], np.ones(H)))
    blocks = np.split(np.asarray(lstm.state_weight), 4, axis=1)
    for block in blocks:
        np.testing.assert_allclose(block @ block.T, np.eye(H), atol=1e-12)
    assert not np.allclose(blocks[0], blocks[1])
    np.testing.assert_array_equal(lstm.state_weight, again.state_weight)
    assert not np.allclose(lstm.state_weight, other.state_weight)
    assert [part.shape for part in lstm.initial(5, 2)] == [(5, 2, H)] * 2
    assert not any(np.any(part) for part in lstm.initial(5))


@pytest.mark.parametrize(("steps", "scale"), [(1, 1.0), (T, 1.0), (T, 30.0)])
def test_the_gradient_is_that_of_the_plain_scan(steps, scale):
    """Also where most gates are saturated."""
    streams = draw(0, steps, scale)
    direction = jax.tree.map(
        lambda part: jnp.asarray(np.random.default_rng(1).normal(size=part.shape)),
        jax.eval_shape(plain, *streams),
    )
    found, wanted = (pulled_back(form, *streams, direction) for form in (scan, plain))
    assert_close(found, wanted)
    assert all(np.any(part != 0.0) for part in jax.tree.leaves(found))


def test_the_gradient_is_that_of_finite_differences():
    projected, keep, weight, memory = draw(0, 4)
    form = jax.jit(lambda p, w, m: scan(p, keep, w, m))
    check_grads(form, (projected, weight, memory), order=1, modes=["rev"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("start", [0, 3])
def test_a_reset_begins_a_new_stream(start):
    """Outputs after it are those of a stream that starts there; nothing before it has a gradient."""
    projected, _, weight, memory = draw(0)
    keep = jnp.ones((T, B)).at[start].set(0.0)
    outputs, last = jax.jit(scan)(projected, keep, weight, memory)
    nothing = LSTMState(jnp.zeros((B, H)), jnp.zeros((B, H)))
    fresh = scan(projected[start:], keep[start:].at[0].set(1.0), weight, nothing)
    assert_close((outputs[start:], last), fresh)

    def after(projected, memory):
        outputs, last = scan(projected, keep, weight, memory)
        return jnp.sum(outputs[start:]) + jnp.sum(last.cell)

    d_projected, d_memory = jax.jit(jax.grad(after, (0, 1)))(projected, memory)
    assert not np.any(d_projected[:start])
    assert np.all(np.any(d_projected[start:], axis=-1))
    assert not any(np.any(part) for part in d_memory)


def test_a_reset_is_for_its_own_stream():
    projected, _, weight, memory = draw(0)
    kept = jnp.ones((T, B))
    without, reset = (scan(projected, keep, weight, memory)[0] for keep in (kept, kept.at[2, 1].set(0.0)))
    changed = np.any(np.abs(without - reset) > 1e-6, axis=-1)
    np.testing.assert_array_equal(changed, (np.arange(T)[:, None] >= 2) & (np.arange(B) == 1))


def test_memory_carries_over():
    """One call is two with the memory passed on, in outputs and gradients."""
    (projected, keep, weight, memory), cut = draw(0), 2

    def at_once(projected, weight, memory):
        return scan(projected, keep, weight, memory)

    def in_two(projected, weight, memory):
        begun, between = scan(projected[:cut], keep[:cut], weight, memory)
        ended, last = scan(projected[cut:], keep[cut:], weight, between)
        return jnp.concatenate([begun, ended]), last

    @partial(jax.jit, static_argnums=0)
    def values_and_gradients(form):
        out, pull = jax.vjp(form, projected, weight, memory)
        return out, pull(jax.tree.map(jnp.cos, out))

    assert_close(values_and_gradients(at_once), values_and_gradients(in_two))


def test_many_at_once_are_one_at_a_time():
    """Under vmap, jit, and in the gradient of each of several streams and weights."""
    several = [draw(seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *several)
    gradient = jax.value_and_grad(weighted, (0, 2, 3))
    found = jax.jit(jax.vmap(gradient))(*stacked)
    wanted = jax.tree.map(lambda *parts: jnp.stack(parts), *[jax.jit(gradient)(*each) for each in several])
    assert_close(found, wanted)


def test_a_shared_weight_has_one_gradient_for_each_stream():
    """They add up to that of the batch."""
    projected, keep, weight, memory = draw(0)

    def alone(projected, keep, memory):
        memory = jax.tree.map(lambda part: part[None], memory)
        return jax.grad(weighted, 2)(projected[:, None], keep[:, None], weight, memory)

    apart = jax.jit(jax.vmap(alone, in_axes=(1, 1, 0)))(projected, keep, memory)
    assert apart.shape == (B, H, 4 * H)
    assert_close(apart.sum(axis=0), jax.jit(jax.grad(weighted, 2))(projected, keep, weight, memory))
