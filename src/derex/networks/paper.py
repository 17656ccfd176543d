"""F₁ as in appendix B: every part is embedded separately; one layer joins the parts and the previous action.

Images go through a residual network or, as `appendix-conv`, through few convolutions, to 256 numbers; words to 20 and
an LSTM of 64; scalars and the previous action to 20 ReLU units; amounts, such as the last reward, through h(x).
Departures: symbols, which the paper does not have, and vectors of more than 20 numbers go to 256 ReLU units; and the
joining layer is rectified, as F₁ is everywhere here.

The residual network (Espeholt et al. 2018, figure 3, right) is for 72 × 96 images, height × width × channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, PRNGKeyArray

from derex._text import require
from derex.networks.encoders import KERNEL, Conv, Image, scale_pixels
from derex.networks.histories import Embedding, make_embedding
from derex.networks.inputs import UNITS, Hyperbolic, Ids, Part, Parts, Rectified, make_shapes, part_kind
from derex.networks.layers import match_precision, matmul
from derex.networks.tokens import FlatSymbols, Instructions, SymbolGrid, make_symbol_encoder

CHANNELS = (16, 32, 32)
FEATURES = 256
BLOCKS = 2  # in each section


class SameConvolution(eqx.Module):
    """3×3 convolution with zero padding and stride 1."""

    weight: Float[Array, "3 3 channels filters"]
    bias: Float[Array, " filters"]

    def __init__(self, channels: int, filters: int, scale: float = 1.0, *, key: PRNGKeyArray):
        fan_in = KERNEL * KERNEL * channels
        self.weight = (
            scale * jax.random.normal(key, (KERNEL, KERNEL, channels, filters)) * (2.0 / fan_in) ** 0.5
        )
        self.bias = jnp.zeros(filters)

    def __call__(self, image: Float[Array, "h w c"]) -> Float[Array, "h w d"]:
        out = lax.conv_general_dilated(
            image[None], self.weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return out[0] + self.bias


class ResidualBlock(eqx.Module):
    """x + conv(relu(conv(relu(x)))); the residual is small at first, so that depth does not change the scale."""

    first: SameConvolution
    second: SameConvolution

    def __init__(self, channels: int, *, key: PRNGKeyArray):
        first_key, second_key = jax.random.split(key)
        self.first = SameConvolution(channels, channels, key=first_key)
        self.second = SameConvolution(channels, channels, 0.1, key=second_key)

    def __call__(self, x: Float[Array, "h w c"]) -> Float[Array, "h w c"]:
        return x + self.second(jax.nn.relu(self.first(jax.nn.relu(x))))


class ResidualSection(eqx.Module):
    """A convolution, 3×3 max-pooling with stride 2, and residual blocks."""

    enter: SameConvolution
    blocks: tuple[ResidualBlock, ...]

    def __init__(self, channels: int, filters: int, *, key: PRNGKeyArray):
        enter_key, *keys = jax.random.split(key, BLOCKS + 1)
        self.enter = SameConvolution(channels, filters, key=enter_key)
        self.blocks = tuple(ResidualBlock(filters, key=part) for part in keys)

    def __call__(self, image: Float[Array, "h w c"]) -> Float[Array, "h2 w2 d"]:
        x = max_pool(self.enter(image))
        for block in self.blocks:
            x = block(x)
        return x


def max_pool(image: Float[Array, "h w c"]) -> Float[Array, "h2 w2 c"]:
    """3×3 max-pooling with stride 2."""
    lowest = np.asarray(-np.inf, image.dtype)  # a constant: JAX differentiates a recognised maximum only
    return lax.reduce_window(image, lowest, lax.max, (KERNEL, KERNEL, 1), (2, 2, 1), "SAME")


class ResidualNetwork(eqx.Module):
    """Three sections and a rectified layer of 256."""

    sections: tuple[ResidualSection, ...]
    out: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], features: int = FEATURES, *, key: PRNGKeyArray):
        *keys, out_key = jax.random.split(key, len(CHANNELS) + 1)
        height, wide, depth = shape
        sections = []
        for filters, part in zip(CHANNELS, keys, strict=True):
            sections.append(ResidualSection(depth, filters, key=part))
            height, wide, depth = -(-height // 2), -(-wide // 2), filters
        self.sections = tuple(sections)
        self.out = eqx.nn.Linear(height * wide * depth, features, key=out_key)

    def __call__(self, image: Image) -> Float[Array, " features"]:
        x = match_precision(scale_pixels(image), self.out.weight)
        for section in self.sections:
            x = section(x)
        return jax.nn.relu(self.out(jax.nn.relu(x).ravel()))


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
    require(name in TABLES, "encoder", f"one of plain, {', '.join(TABLES)}", repr(name))
    encoder_key, key = jax.random.split(key)
    keys = jax.random.split(encoder_key, len(observation))
    made = (TABLES[name][part_kind(part)](part, each) for part, each in zip(observation, keys, strict=True))
    encoder = Parts(tuple(made))
    size = eqx.filter_eval_shape(encoder, make_shapes(observation)).shape[0]
    return AppendixEmbedding(encoder, size, action, width, key=key)
