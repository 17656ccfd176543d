"""F₁ as in appendix B: every part is embedded separately; one layer joins the parts and the previous action.

Images go through a residual network or, as `appendix-conv`, through few convolutions, to 256 numbers; words to 20 and
an LSTM of 64; scalars and the previous action to 20 ReLU units; amounts, such as the last reward, through h(x).
Departures: symbols, which the paper does not have, and vectors of more than 20 numbers go to 256 ReLU units; and the
joining layer is rectified, as F₁ is everywhere here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.networks.histories import Embedding, make_embedding
from derex.networks.images import FEATURES, Conv, ResidualNetwork
from derex.networks.inputs import UNITS, Hyperbolic, Ids, Part, Parts, Rectified, part_kind
from derex.networks.layers import matmul
from derex.networks.tokens import FlatSymbols, Instructions, SymbolGrid, make_symbol_encoder

Builder = Callable[[Any, PRNGKeyArray], eqx.Module]


class Features(eqx.Module):
    """An encoder without its last, linear layer: returns the rectified features."""

    encoder: Any

    def __init__(self, encoder: Conv | FlatSymbols | SymbolGrid):
        last = (lambda e: e.conv.out) if isinstance(encoder, SymbolGrid) else (lambda e: e.out)
        self.encoder = eqx.tree_at(last, encoder, None)

    def __call__(self, part: Array) -> Float[Array, " size"]:
        return self.encoder.features(part)


class Fractions(eqx.Module):
    """Bytes as fractions of 255."""

    encoder: Rectified

    def __call__(self, values: Array) -> Float[Array, " units"]:
        return self.encoder(values / 255.0)


def _rectified(part: Any, key: PRNGKeyArray) -> Rectified:
    """20 units, or 256 for more than 20 inputs."""
    return Rectified(part.shape, UNITS if math.prod(part.shape) <= UNITS else FEATURES, key=key)


APPENDIX: dict[str, Builder] = {
    "ids": lambda part, key: Ids(part.n_ids, UNITS, key=key),
    "images": lambda part, key: ResidualNetwork(part.shape, key=key),
    "vectors": _rectified,
    "bytes": lambda part, key: Fractions(_rectified(part, key)),
    "symbols": lambda part, key: Features(make_symbol_encoder(part, FEATURES, key=key)),
    "words": lambda part, key: Instructions(part.buckets, None, key=key),
    "amounts": lambda part, key: Hyperbolic(),
}
"""Builders (part, key) -> encoder, by kind of part."""

APPENDIX_CONV = APPENDIX | {"images": lambda part, key: Features(Conv(part.shape, FEATURES, key=key))}

TABLES: dict[str, dict[str, Builder]] = {"appendix": APPENDIX, "appendix-conv": APPENDIX_CONV}


class AppendixEmbedding(Embedding):
    """F₁ with 20 rectified units for the previous action."""

    action_weight: Float[Array, "choices units"]
    action_bias: Float[Array, " units"]

    def __init__(self, encoder: Any, size: int, choices: int, width: int, *, key: PRNGKeyArray):
        joining_key, action_key = jax.random.split(key)
        super().__init__(encoder, size, UNITS, width, (1.0 / UNITS) ** 0.5, key=joining_key)
        self.action_weight = jax.random.normal(action_key, (choices, UNITS))
        self.action_bias = jnp.zeros(UNITS)

    def embed_actions(self, previous_action: Array) -> Float[Array, "*batch width"]:
        if jnp.issubdtype(previous_action.dtype, jnp.integer):
            previous_action = jax.nn.one_hot(previous_action, len(self.action_weight))
        units = jax.nn.relu(matmul(previous_action, self.action_weight) + self.action_bias)
        return matmul(units, self.from_action)


def make_agent_embedding(
    name: str, observation: tuple[Part, ...], action: int, width: int, *, key: PRNGKeyArray
) -> Embedding:
    """Build the untrained F₁ of an agent by the name of its encoder."""
    if name == "plain":
        return make_embedding(observation, action, width, key=key)
    if name not in TABLES:
        raise ValueError(f"encoder: expected one of plain, {', '.join(TABLES)}; got {name!r}.")
    encoder_key, key = jax.random.split(key)
    keys = jax.random.split(encoder_key, len(observation))
    made = (TABLES[name][part_kind(part)](part, each) for part, each in zip(observation, keys, strict=True))
    encoder = Parts(tuple(made))
    example = tuple(jax.ShapeDtypeStruct(part.shape, part.dtype) for part in observation)
    size = eqx.filter_eval_shape(encoder, example).shape[0]
    return AppendixEmbedding(encoder, size, action, width, key=key)
