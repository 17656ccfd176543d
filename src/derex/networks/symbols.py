"""Symbols: integers that name things, such as the tiles of a grid. Their order means nothing, so each is one-hot."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer, PRNGKeyArray

from derex.networks.conv import Conv
from derex.networks.precision import matched
from derex.types import Symbols

GRID_RANK = 3
LARGEST_FLAT = 8192  # one-hot numbers; 9 × 9 tiles of three symbols have some 2 000, 25 × 25 have 13 000


def one_hots(values: Integer[Array, "*shape"], sizes: tuple[int, ...]) -> Float[Array, "*cells total"]:
    """The numbers of the last axis, each one-hot, side by side; one that is out of its range is all 0."""
    numbers = values.reshape(*values.shape[:-1], len(sizes)) if values.ndim else values[None]
    return jnp.concatenate([jax.nn.one_hot(numbers[..., i], n) for i, n in enumerate(sizes)], axis=-1)


class FlatSymbols(eqx.Module):
    """All one-hots through a rectified layer and a linear one.

    The weights are drawn for as many active inputs as there are symbols: drawn for all inputs, of which most are 0,
    outputs would be several times too small.
    """

    weight: Float[Array, "inputs size"]
    bias: Float[Array, " size"]
    out: eqx.nn.Linear
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, part: Symbols, size: int, *, key: PRNGKeyArray):
        weight_key, out_key = jax.random.split(key)
        self.sizes = part.sizes
        things = math.prod(part.shape[:-1])
        scale = (2.0 / (things * len(part.sizes))) ** 0.5
        self.weight = scale * jax.random.normal(weight_key, (things * sum(part.sizes), size))
        self.bias = jnp.zeros(size)
        self.out = eqx.nn.Linear(size, size, key=out_key)

    def features(self, values: Integer[Array, "*shape"]) -> Float[Array, " size"]:
        active = matched(one_hots(values, self.sizes).ravel(), self.weight)
        return jax.nn.relu(active @ self.weight + self.bias)

    def __call__(self, values: Integer[Array, "*shape"]) -> Float[Array, " size"]:
        return self.out(self.features(values))


class SymbolGrid(eqx.Module):
    """One-hots as the channels of a picture, for grids whose flat layer would be large."""

    conv: Conv
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, part: Symbols, size: int, *, key: PRNGKeyArray):
        self.sizes = part.sizes
        self.conv = Conv((*part.shape[:-1], sum(part.sizes)), size, key=key)

    def features(self, values: Integer[Array, "h w m"]) -> Float[Array, " width"]:
        return self.conv.features(one_hots(values, self.sizes))

    def __call__(self, values: Integer[Array, "h w m"]) -> Float[Array, " size"]:
        return self.conv(one_hots(values, self.sizes))


def symbol_encoder(part: Symbols, size: int, *, key: PRNGKeyArray) -> FlatSymbols | SymbolGrid:
    """Flat where that is small, by convolutions where a grid is large."""
    inputs = math.prod(part.shape[:-1]) * sum(part.sizes)
    is_large_grid = len(part.shape) == GRID_RANK and inputs > LARGEST_FLAT
    return (SymbolGrid if is_large_grid else FlatSymbols)(part, size, key=key)
