"""What f reads of the past and g of the future: everything they should, and nothing else.

Each observation (or action) is changed in turn, and the outputs that move are compared with a plain enumeration.
"""

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.networks.histories import (
    BoundedTests,
    Embedding,
    Head,
    HistoryNetworks,
    NextHistory,
    TestsToEnd,
    apply_per_step,
    count_steps_left,
)
from derex.networks.recurrent import LSTM
from derex.types import NO_ACTION, Indexed, Trajectories

B, T, SIZE, CHOICES, WIDTH, K = 3, 8, 2, 3, 8, 2
# Two episodes; two and padding; the rest of one that began before, then padding that holds a False start.
FIRST = np.array([[1, 0, 0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]], bool)
VALID = np.arange(T) < np.array([[8], [6], [5]])


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def draw(seed=0):
    rng = np.random.default_rng(seed)
    action = np.where(FIRST, NO_ACTION, rng.integers(0, CHOICES, (B, T))).astype(np.int32)
    return Trajectories(rng.normal(size=(B, T, SIZE)), action, FIRST, VALID)


def embedding_of(encoder=None, size=SIZE):
    made = Embedding(encoder or eqx.nn.Identity(), size, CHOICES, WIDTH, key=jax.random.key(0))
    return eqx.tree_at(lambda e: e.bias, made, jnp.linspace(0.5, 1.5, WIDTH))  # few units are silent


@cache
def parts() -> Any:
    """Both LSTMs and both heads; compiled whole, since one small operation after another takes seconds."""

    @eqx.filter_jit
    def build(key):
        keys = jax.random.split(key, 4)
        lstms = [LSTM(WIDTH, WIDTH, key=key) for key in keys[:2]]
        heads = [Head(WIDTH, K, key=key) for key in keys[2:]]
        return embedding_of(), *lstms, *heads

    return build(jax.random.key(1))


def networks_of(test_actions=True, tied=False):
    embedding, forward, reverse, f, g = parts()
    return HistoryNetworks(
        embedding, forward, None if tied else reverse, f, None if tied else g, test_actions
    )


@eqx.filter_jit
def embed(networks, trajectories):
    return networks.embed(trajectories)


@eqx.filter_jit
def beliefs_of(networks, embedded, first, memory=None):
    return networks.beliefs(embedded, first, memory)


def read(networks, future, phase, trajectories):
    """f(h_t) and g of what begins at t, for every step."""
    embedded = networks.embed(trajectories)
    beliefs, _ = networks.beliefs(embedded.history, trajectories.first)
    left = count_steps_left(trajectories.first, trajectories.valid)
    return apply_per_step(networks.f, beliefs), future.read(networks, embedded, beliefs, left, phase)


@eqx.filter_jit
def before_and_after(networks, future, phase, base, field, other):
    """`read`, and `read` again with `field` changed to `other` in one place, for each of the B·T places."""

    def changed(b, s):
        values = getattr(base, field)
        return read(networks, future, phase, base._replace(**{field: values.at[b, s].set(other[b, s])}))

    places = jnp.unravel_index(jnp.arange(B * T), (B, T))
    return read(networks, future, phase, base), jax.vmap(changed)(*places)


def moved_by(field, networks, future, phase):
    """[b, s, c, t]: whether changing `field` at (b, s) moves f, and g, at (c, t)."""
    base = jax.tree.map(jnp.asarray, draw())
    values = getattr(base, field)
    other = values + 1.5 if field == "observation" else (values + 1) % CHOICES  # NO_ACTION becomes one, too
    outputs = before_and_after(networks, future, jnp.asarray(phase), base, field, other)
    moves = [np.abs(now - then).max(axis=-1).reshape(B, T, B, T) for then, now in zip(*outputs, strict=True)]
    # moved, or did not: nothing between
    assert all(np.all((move > 1e-7) | (move < 1e-13)) for move in moves)
    return [move > 1e-7 for move in moves]


def enumerated(steps_read):
    """The same [b, s, c, t] from a function that lists which steps are read for (c, t)."""
    out = np.zeros((B, T, B, T), bool)
    for c, t in zip(*np.nonzero(VALID), strict=True):
        out[c, steps_read(c, t), c, t] = True
    return out


def history(c, t):
    """Steps of h_t: back to where its episode, or the stream, begins."""
    start = t
    while start > 0 and not FIRST[c, start]:
        start -= 1
    return list(range(start, t + 1))


def following(future, phase):
    """Steps of a test that begins at t: to the next end, but no further than its episode."""

    def steps(c, t):
        end = t
        while end + 1 < T and VALID[c, end + 1] and not FIRST[c, end + 1]:
            if isinstance(future, BoundedTests) and end % future.longest == phase[c]:
                break
            end += 1
        return list(range(t, end + 1))

    return steps


def assert_moves(found, wanted):
    """At valid steps: nothing is promised of the padding."""
    np.testing.assert_array_equal(found[..., VALID], wanted[..., VALID])


@pytest.mark.parametrize("field", ["observation", "previous_action"])
@pytest.mark.parametrize("future", [BoundedTests(3), TestsToEnd()], ids=["bounded", "to-end"])
def test_f_reads_the_history_and_g_the_test(future, field):
    """o_s and a_{s-1} alike: f(h_t) moves for those up to t, g(τ_t), its column t + 1, for those from t + 1 on."""
    phase = future.draw_on_host(np.random.default_rng(1), B, T)
    f, g = moved_by(field, networks_of(), future, phase)
    assert_moves(f, enumerated(history))
    assert_moves(g, enumerated(following(future, phase)))


def test_actions_can_be_left_out_of_tests():
    """Histories keep them, and tests still read the observations."""
    future, networks = BoundedTests(3), networks_of(test_actions=False)
    phase = future.draw_on_host(np.random.default_rng(1), B, T)
    f, g = moved_by("previous_action", networks, future, phase)
    assert_moves(f, enumerated(history))
    assert not np.any(g[..., VALID])
    _, g = moved_by("observation", networks, future, phase)
    assert_moves(g, enumerated(following(future, phase)))


@pytest.mark.parametrize("phase", range(3))
def test_counted_tests_are_whole_at_every_phase(phase):
    """For a history that counts, g reads steps t + 1, …, t + L and stays in its episode: t + L ≡ phase, 1 ≤ L ≤ 3."""
    future, counted = (
        BoundedTests(3),
        np.asarray(count_steps_left(jnp.asarray(FIRST), jnp.asarray(VALID))) >= 3,
    )
    assert counted.sum() == 5
    _, g = moved_by("observation", networks_of(), future, np.full(B, phase, np.int32))
    for c, t in zip(*np.nonzero(counted), strict=True):
        L = next(L for L in (1, 2, 3) if (t + L) % 3 == phase)
        np.testing.assert_array_equal(np.argwhere(g[:, :, c, t + 1]), [[c, t + i] for i in range(1, L + 1)])
        assert not FIRST[c, t + 1 : t + L + 1].any()
        assert VALID[c, t + 1 : t + L + 1].all()


def test_the_next_history_is_read_by_f():
    """Column t + 1 is f(h_{t+1}), without a reverse LSTM, whatever phase and ends."""
    networks, streams = networks_of(tied=True), jax.tree.map(jnp.asarray, draw())
    f, g = eqx.filter_jit(read)(networks, NextHistory(), jnp.zeros(B, jnp.int32), streams)
    np.testing.assert_array_equal(f, g)
    cut = streams._replace(
        observation=streams.observation[:, :4], previous_action=streams.previous_action[:, :4]
    )
    cut = cut._replace(first=streams.first[:, :4], valid=streams.valid[:, :4])
    embedded = embed(networks, cut)
    beliefs, _ = beliefs_of(networks, embedded.history, cut.first)
    np.testing.assert_allclose(g[:, 3], jax.vmap(networks.f)(beliefs[:, 3]), rtol=1e-10)


def test_beliefs_step_by_step_are_those_of_the_whole_stream():
    """With the memory passed on, across the episodes' boundaries."""
    networks, streams = networks_of(), jax.tree.map(jnp.asarray, draw())
    embedded = embed(networks, streams).history
    whole, last = beliefs_of(networks, embedded, streams.first)
    memory = networks.forward.initial(B)
    for t in range(T):
        belief, memory = beliefs_of(networks, embedded[:, [t]], streams.first[:, [t]], memory)
        np.testing.assert_allclose(belief[:, 0], whole[:, t], rtol=1e-10)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), memory, last)


def test_gradients_reach_every_parameter_and_padding_has_none():
    networks, future, streams = networks_of(), BoundedTests(2), jax.tree.map(jnp.asarray, draw())
    counted = count_steps_left(streams.first, streams.valid)[:, :-1] >= future.needs

    @eqx.filter_jit
    def gradient(parts):
        def loss(parts):
            networks, observation = parts
            seen = streams._replace(observation=observation)
            f, g = read(networks, future, jnp.array([0, 1, 0], jnp.int32), seen)
            return jnp.sum(jnp.where(counted, jnp.sum(f[:, :-1] * g[:, 1:], axis=-1), 0.0))

        return eqx.filter_grad(loss)(parts)

    d_networks, d_observation = gradient((networks, streams.observation))
    leaves = jax.tree.leaves(d_networks)
    assert len(leaves) == len(jax.tree.leaves(eqx.filter(networks, eqx.is_inexact_array)))
    assert all(np.all(np.isfinite(leaf)) and np.any(leaf != 0.0) for leaf in leaves)
    assert not np.any(d_observation[~VALID])
    assert np.any(d_observation[VALID])


def test_the_embedding_by_hand():
    """relu(encoder(o) W + the action's row + c)."""
    embedding, streams = embedding_of(eqx.nn.Linear(SIZE, 3, key=jax.random.key(2)), 3), draw()
    W, A, c = map(np.asarray, (embedding.from_observation, embedding.from_action, embedding.bias))
    found = embedding.combine(
        embedding.embed_observations(jnp.asarray(streams.observation), (B, T)),
        embedding.embed_actions(jnp.asarray(streams.previous_action)),
    )
    encoded = streams.observation @ np.asarray(embedding.encoder.weight).T + np.asarray(
        embedding.encoder.bias
    )
    rows = np.where(streams.previous_action[..., None] >= 0, A[streams.previous_action], 0.0)
    np.testing.assert_allclose(found, np.maximum(encoded @ W + rows + c, 0.0), rtol=1e-10, atol=1e-12)
    assert np.any(found == 0.0)


@pytest.mark.parametrize("parts", ["array", "dict"])
def test_repeated_observations_are_what_they_stand_for(parts):
    rng = np.random.default_rng(0)
    index = jnp.asarray(rng.integers(0, 4, (B, T)))
    values = jnp.asarray(rng.normal(size=(4, SIZE)))
    encoder = eqx.nn.Identity()
    if parts == "dict":
        values = {"a": values[:, :1], "b": jnp.asarray(rng.normal(size=4))}
        encoder = eqx.nn.Lambda(lambda seen: jnp.append(seen["a"], seen["b"]))
    embedding = embedding_of(encoder)
    plain = jax.tree.map(lambda leaf: leaf[index], values)
    found, wanted = (embedding.embed_observations(seen, (B, T)) for seen in (Indexed(values, index), plain))
    assert found.shape == (B, T, WIDTH)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_no_action_says_nothing():
    embedding = embedding_of()
    acted = embedding.embed_actions(jnp.array([NO_ACTION, 0, 2], jnp.int32))
    np.testing.assert_array_equal(
        acted, [np.zeros(WIDTH), embedding.from_action[0], embedding.from_action[2]]
    )
    streams = jax.tree.map(jnp.asarray, draw())
    without = streams._replace(previous_action=jnp.full((B, T), NO_ACTION, jnp.int32))
    embedded = embed(networks_of(test_actions=False), without)
    np.testing.assert_array_equal(embedded.history, embedded.test)
    with_actions = embed(networks_of(test_actions=False), streams)
    np.testing.assert_array_equal(with_actions.test, embedded.test)
    np.testing.assert_array_equal(
        np.any(with_actions.history != embedded.test, axis=-1), streams.previous_action >= 0
    )


def test_actions_may_be_vectors():
    """One-hot vectors say the same as numbers, 0 says nothing, and all between is linear."""
    embedding = embedding_of()
    numbers = jnp.array([[NO_ACTION, 0, 1, 2]], jnp.int32)
    vectors = jnp.concatenate([jnp.zeros((1, CHOICES)), jnp.eye(CHOICES)])[None]
    np.testing.assert_array_equal(embedding.embed_actions(vectors), embedding.embed_actions(numbers))
    half = embedding.embed_actions(jnp.array([[[0.5, 0.0, -2.0]]]))[0, 0]
    np.testing.assert_allclose(
        half, 0.5 * embedding.from_action[0] - 2.0 * embedding.from_action[2], rtol=1e-10
    )
    streams = jax.tree.map(jnp.asarray, draw())
    as_vectors = streams._replace(previous_action=jax.nn.one_hot(streams.previous_action, CHOICES))
    found, wanted = (embed(networks_of(), each) for each in (as_vectors, streams))
    np.testing.assert_allclose(found.test, wanted.test, rtol=1e-10)


def test_a_head_by_hand():
    """out(relu(projection(b))), at each step on its own."""
    head = Head(WIDTH, K, key=jax.random.key(0))
    beliefs = np.random.default_rng(0).normal(size=(B, T, WIDTH))
    P, c, out = map(np.asarray, (head.projection.weight, head.projection.bias, head.out.weight))
    wanted = np.maximum(beliefs @ P.T + c, 0.0) @ out.T
    np.testing.assert_allclose(apply_per_step(head, jnp.asarray(beliefs)), wanted, rtol=1e-10, atol=1e-12)
