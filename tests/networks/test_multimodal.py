"""Every combination of parts, in the agent and in every form of every method."""

from dataclasses import fields, replace
from itertools import combinations
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork, describe_parts
from derex.agents.policy import Categorical
from derex.networks.inputs import UNITS
from derex.networks.paper import FEATURES, ResidualNetwork, make_agent_embedding, max_pool
from derex.networks.tokens import STATE
from derex.representations import METHODS, Sizes
from derex.representations.base import RolloutView
from derex.types import Amount, Symbols, Trajectories, Words

B, S, A, W = 4, 5, 3, 8
DECLARED: dict[str, Any] = {
    "amount": Amount(),
    "bytes": jax.ShapeDtypeStruct((3,), np.uint8),
    "image": jax.ShapeDtypeStruct((9, 8, 3), np.uint8),
    "symbols": Symbols((3, 3, 2), (4, 3)),
    "vector": jax.ShapeDtypeStruct((2,), np.float32),
    "words": Words(4, 20),
}
APPENDIX_SIZES = {
    "amount": 1,
    "bytes": UNITS,
    "image": FEATURES,
    "symbols": FEATURES,
    "vector": UNITS,
    "words": STATE,
}
MIXTURES = [names for count in range(1, 7) for names in combinations(DECLARED, count)]


def steps(names, seed: int = 0) -> Trajectories:
    """Random steps with these parts."""
    rng = np.random.default_rng(seed)
    drawn = {
        "amount": rng.normal(size=(B, S)) * 100.0,
        "bytes": rng.integers(0, 256, (B, S, 3)),
        "image": rng.integers(0, 256, (B, S, 9, 8, 3)),
        "symbols": rng.integers(0, 3, (B, S, 3, 3, 2)),
        "vector": rng.normal(size=(B, S, 2)),
        "words": rng.integers(1, 20, (3, 4))[rng.integers(0, 3, (B, S))],
    }
    observation = {name: jnp.asarray(drawn[name], DECLARED[name].dtype) for name in names}
    first = jnp.asarray(rng.random((B, S)) < 0.3)
    actions = jnp.asarray(np.eye(A, dtype=np.float32)[rng.integers(0, A, (B, S))]) * ~first[..., None]
    return Trajectories(observation, actions, first, jnp.ones((B, S), bool))


def agent(names, encoder: str = "plain") -> AgentNetwork:
    parts = describe_parts({name: DECLARED[name] for name in names})
    config = AgentConfig(width=W, encoder=encoder)
    return AgentNetwork(config, parts, Categorical(A), key=jax.random.key(0))


@pytest.mark.parametrize("encoder", ["plain", "appendix", "appendix-conv"])
def test_every_combination_is_embedded(encoder):
    for names in MIXTURES if encoder == "plain" else [*combinations(DECLARED, 1), tuple(DECLARED)]:
        parts = describe_parts({name: DECLARED[name] for name in names})
        build = eqx.filter_eval_shape(make_agent_embedding, encoder, parts, A, W, key=jax.random.key(0))
        sizes = [W if encoder == "plain" else APPENDIX_SIZES[name] for name in names]
        assert build.from_observation.shape == (sum(sizes), W)
        batch = jax.tree.map(
            lambda part: jax.ShapeDtypeStruct((2, 3, *part.shape), part.dtype),
            {name: DECLARED[name] for name in names},
        )
        out = eqx.filter_eval_shape(lambda e, o: e.embed_observations(o, (2, 3)), build, batch)
        assert (out.shape, out.dtype) == ((2, 3, W), jnp.float32)


@pytest.mark.parametrize("encoder", ["plain", "appendix", "appendix-conv"])
def test_the_agent_sees_all_parts_and_learns_from_them(encoder):
    """Each part by itself changes the policy, and every parameter of its encoder has a gradient."""
    network, trajectories, other = agent(DECLARED, encoder), steps(DECLARED), steps(DECLARED, 1)
    memory = network.core.initial(B)

    @eqx.filter_jit
    def both(network, trajectories):
        def loss(network):
            seen = network(trajectories, memory)
            return jnp.sum(jnp.sin(3.0 * seen.view.beliefs)) + jnp.sum(seen.policy), seen.policy

        return eqx.filter_value_and_grad(loss, has_aux=True)(network)

    (_, policy), gradient = both(network, trajectories)
    assert np.all(np.isfinite(policy))
    parts = gradient.embedding.encoder.encoder if encoder == "plain" else gradient.embedding.encoder
    for part in parts.encoders:
        leaves = jax.tree.leaves(eqx.filter(part, eqx.is_inexact_array))
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves)
        assert (
            sum(np.any(leaf != 0.0) for leaf in leaves) >= len(leaves) - 1
        )  # a picture's mean is not trained
    for name in DECLARED:
        changed = {**trajectories.observation, name: other.observation[name]}
        (_, moved), _ = both(network, trajectories._replace(observation=changed))
        assert np.any(moved != policy), name


@pytest.mark.parametrize(
    ("method", "form"),
    [
        ("vmpo", ""),
        ("rnd", ""),
        ("derex", "belief"),
        pytest.param("derex", "histories", marks=pytest.mark.slow),  # its F₁ is that of the plain agent
        ("derex", "states"),
        pytest.param("laplacian", "belief", marks=pytest.mark.slow),
        pytest.param("derex-rep", "belief", marks=pytest.mark.slow),
    ],
)
def test_every_form_reads_all_parts(method, form):
    """A finite bonus at every step, twice, and a loss to add where it is trained with the agent."""
    chosen: Any = METHODS[method][form or next(iter(METHODS[method]))]
    names = {option.name for option in fields(chosen)}
    changes: dict[str, Any] = {"width": W} if "width" in names else {}
    if "decomposition" in names:
        changes["decomposition"] = replace(chosen.decomposition, k=4)
    if "training" in names:
        changes["training"] = replace(chosen.training, steps=1, streams=4)
    representation = replace(chosen, **changes).build()
    network, trajectories = agent(DECLARED), steps(DECLARED)
    sizes = Sizes(describe_parts(DECLARED), A, W, W, B)
    state = representation.init(jax.random.key(1), sizes)
    view: RolloutView = eqx.filter_jit(network)(trajectories, network.core.initial(B)).view
    observe = eqx.filter_jit(representation.observe)
    for seed in range(2):
        state, bonus = observe(state, view, jax.random.key(seed))
        assert bonus.shape == (B, S)
        assert np.all(np.isfinite(bonus))
    loss, _ = eqx.filter_eval_shape(representation.auxiliary, state.joint, view, jax.random.key(0))
    assert loss.shape == ()


def test_an_encoder_that_is_not_there():
    with pytest.raises(ValueError, match="encoder: expected one of plain, appendix, appendix-conv, got"):
        agent(["vector"], "resnet")


def test_halving_takes_the_largest_of_each_neighbourhood():
    image = np.random.default_rng(0).normal(size=(5, 6, 2)).astype(np.float32)
    out = np.asarray(max_pool(jnp.asarray(image)))
    assert out.shape == (3, 3, 2)
    np.testing.assert_array_equal(out[1, 1], image[1:4, 2:5].max(axis=(0, 1)))


def test_the_residual_network_of_the_paper():
    """72 × 96 pictures: three halvings, 9 × 12 places of 32 channels, 256 numbers."""
    network = eqx.filter_eval_shape(lambda: ResidualNetwork((72, 96, 3), key=jax.random.key(0)))
    assert network.out.weight.shape == (256, 9 * 12 * 32)
    assert [section.enter.weight.shape[-1] for section in network.sections] == [16, 32, 32]
    out = eqx.filter_eval_shape(network, jax.ShapeDtypeStruct((72, 96, 3), jnp.uint8))
    assert out.shape == (256,)
