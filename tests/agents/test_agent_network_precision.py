"""Products in bfloat16: close to single precision, and everything else stays in it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork, describe_parts
from derex.agents.policy import Categorical, make_policy
from derex.agents.rollout import collect_rollout, init_actor
from derex.envs.diagnostic import Recall
from derex.envs.wrappers import PreviousReward, make_streams
from derex.networks.layers import cast_to_precision, matmul
from derex.networks.recurrent import LSTM
from derex.representations import find_representation
from derex.training.learner import JaxTraining
from derex.types import Amount, Symbols, Trajectories, Words

B, S, A, W = 4, 6, 3, 16
IMAGE, VECTOR = jax.ShapeDtypeStruct((8, 8, 1), np.uint8), jax.ShapeDtypeStruct((3,), np.float32)
PARTS = describe_parts((IMAGE, Symbols((3, 2), (4, 3)), Words(4, 20), Amount(), VECTOR))


def seen_by(network: AgentNetwork) -> Any:
    rng = np.random.default_rng(0)
    observation = (
        jnp.asarray(rng.integers(0, 256, (B, S, 8, 8, 1)), jnp.uint8),
        jnp.asarray(rng.integers(0, 3, (B, S, 3, 2)), jnp.uint8),
        jnp.asarray(rng.integers(0, 20, (B, S, 4)), jnp.int32),
        jnp.asarray(rng.normal(size=(B, S)), jnp.float32),
        jnp.asarray(rng.normal(size=(B, S, 3)), jnp.float32),
    )
    steps = Trajectories(observation, jnp.ones((B, S, A)), jnp.zeros((B, S), bool), jnp.ones((B, S), bool))

    @eqx.filter_jit
    def read(network: AgentNetwork) -> Any:
        def loss(network: AgentNetwork) -> Any:
            seen = network(steps, network.core.initial(B))
            return jnp.sum(jnp.square(seen.value - 1.0)) + jnp.sum(jnp.sin(seen.view.beliefs)), seen

        return eqx.filter_value_and_grad(loss, has_aux=True)(network)

    return read(network)


def built(core: str, encoder: str, compute: str) -> AgentNetwork:
    config = AgentConfig(core=core, width=W, encoder=encoder, compute=compute)
    return AgentNetwork(config, PARTS, Categorical(A), key=jax.random.key(0))


def direction(tree: Any) -> np.ndarray:
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    whole = np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(np.float64)
    return whole / np.linalg.norm(whole)


@pytest.mark.parametrize(
    ("core", "encoder"),
    [
        ("feed-forward", "appendix"),
        ("lstm", "appendix-conv"),
        pytest.param("lstm", "plain", marks=pytest.mark.slow),
    ],
)
def test_half_precision_is_close_to_single(core, encoder):
    """Outputs to a few hundredths, gradients in the same direction; what is kept and what comes out is float32."""
    single, half = (built(core, encoder, compute) for compute in ("float32", "bfloat16"))
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(single), jax.tree.leaves(half))
    ((_, wanted), wanted_gradient), ((_, seen), gradient) = seen_by(single), seen_by(half)
    for tree in (half, seen, gradient):
        assert not any(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array)))
    spread = float(jnp.std(wanted.view.beliefs))
    difference = np.abs(np.asarray(seen.view.beliefs - wanted.view.beliefs))
    assert 0.0 < difference.max() < 0.1 * max(spread, 1.0)
    np.testing.assert_allclose(seen.value, wanted.value, atol=0.05)
    np.testing.assert_allclose(seen.policy, wanted.policy, atol=0.01)
    assert direction(gradient) @ direction(wanted_gradient) > 0.99


def test_what_an_lstm_sums_up_is_not_rounded():
    """A cell that adds the same small number at each step goes on growing: in bfloat16 it would stop at 256 of them."""
    lstm = LSTM(1, 1, key=jax.random.key(0))
    lstm = eqx.tree_at(
        lambda c: (c.input_weight, c.state_weight, c.bias),
        lstm,
        (jnp.zeros((1, 4)), jnp.zeros((1, 4)), jnp.asarray([50.0, 50.0, 0.01, 50.0])),
    )
    _, memory = cast_to_precision(lstm, "bfloat16")(
        jnp.zeros((1000, 1, 1)), jnp.ones((1000, 1)), lstm.initial(1)
    )
    assert memory.cell.dtype == jnp.float32
    assert float(memory.cell[0, 0]) == pytest.approx(10.0, rel=0.01)


def test_products_are_rounded_in_what_they_take_only():
    x, weight = jnp.asarray([[1.0 + 2**-10, 1.0]]), jnp.asarray([[1.0], [2**-3]])
    np.testing.assert_array_equal(matmul(x, weight), x @ weight)
    rounded = matmul(x, weight.astype(jnp.bfloat16))
    assert rounded.dtype == jnp.float32
    assert float(rounded[0, 0]) == 1.125


def test_the_replayed_unroll_is_the_acted_one_in_half_precision():
    streams, policy = make_streams(PreviousReward(Recall(1)), 8), make_policy(Recall(1).spec.action)
    config = AgentConfig(width=W, compute="bfloat16")
    network = AgentNetwork(config, describe_parts(streams.spec.observation), policy, key=jax.random.key(0))
    assert network.compute == "bfloat16"
    actor = init_actor(network, policy, streams, jax.random.key(1))
    act = jax.jit(lambda actor: collect_rollout(network, policy, streams, actor, jax.random.key(2), 8))
    _, rollout = act(actor)
    seen = eqx.filter_jit(network)(rollout.trajectories, rollout.memory)
    replayed, acting = (
        policy.log_prob(parameters, rollout.action) for parameters in (seen.policy[:, :-1], rollout.policy)
    )
    np.testing.assert_allclose(replayed, acting, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(seen.value, rollout.value, atol=5e-3)


@pytest.mark.slow
def test_training_in_half_precision_stays_finite_and_keeps_its_parameters_single():
    config = AgentConfig(width=8, unroll=4, epochs=1, minibatches=2, compute="bfloat16")
    training = JaxTraining(make_streams(Recall(1), 4), find_representation("vmpo").build(), config)
    before = training.init_seeds((0,))
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), before)
    network = jax.tree.map(np.asarray, eqx.filter(before.learner.trained.network, eqx.is_array))
    after = training.advance(before, 2)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == shapes
    assert int(after.tally.iterations[0]) == 2
    moved = jax.tree.map(lambda a, b: np.any(a != b), network, after.learner.trained.network)
    assert any(jax.tree.leaves(moved))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(after.learner.trained.network))


@pytest.mark.parametrize(("option", "value"), [("compute", "float16"), ("encoder", "resnet")])
def test_options_that_are_not_there(option, value):
    with pytest.raises(ValueError, match=f"agent.{option}: expected one of .*, got {value}"):
        AgentConfig(**{option: value})
    with pytest.raises(ValueError, match="compute: expected one of float32, bfloat16, got 'float16'"):
        cast_to_precision((), "float16")
