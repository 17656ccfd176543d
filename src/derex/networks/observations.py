"""Encoders of whole observations, which may have several parts: a picture, some numbers, an id.

An observation is a pytree of arrays. Each part gets the encoder of its kind, and their outputs are joined.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.networks.conv import Conv
from derex.networks.encoders import MLP, InputSpec

IMAGE_RANK = 3
SMALLEST_SQUARE = 1e-6


class Ids(eqx.Module):
    """A learnt vector for each id."""

    table: Float[Array, "n size"]

    def __init__(self, n: int, size: int, *, key: PRNGKeyArray):
        self.table = jax.random.normal(key, (n, size))

    def __call__(self, number: Array) -> Float[Array, " size"]:
        return self.table[number]


class Vector(eqx.Module):
    """A rectified layer or two on numbers of any shape, rescaled by what training saw."""

    mlp: MLP

    def __init__(self, shape: tuple[int, ...], size: int, *, key: PRNGKeyArray):
        self.mlp = MLP(int(np.prod(shape)), size, width=size, depth=1, key=key)

    def prepared(self, rows: np.ndarray) -> Vector:
        flat = np.asarray(rows, np.float32).reshape(len(rows), -1)
        return eqx.tree_at(lambda v: v.mlp, self, self.mlp.prepared(flat))

    def __call__(self, values: Array) -> Float[Array, " size"]:
        return self.mlp(values.ravel())


class Parts(eqx.Module):
    """Each part of an observation through its own encoder, joined in the order of the tree's leaves."""

    encoders: tuple[Any, ...]

    def prepared(self, observations: Any) -> Parts:
        parts = zip(self.encoders, jax.tree.leaves(observations), strict=True)
        done = tuple(e.prepared(rows) if hasattr(e, "prepared") else e for e, rows in parts)
        return eqx.tree_at(lambda p: p.encoders, self, done)

    def __call__(self, observation: Any) -> Float[Array, " size"]:
        parts = zip(self.encoders, jax.tree.leaves(observation), strict=True)
        return jnp.concatenate([encoder(part) for encoder, part in parts])


class UnitScale(eqx.Module):
    """An encoder's outputs at root mean square 1, for use before there is data to calibrate by.

    Sparse observations, such as one-hot coordinates, otherwise come out so small that they are hardly heard.
    """

    encoder: Parts

    def __call__(self, observation: Any) -> Float[Array, " size"]:
        encoded = self.encoder(observation)
        return encoded * jax.lax.rsqrt(jnp.mean(jnp.square(encoded)) + SMALLEST_SQUARE)


def encoder_of(specs: list[InputSpec], size: int, *, key: PRNGKeyArray) -> Parts:
    """An encoder for observations with these parts, each giving `size` numbers."""
    keys = jax.random.split(key, len(specs))
    return Parts(tuple(_part(spec, size, part) for spec, part in zip(specs, keys, strict=True)))


def _part(spec: InputSpec, size: int, key: PRNGKeyArray) -> eqx.Module:
    if spec.kind == "ids":
        return Ids(spec.n_ids, size, key=key)
    return Conv(spec.shape, size, key=key) if spec.kind == "images" else Vector(spec.shape, size, key=key)


def kind_of(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """What a part with this shape and type is: pictures have three axes, ids are single integers."""
    if len(shape) == IMAGE_RANK:
        return "images"
    return "ids" if shape == () and dtype.kind in "iu" else "vectors"
