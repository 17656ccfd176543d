"""Random network distillation against moments and errors worked out with NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork, describe_parts
from derex.agents.policy import Categorical
from derex.networks.inputs import compute_flat_size, flatten_observation
from derex.representations import RolloutView, Sizes
from derex.representations.base import OptimisedTraining
from derex.representations.rnd import OBSERVATION_CLIP, RndConfig
from derex.types import Symbols, Trajectories, Words

B, S, W = 4, 6, 8
SCALES = np.array([1.0, 100.0, 0.01])  # of three numbers, and a fourth that is always the same
PARTS = describe_parts(
    {"a": jax.ShapeDtypeStruct((3,), jnp.float32), "b": jax.ShapeDtypeStruct((1,), jnp.float32)}
)
SIZES = Sizes(PARTS, 2, W, W, B)
FORM = RndConfig(k=5, width=W, training=OptimisedTraining(steps=3, streams=4, learning_rate=1e-2))


def view_of(seed: int) -> RolloutView:
    rng = np.random.default_rng(seed)
    observation = {
        "a": jnp.asarray((rng.normal(size=(B, S, 3)) + seed) * SCALES, jnp.float32),
        "b": jnp.full((B, S, 1), 7.0),
    }
    first = jnp.asarray(rng.random((B, S)) < 0.2)
    trajectories = Trajectories(observation, jnp.zeros((B, S, 2)), first, jnp.ones((B, S), bool))
    network = AgentNetwork(AgentConfig(width=W), PARTS, Categorical(2), key=jax.random.key(0))
    return network(trajectories, network.core.initial(B)).view


def rows_of(view: RolloutView) -> np.ndarray:
    parts = view.trajectories.observation
    return np.concatenate([parts["a"], parts["b"]], axis=-1)


@pytest.fixture(scope="module")
def observed() -> list[Any]:
    """States and bonuses of three unrolls; the last has one observation far away."""
    representation = FORM.build()
    views = [view_of(seed) for seed in range(3)]
    far = views[2].trajectories.observation
    far = far | {"a": far["a"].at[1, 3, 0].set(1e4)}
    views[2] = views[2]._replace(trajectories=views[2].trajectories._replace(observation=far))
    states, bonuses, observe = (
        [representation.init(jax.random.key(1), SIZES)],
        [],
        jax.jit(representation.observe),
    )
    for number, view in enumerate(views):
        state, bonus = observe(states[-1], view, jax.random.key(number))
        states.append(state)
        bonuses.append(bonus)
    return [views, states, bonuses]


def seen_until(views: list[RolloutView], number: int) -> np.ndarray:
    """All rows of the first unrolls, each step once: step 0 of an unroll was the last of the one before."""
    return np.concatenate([rows_of(view)[:, 1:].reshape(-1, 4) for view in views[: number + 1]]).astype(
        np.float64
    )


def test_moments_are_those_of_everything_seen(observed: list[Any]) -> None:
    views, states, _ = observed
    for number in range(3):
        rows, moments = seen_until(views, number), states[number + 1].tracked
        assert moments.count == len(rows)
        np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(moments.square / moments.count, rows.var(axis=0), rtol=1e-3, atol=1e-9)


def test_the_bonus_is_the_error_on_standardised_observations_before_learning(observed: list[Any]) -> None:
    """Each number of an observation in its own units, clipped to ±5; networks as they were before the unroll."""
    views, states, bonuses = observed
    for number in range(3):
        rows, seen = rows_of(views[number]).astype(np.float64), seen_until(views, number)
        standard = (rows - seen.mean(axis=0)) / (seen.std(axis=0) + 1e-8)
        clipped = np.clip(standard, -OBSERVATION_CLIP, OBSERVATION_CLIP)
        networks = states[number].own.networks
        apply = [jax.vmap(jax.vmap(net)) for net in (networks.predictor, networks.target.value)]
        outputs = [np.asarray(net(jnp.asarray(clipped, jnp.float32))) for net in apply]
        wanted = np.mean(np.square(outputs[0] - outputs[1]), axis=-1)
        np.testing.assert_allclose(bonuses[number], wanted, rtol=2e-3, atol=1e-5)
        assert np.allclose(clipped[..., 3], 0.0)  # what never varies says nothing
    assert OBSERVATION_CLIP == 5.0


def test_an_observation_far_away_is_cut(observed: list[Any]) -> None:
    views, _, _ = observed
    seen = seen_until(views, 2)
    far = (1e4 - seen[:, 0].mean()) / seen[:, 0].std()
    assert far > OBSERVATION_CLIP


def test_the_predictor_learns_and_the_target_never_changes(observed: list[Any]) -> None:
    _, states, _ = observed
    before, after = (state.own.networks for state in (states[0], states[-1]))
    for one, other in zip(jax.tree.leaves(before.target), jax.tree.leaves(after.target), strict=True):
        np.testing.assert_array_equal(one, other)
    moved = [
        np.any(a != b)
        for a, b in zip(*map(jax.tree.leaves, (before.predictor, after.predictor)), strict=True)
    ]
    assert np.sum(moved) >= 4


def test_what_is_seen_again_and_again_becomes_familiar() -> None:
    form = RndConfig(k=5, width=W, training=OptimisedTraining(steps=20, learning_rate=3e-3))
    representation = form.build()
    state, view, bonuses = representation.init(jax.random.key(0), SIZES), view_of(0), []
    observe = jax.jit(representation.observe)
    for number in range(15):
        state, bonus = observe(state, view, jax.random.key(number))
        bonuses.append(float(bonus.mean()))
    assert bonuses[-1] < 0.1 * bonuses[0]


def test_plain_observations_where_asked_for() -> None:
    representation = RndConfig(k=5, width=W, normalise=False).build()
    state = representation.init(jax.random.key(0), SIZES)
    view = view_of(0)
    _, bonus = representation.observe(state, view, jax.random.key(0))
    networks = state.own.networks
    apply = [jax.vmap(jax.vmap(net)) for net in (networks.predictor, networks.target.value)]
    outputs = [net(jnp.asarray(rows_of(view))) for net in apply]
    np.testing.assert_allclose(bonus, jnp.mean(jnp.square(outputs[0] - outputs[1]), -1), rtol=1e-4)


def test_symbols_and_words_are_spelt_out() -> None:
    """A symbol's number means nothing, so that two of them differ as much as any others; nor does a word's."""
    parts = describe_parts({"tiles": Symbols((2, 2), (3, 4)), "told": Words(3, 5), "way": Symbols((), (2,))})
    rng = np.random.default_rng(0)
    tiles = rng.integers(0, [3, 4], (B, S, 2, 2)).astype(np.uint8)
    told, way = rng.integers(0, 5, (B, S, 3)).astype(np.int32), rng.integers(0, 2, (B, S)).astype(np.uint8)
    told[0, 0] = [3, 3, 0]
    observation = jax.tree.map(jnp.asarray, {"tiles": tiles, "told": told, "way": way})
    rows = np.asarray(flatten_observation(parts, observation, (B, S)))
    assert rows.shape == (B, S, compute_flat_size(parts)) == (B, S, 2 * (3 + 4) + 5 + 2)
    spelt = [np.concatenate([np.eye(3)[tiles[..., i, 0]], np.eye(4)[tiles[..., i, 1]]], -1) for i in range(2)]
    counts = np.stack([(told == word).sum(-1) * (word > 0) for word in range(5)], -1)
    np.testing.assert_array_equal(rows, np.concatenate([*spelt, counts, np.eye(2)[way]], -1))
    assert rows[0, 0, 14:19].tolist() == [0, 0, 0, 2, 0]
