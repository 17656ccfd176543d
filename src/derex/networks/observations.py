"""Encoders of whole observations, which may have several parts: a picture, some numbers, symbols, an instruction.

An observation is a pytree of arrays. Each part gets the encoder of its kind, and their outputs are joined. The encoder
of a new kind is a module and one line in `PARTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.networks.amounts import Amounts
from derex.networks.conv import Conv
from derex.networks.encoders import MLP
from derex.networks.instructions import Instructions
from derex.networks.parts import Part, kind_of, part_kind
from derex.networks.precision import raised
from derex.networks.symbols import symbol_encoder

SMALLEST_SQUARE = 1e-6

__all__ = ["PARTS", "Bytes", "Ids", "Parts", "UnitScale", "Vector", "encoder_of", "kind_of", "rows_of"]


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


class Bytes(eqx.Module):
    """Numbers from 0 to 255 as fractions, as in pictures, then as other numbers."""

    vector: Vector

    def __init__(self, shape: tuple[int, ...], size: int, *, key: PRNGKeyArray):
        self.vector = Vector(shape, size, key=key)

    def prepared(self, rows: np.ndarray) -> Bytes:
        fractions = np.asarray(rows, np.float32) / 255.0
        return eqx.tree_at(lambda b: b.vector, self, self.vector.prepared(fractions))

    def __call__(self, values: Array) -> Float[Array, " size"]:
        return self.vector(values / 255.0)


class Parts(eqx.Module):
    """Each part of an observation through its own encoder, joined in the order of the tree's leaves."""

    encoders: tuple[Any, ...]

    def prepared(self, observations: Any) -> Parts:
        parts = zip(self.encoders, jax.tree.leaves(observations), strict=True)
        done = tuple(e.prepared(rows) if hasattr(e, "prepared") else e for e, rows in parts)
        return eqx.tree_at(lambda p: p.encoders, self, done)

    def __call__(self, observation: Any) -> Float[Array, " size"]:
        parts = zip(self.encoders, jax.tree.leaves(observation), strict=True)
        return jnp.concatenate([raised(encoder(part)) for encoder, part in parts])

    @property
    def reads_rows(self) -> bool:
        """Whether a part has a quicker way to read many observations than one by one."""
        return any(hasattr(encoder, "rows") for encoder in self.encoders)

    def rows(self, observations: Any) -> Float[Array, "n size"]:
        """Many observations at once."""
        parts = zip(self.encoders, jax.tree.leaves(observations), strict=True)
        return jnp.concatenate([raised(rows_of(encoder, rows)) for encoder, rows in parts], axis=-1)


class UnitScale(eqx.Module):
    """An encoder's outputs at root mean square 1, for use before there is data to calibrate by.

    Sparse observations, such as one-hot coordinates, otherwise come out so small that they are hardly heard.
    """

    encoder: Parts

    def __call__(self, observation: Any) -> Float[Array, " size"]:
        return _of_unit_scale(self.encoder(observation))

    def rows(self, observations: Any) -> Float[Array, "n size"]:
        return jax.vmap(_of_unit_scale)(self.encoder.rows(observations))


def _of_unit_scale(encoded: Float[Array, " size"]) -> Float[Array, " size"]:
    return encoded * jax.lax.rsqrt(jnp.mean(jnp.square(encoded)) + SMALLEST_SQUARE)


def rows_of(encoder: Any, observations: Any) -> Float[Array, "n size"]:
    """Many observations through an encoder: by its own `rows` where it has it, else one by one."""
    return encoder.rows(observations) if hasattr(encoder, "rows") else jax.vmap(encoder)(observations)


PARTS: dict[str, Callable[[Any, int, PRNGKeyArray], eqx.Module]] = {
    "ids": lambda spec, size, key: Ids(spec.n_ids, size, key=key),
    "images": lambda spec, size, key: Conv(spec.shape, size, key=key),
    "vectors": lambda spec, size, key: Vector(spec.shape, size, key=key),
    "bytes": lambda spec, size, key: Bytes(spec.shape, size, key=key),
    "symbols": lambda spec, size, key: symbol_encoder(spec, size, key=key),
    "words": lambda spec, size, key: Instructions(spec.buckets, size, key=key),
    "amounts": lambda spec, size, key: Amounts(spec.shape, size, key=key),
}
"""Builders (part, size, key) -> encoder, by kind of part."""


def encoder_of(specs: Sequence[Part], size: int, *, key: PRNGKeyArray) -> Parts:
    """An encoder for observations with these parts, each giving `size` numbers."""
    keys = jax.random.split(key, len(specs))
    made = (PARTS[part_kind(spec)](spec, size, part) for spec, part in zip(specs, keys, strict=True))
    return Parts(tuple(made))
