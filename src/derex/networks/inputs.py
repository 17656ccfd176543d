"""Encoders of whole observations, which may have several parts: images, numbers, symbols, instructions, amounts.

An observation is a pytree of arrays. `describe_parts` turns an environment's declaration into parts; each part gets the
encoder of its kind (`PARTS`), and their outputs are concatenated. A new kind is a module and one entry in `PARTS`.
`flatten_observation` is for networks without a choice of encoders, such as random ones: symbols become one-hots, an
instruction its word counts, and everything else plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Integer, Num, PRNGKeyArray, Shaped

from derex._text import require
from derex.networks.encoders import MLP, Conv, InputSpec
from derex.networks.layers import match_precision, to_float32
from derex.networks.tokens import Instructions, encode_one_hot, make_symbol_encoder
from derex.types import Amount, Symbols, Words

IMAGE_RANK = 3
SMALLEST_VOCABULARY = 2  # 0 (padding) and one bucket
SLOPE = 0.001  # of h(x) far out, where the root hardly grows
UNITS = 20
SMALLEST_SQUARE = 1e-6


class ByteNumbers(NamedTuple):
    """Numbers from 0 to 255, read as fractions of 255."""

    shape: tuple[int, ...]
    dtype: str = "uint8"


Part = InputSpec | ByteNumbers | Symbols | Words | Amount
"""A part of an observation; all have a `shape`."""

_KINDS: dict[type, str] = {ByteNumbers: "bytes", Symbols: "symbols", Words: "words", Amount: "amounts"}


def infer_kind(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Infer the kind of an array: images have three axes, ids are single integers, the rest are vectors."""
    if len(shape) == IMAGE_RANK:
        return "images"
    return "ids" if shape == () and dtype.kind in "iu" else "vectors"


def part_kind(part: Part) -> str:
    """The key of a part in `PARTS`."""
    return (part.kind or "vectors") if isinstance(part, InputSpec) else _KINDS[type(part)]


def describe_parts(observation: Any) -> tuple[Part, ...]:
    """The parts of an environment's observation, in the order of the tree's leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(observation)
    require(leaves, "observation", "at least one part", repr(observation))
    return tuple(_part(f"observation{jax.tree_util.keystr(place)}", leaf) for place, leaf in leaves)


def _part(name: str, leaf: Any) -> Part:
    if isinstance(leaf, Symbols):
        numbers = leaf.shape[-1] if leaf.shape else 1
        expected = (
            f"{numbers} sizes of at least 1 for shape {leaf.shape}, one for each number of the last axis"
        )
        good = len(leaf.sizes) == numbers and min(leaf.sizes, default=0) >= 1
        require(good, f"{name}: Symbols", expected, leaf.sizes)
    if isinstance(leaf, Words):
        expected = f"a length of at least 1 and {SMALLEST_VOCABULARY} buckets or more (0 is padding)"
        good = leaf.length >= 1 and leaf.buckets >= SMALLEST_VOCABULARY
        require(good, f"{name}: Words", expected, f"length {leaf.length} and {leaf.buckets} buckets")
    if isinstance(leaf, Symbols | Words | Amount):
        return leaf
    shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
    kind = infer_kind(shape, dtype)
    if kind == "ids":
        raise ValueError(
            f"{name}: a single integer ({dtype}) of unknown range. If it is categorical, declare "
            "Symbols((), (how many,)); if it is a count, give it as a float or declare Amount()."
        )
    if kind == "images" and dtype.kind in "iu" and dtype != np.uint8:
        raise ValueError(
            f"{name}: integers ({dtype}) of shape {shape} are not an image, which has bytes or floats. Declare "
            "Symbols(shape, sizes) if they are categorical, or give them as floats."
        )
    return ByteNumbers(shape) if kind == "vectors" and dtype == np.uint8 else InputSpec(shape, kind=kind)


def signed_hyperbolic(x: Num[Array, "*shape"]) -> Float[Array, "*shape"]:
    """h(x) = sign(x) (√(|x| + 1) − 1) + 0.001 x (Pohlen et al. 2018, proposition A.2)."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + SLOPE * x


class Rectified(eqx.Module):
    """Numbers of any shape through a linear layer and a ReLU (appendix B)."""

    layer: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], units: int = UNITS, *, key: PRNGKeyArray):
        self.layer = eqx.nn.Linear(math.prod(shape), units, key=key)

    def __call__(self, values: Shaped[Array, "*shape"]) -> Float[Array, " units"]:
        numbers = values.ravel().astype(jnp.promote_types(values.dtype, jnp.float32))
        return jax.nn.relu(self.layer(match_precision(numbers, self.layer.weight)))


class Hyperbolic(eqx.Module):
    """h of each number (appendix B)."""

    def __call__(self, values: Num[Array, "*shape"]) -> Float[Array, " size"]:
        return signed_hyperbolic(values).ravel()


class AmountUnits(eqx.Module):
    """h of each number, then a few ReLU units."""

    units: Rectified

    def __init__(self, shape: tuple[int, ...], units: int = UNITS, *, key: PRNGKeyArray):
        self.units = Rectified(shape, units, key=key)

    def __call__(self, values: Num[Array, "*shape"]) -> Float[Array, " units"]:
        return self.units(signed_hyperbolic(values))


class Amounts(eqx.Module):
    """`AmountUnits` and a linear layer to `size` numbers."""

    units: AmountUnits
    out: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], size: int, *, key: PRNGKeyArray):
        units_key, out_key = jax.random.split(key)
        self.units = AmountUnits(shape, key=units_key)
        self.out = eqx.nn.Linear(UNITS, size, key=out_key)

    def __call__(self, values: Num[Array, "*shape"]) -> Float[Array, " size"]:
        return self.out(self.units(values))


class Ids(eqx.Module):
    """A learnt vector for each id."""

    table: Float[Array, "n size"]

    def __init__(self, n: int, size: int, *, key: PRNGKeyArray):
        self.table = jax.random.normal(key, (n, size))

    def __call__(self, number: Array) -> Float[Array, " size"]:
        return self.table[number]


class Vector(eqx.Module):
    """Standardised numbers of any shape through an MLP with one hidden layer."""

    mlp: MLP

    def __init__(self, shape: tuple[int, ...], size: int, *, key: PRNGKeyArray):
        self.mlp = MLP(int(np.prod(shape)), size, width=size, depth=1, key=key)

    def prepared(self, rows: np.ndarray) -> Vector:
        flat = np.asarray(rows, np.float32).reshape(len(rows), -1)
        return eqx.tree_at(lambda v: v.mlp, self, self.mlp.prepared(flat))

    def __call__(self, values: Array) -> Float[Array, " size"]:
        return self.mlp(values.ravel())


class Bytes(eqx.Module):
    """Bytes as fractions of 255, then as a vector."""

    vector: Vector

    def __init__(self, shape: tuple[int, ...], size: int, *, key: PRNGKeyArray):
        self.vector = Vector(shape, size, key=key)

    def prepared(self, rows: np.ndarray) -> Bytes:
        fractions = np.asarray(rows, np.float32) / 255.0
        return eqx.tree_at(lambda b: b.vector, self, self.vector.prepared(fractions))

    def __call__(self, values: Array) -> Float[Array, " size"]:
        return self.vector(values / 255.0)


class Parts(eqx.Module):
    """Each part of an observation through its own encoder, concatenated in the order of the tree's leaves."""

    encoders: tuple[Any, ...]

    def prepared(self, observations: Any) -> Parts:
        parts = zip(self.encoders, jax.tree.leaves(observations), strict=True)
        done = tuple(e.prepared(rows) if hasattr(e, "prepared") else e for e, rows in parts)
        return eqx.tree_at(lambda p: p.encoders, self, done)

    def __call__(self, observation: Any) -> Float[Array, " size"]:
        parts = zip(self.encoders, jax.tree.leaves(observation), strict=True)
        return jnp.concatenate([to_float32(encoder(part)) for encoder, part in parts])

    @property
    def reads_rows(self) -> bool:
        """Whether an encoder has a faster batched method `rows`."""
        return any(hasattr(encoder, "rows") for encoder in self.encoders)

    def rows(self, observations: Any) -> Float[Array, "n size"]:
        """Encode many observations."""
        parts = zip(self.encoders, jax.tree.leaves(observations), strict=True)
        return jnp.concatenate([to_float32(encode_rows(encoder, rows)) for encoder, rows in parts], axis=-1)


class UnitScale(eqx.Module):
    """An encoder with outputs rescaled to root mean square 1, for use before there is data to calibrate.

    Sparse observations, such as one-hot coordinates, would otherwise give outputs too small to have an effect.
    """

    encoder: Parts

    def __call__(self, observation: Any) -> Float[Array, " size"]:
        return self._rescale(self.encoder(observation))

    def rows(self, observations: Any) -> Float[Array, "n size"]:
        return jax.vmap(self._rescale)(self.encoder.rows(observations))

    def _rescale(self, encoded: Float[Array, " size"]) -> Float[Array, " size"]:
        return encoded * jax.lax.rsqrt(jnp.mean(jnp.square(encoded)) + SMALLEST_SQUARE)


def encode_rows(encoder: Any, observations: Any) -> Float[Array, "n size"]:
    """Encode many observations: by the encoder's own `rows` if it has one, else with `vmap`."""
    return encoder.rows(observations) if hasattr(encoder, "rows") else jax.vmap(encoder)(observations)


PARTS: dict[str, Callable[[Any, int, PRNGKeyArray], eqx.Module]] = {
    "ids": lambda spec, size, key: Ids(spec.n_ids, size, key=key),
    "images": lambda spec, size, key: Conv(spec.shape, size, key=key),
    "vectors": lambda spec, size, key: Vector(spec.shape, size, key=key),
    "bytes": lambda spec, size, key: Bytes(spec.shape, size, key=key),
    "symbols": lambda spec, size, key: make_symbol_encoder(spec, size, key=key),
    "words": lambda spec, size, key: Instructions(spec.buckets, size, key=key),
    "amounts": lambda spec, size, key: Amounts(spec.shape, size, key=key),
}
"""Builders (part, size, key) -> encoder, by kind of part."""


def make_encoder(specs: Sequence[Part], size: int, *, key: PRNGKeyArray) -> Parts:
    """An encoder for observations with these parts, each giving `size` numbers."""
    keys = jax.random.split(key, len(specs))
    made = (PARTS[part_kind(spec)](spec, size, part) for spec, part in zip(specs, keys, strict=True))
    return Parts(tuple(made))


def compute_flat_size(parts: tuple[Part, ...]) -> int:
    """Size of an observation after `flatten_observation`."""
    return jax.eval_shape(lambda *leaves: flatten_observation(parts, leaves, ()), *make_shapes(parts)).size


def make_shapes(parts: tuple[Part, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes and dtypes of an observation's leaves."""
    return tuple(jax.ShapeDtypeStruct(part.shape, part.dtype) for part in parts)


def flatten_observation(
    parts: tuple[Part, ...], observation: Any, axes: tuple[int, ...]
) -> Float[Array, "*axes size"]:
    """Flatten and concatenate the parts of observations with these leading axes."""
    leaves = zip(parts, jax.tree.leaves(observation), strict=True)
    return jnp.concatenate([_numbers(part, leaf).reshape(*axes, -1) for part, leaf in leaves], axis=-1)


def _numbers(part: Part, values: Array) -> Array:
    if isinstance(part, Symbols):
        return encode_one_hot(values if part.shape else values[..., None], part.sizes)
    return word_counts(values, part.buckets) if isinstance(part, Words) else values.astype(jnp.float32)


def word_counts(words: Integer[Array, "*axes length"], buckets: int) -> Float[Array, "*axes buckets"]:
    """Count each word of an instruction; 0 is padding."""
    rows = words.reshape(-1, words.shape[-1])
    counts = jnp.zeros((len(rows), buckets)).at[jnp.arange(len(rows))[:, None], rows].add(rows > 0)
    return counts.reshape(*words.shape[:-1], buckets)
