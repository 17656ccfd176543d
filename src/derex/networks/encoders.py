"""The built-in encoders, and the table through which they are chosen by name.

An encoder is an Equinox module that maps *one* observation to k numbers. Two methods are optional:

- `features(x)`: the input of its last, linear layer, by which `derex.decomposition.bonus` recognises inputs unlike any
  in training.
- `prepared(rows)`: the module with its `Fixed` parts set from the training rows, once, before training.

A new encoder is a module and one entry in `ENCODERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int, Num, PRNGKeyArray, UInt8

from derex.networks.layers import Fixed, Standardise, compute_mean, iterate_blocks, match_precision

InputKind = Literal["ids", "vectors", "images"]
Image = Float[Array, "h w c"] | UInt8[Array, "h w c"] | Bool[Array, "h w c"]
KERNEL, STRIDE = 3, 2
SMALLEST = 8  # convolutions halve the image until neither side is longer


class InputSpec(NamedTuple):
    """Shape, kind and dtype of one side's observations."""

    shape: tuple[int, ...]  # of one observation; () for ids
    n_ids: int = 0  # size of the table, for ids
    kind: InputKind | None = None  # None: anything, for the user's own modules
    dtype: str = "float32"  # of the network's input


class Tabular(eqx.Module):
    """One row per state: f(x_s) = Uᵀ x_s with x_s one-hot (Section 3).

    f(s) = U_s c_s with c_s = d(s)^-½ fixed: the singular functions of rare states are large, like d(s)^-½, and would
    take as many more steps to learn. Initial values of f do not depend on c.
    """

    table: Float[Array, "n k"]
    scale: Fixed

    def __init__(self, n: int, k: int, *, key: PRNGKeyArray):
        self.table = jax.random.normal(key, (n, k))
        self.scale = Fixed(jnp.ones((n, 1)))

    def prepared(self, rows: np.ndarray) -> Tabular:
        visits = np.maximum(count_ids(rows, len(self.table)), 1)
        scale = jnp.asarray(np.sqrt(len(rows) / visits), self.table.dtype)[:, None]
        return eqx.tree_at(lambda t: (t.table, t.scale), self, (self.table / scale, Fixed(scale)))

    def __call__(self, state: Int[Array, ""]) -> Float[Array, " k"]:
        return self.table[state] * self.scale.value[state]


def count_ids(ids: np.ndarray, size: int) -> Int[np.ndarray, " size"]:
    """Count the occurrences of the ids 0, …, size - 1 in one pass."""
    total = np.zeros(size, np.int64)
    for block in iterate_blocks(ids):
        total += np.bincount(block, minlength=size)
    return total


class MLP(eqx.Module):
    """A multi-layer perceptron with two hidden ReLU layers by default."""

    scale: Standardise
    hidden: tuple[eqx.nn.Linear, ...]
    out: eqx.nn.Linear

    def __init__(self, size: int, k: int, width: int = 256, depth: int = 2, *, key: PRNGKeyArray):
        *keys, last = jax.random.split(key, depth + 1)
        sizes = [size] + [width] * depth
        self.scale = Standardise(size)
        self.hidden = tuple(
            eqx.nn.Linear(a, b, key=key) for a, b, key in zip(sizes[:-1], sizes[1:], keys, strict=True)
        )
        self.out = eqx.nn.Linear(sizes[-1], k, key=last)

    def prepared(self, rows: np.ndarray) -> MLP:
        return eqx.tree_at(lambda m: m.scale, self, self.scale.prepared(rows))

    def features(self, x: Num[Array, " size"]) -> Float[Array, " width"]:
        x = match_precision(self.scale(x), self.out.weight)
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return x

    def __call__(self, x: Num[Array, " size"]) -> Float[Array, " k"]:
        return self.out(self.features(x))


class Linear(MLP):
    """f(x) = Wᵀ x + c: no hidden layer."""

    def __init__(self, size: int, k: int, *, key: PRNGKeyArray):
        self.scale, self.hidden = Standardise(size), ()
        self.out = eqx.nn.Linear(size, k, key=key)


class Convolution(eqx.Module):
    """3×3, stride 2, zero padding, then a rectifier."""

    weight: Float[Array, "9*channels filters"]
    bias: Float[Array, " filters"]

    def __init__(self, channels: int, filters: int, *, key: PRNGKeyArray):
        fan_in = KERNEL * KERNEL * channels
        self.weight = jax.random.normal(key, (fan_in, filters)) * (2.0 / fan_in) ** 0.5
        self.bias = jnp.zeros(filters)

    def __call__(self, image: Float[Array, "h w c"]) -> Float[Array, "h2 w2 d"]:
        # On CPUs XLA's gradient of a convolution is an order of magnitude slower than one matrix product over
        # patches; on accelerators it is the other way round.
        out = lax.platform_dependent(image, self.weight, cpu=convolve_by_patches, default=convolve)
        return jax.nn.relu(out + self.bias)


def convolve_by_patches(image: Float[Array, "h w c"], weight: Float[Array, "n d"]) -> Float[Array, "h2 w2 d"]:
    """The convolution as a matrix product over the nine strided shifts of the image."""
    height, width, _ = image.shape
    h, w = -(-height // STRIDE), -(-width // STRIDE)
    padded = jnp.pad(image, ((1, 2), (1, 2), (0, 0)))
    shifts = [
        padded[i : i + STRIDE * h : STRIDE, j : j + STRIDE * w : STRIDE]
        for i in range(KERNEL)
        for j in range(KERNEL)
    ]
    return jnp.concatenate(shifts, axis=-1) @ weight


def convolve(image: Float[Array, "h w c"], weight: Float[Array, "n d"]) -> Float[Array, "h2 w2 d"]:
    """The same convolution through XLA."""
    height, width, channels = image.shape
    h, w = -(-height // STRIDE), -(-width // STRIDE)
    out = lax.conv_general_dilated(
        image[None],
        weight.reshape(KERNEL, KERNEL, channels, -1),
        window_strides=(STRIDE, STRIDE),
        padding=[(1, STRIDE * h - height), (1, STRIDE * w - width)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return out[0]


def scale_pixels(image: Image) -> Float[Array, "h w c"]:
    """Bytes as fractions of 255, booleans as 0 and 1; other images unchanged."""
    if image.dtype == jnp.bool_:
        return image.astype(jnp.float32)
    return image / 255.0 if image.dtype == jnp.uint8 else image


class Conv(eqx.Module):
    """Strided 3×3 convolutions down to 8×8 or less, a hidden layer, and a linear one to k numbers.

    The mean training image is subtracted: constant parts of the image carry no information, and their activations would
    dominate the few pixels that differ.
    """

    mean: Fixed
    convolutions: tuple[Convolution, ...]
    hidden: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(
        self, shape: tuple[int, ...], k: int, channels: int = 16, width: int = 256, *, key: PRNGKeyArray
    ):
        keys = iter(jax.random.split(key, 34))
        self.mean = Fixed(jnp.zeros(shape))
        height, wide, depth = shape
        layers = []
        while not layers or max(height, wide) > SMALLEST:
            filters = channels if not layers else 2 * channels
            layers.append(Convolution(depth, filters, key=next(keys)))
            height, wide, depth = -(-height // STRIDE), -(-wide // STRIDE), filters
        self.convolutions = tuple(layers)
        self.hidden = eqx.nn.Linear(height * wide * depth, width, key=next(keys))
        self.out = eqx.nn.Linear(width, k, key=next(keys))

    def prepared(self, rows: np.ndarray) -> Conv:
        mean = compute_mean(rows) / (255.0 if rows.dtype == np.uint8 else 1.0)
        return eqx.tree_at(lambda c: c.mean, self, Fixed(jnp.asarray(mean, jnp.float32)))

    def features(self, image: Image) -> Float[Array, " width"]:
        x = match_precision(scale_pixels(image) - self.mean.value, self.hidden.weight)
        for convolution in self.convolutions:
            x = convolution(x)
        return jax.nn.relu(self.hidden(x.ravel()))

    def __call__(self, image: Image) -> Float[Array, " k"]:
        return self.out(self.features(image))


class EncoderKind(NamedTuple):
    """Inputs, default learning rate and builder of a named encoder."""

    inputs: InputKind
    learning_rate: float
    build: Callable[[PRNGKeyArray, InputSpec, int], eqx.Module]


ENCODERS: dict[str, EncoderKind] = {
    "tabular": EncoderKind("ids", 1e-2, lambda key, spec, k: Tabular(spec.n_ids, k, key=key)),
    "linear": EncoderKind("vectors", 1e-2, lambda key, spec, k: Linear(spec.shape[0], k, key=key)),
    "mlp": EncoderKind("vectors", 1e-3, lambda key, spec, k: MLP(spec.shape[0], k, key=key)),
    "conv": EncoderKind("images", 1e-3, lambda key, spec, k: Conv(spec.shape, k, key=key)),
}
