"""F₁ as in appendix B: every part embedded by itself, all of them and the last action joined by one layer.

Pictures through a residual network or, as `appendix-conv`, through few convolutions, to 256; words to 20 and an LSTM of
64; scalars and the last action to 20 rectified units; amounts, such as the last reward, through h(x).
Departures: symbols, of which the paper has none, go to 256 rectified units, as do vectors of more than 20 numbers,
which 20 units could not hold; and the joining layer is rectified, as F₁ is everywhere here.
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
    """What the last, linear layer of an encoder reads, rectified; that layer itself is taken away."""

    encoder: Any

    def __init__(self, encoder: Conv | FlatSymbols | SymbolGrid):
        if isinstance(encoder, SymbolGrid):
            self.encoder = eqx.tree_at(lambda e: e.conv.out, encoder, None)
        else:
            self.encoder = eqx.tree_at(lambda e: e.out, encoder, None)

    def __call__(self, part: Array) -> Float[Array, " size"]:
        return self.encoder.features(part)


class Fractions(eqx.Module):
    """Bytes as fractions of 255."""

    encoder: Rectified

    def __call__(self, values: Array) -> Float[Array, " units"]:
        return self.encoder(values / 255.0)


def units_for(shape: tuple[int, ...]) -> int:
    """20, or 256 where there is more to hold."""
    return UNITS if math.prod(shape) <= UNITS else FEATURES


APPENDIX: dict[str, Builder] = {
    "ids": lambda part, key: Ids(part.n_ids, UNITS, key=key),
    "images": lambda part, key: ResidualNetwork(part.shape, key=key),
    "vectors": lambda part, key: Rectified(part.shape, units_for(part.shape), key=key),
    "bytes": lambda part, key: Fractions(Rectified(part.shape, units_for(part.shape), key=key)),
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
    """F₁ of an agent that has seen nothing yet, by the name of its encoder."""
    if name == "plain":
        return make_embedding(observation, action, width, key=key)
    if name not in TABLES:
        raise ValueError(f"encoder: expected one of plain, {', '.join(TABLES)}; got {name!r}.")
    encoder_key, key = jax.random.split(key)
    keys = jax.random.split(encoder_key, len(observation))
    made = (TABLES[name][part_kind(part)](part, each) for part, each in zip(observation, keys, strict=True))
    encoder = Parts(tuple(made))
    return AppendixEmbedding(encoder, encoded_size(encoder, observation), action, width, key=key)


def encoded_size(encoder: Parts, observation: tuple[Part, ...]) -> int:
    """How many numbers come out."""
    example = tuple(jax.ShapeDtypeStruct(part.shape, part.dtype) for part in observation)
    return eqx.filter_eval_shape(encoder, example).shape[0]
