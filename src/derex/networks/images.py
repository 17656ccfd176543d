"""Image encoders: a small strided convolutional network, and the residual network of appendix B's agents.

The residual network (Espeholt et al. 2018, figure 3, right) is for 72 × 96 images. Images are height × width ×
channels; bytes are read as fractions of 255.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, PRNGKeyArray, UInt8

from derex.networks.layers import Fixed, iterate_blocks, match_precision

KERNEL, STRIDE = 3, 2
Image = Float[Array, "h w c"] | UInt8[Array, "h w c"] | Bool[Array, "h w c"]
SMALLEST = 8  # convolutions halve the image until neither side is longer


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
        total = sum(block.sum(axis=0, dtype=np.float64) for block in iterate_blocks(rows))
        mean = np.asarray(total) / len(rows) / (255.0 if rows.dtype == np.uint8 else 1.0)
        return eqx.tree_at(lambda c: c.mean, self, Fixed(jnp.asarray(mean, jnp.float32)))

    def features(self, image: Image) -> Float[Array, " width"]:
        x = match_precision(scale_pixels(image) - self.mean.value, self.hidden.weight)
        for convolution in self.convolutions:
            x = convolution(x)
        return jax.nn.relu(self.hidden(x.ravel()))

    def __call__(self, image: Image) -> Float[Array, " k"]:
        return self.out(self.features(image))


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
