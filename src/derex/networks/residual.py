"""The residual image network of appendix B's agents (Espeholt et al. 2018, figure 3, right): for 72 × 96 pictures."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, PRNGKeyArray

from derex.networks.conv import KERNEL, Image, as_fractions
from derex.networks.precision import matched

CHANNELS = (16, 32, 32)
FEATURES = 256
BLOCKS = 2  # in each section


class Same(eqx.Module):
    """3×3 with zero padding: as many rows and columns come out."""

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


class Block(eqx.Module):
    """x + conv(relu(conv(relu(x)))). It begins as nearly nothing, so that depth does not change the scale."""

    first: Same
    second: Same

    def __init__(self, channels: int, *, key: PRNGKeyArray):
        first_key, second_key = jax.random.split(key)
        self.first = Same(channels, channels, key=first_key)
        self.second = Same(channels, channels, 0.1, key=second_key)

    def __call__(self, x: Float[Array, "h w c"]) -> Float[Array, "h w c"]:
        return x + self.second(jax.nn.relu(self.first(jax.nn.relu(x))))


class Section(eqx.Module):
    """A convolution, the largest of 3×3 at every second place, and residual blocks."""

    enter: Same
    blocks: tuple[Block, ...]

    def __init__(self, channels: int, filters: int, *, key: PRNGKeyArray):
        enter_key, *keys = jax.random.split(key, BLOCKS + 1)
        self.enter = Same(channels, filters, key=enter_key)
        self.blocks = tuple(Block(filters, key=part) for part in keys)

    def __call__(self, image: Float[Array, "h w c"]) -> Float[Array, "h2 w2 d"]:
        x = halved(self.enter(image))
        for block in self.blocks:
            x = block(x)
        return x


def halved(image: Float[Array, "h w c"]) -> Float[Array, "h2 w2 c"]:
    """The largest of 3×3 at every second place."""
    lowest = np.asarray(
        -np.inf, image.dtype
    )  # a constant: else this is not known as a maximum, and has no gradient
    return lax.reduce_window(image, lowest, lax.max, (KERNEL, KERNEL, 1), (2, 2, 1), "SAME")


class Residual(eqx.Module):
    """Three sections and a rectified layer of 256."""

    sections: tuple[Section, ...]
    out: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], features: int = FEATURES, *, key: PRNGKeyArray):
        *keys, out_key = jax.random.split(key, len(CHANNELS) + 1)
        height, wide, depth = shape
        sections = []
        for filters, part in zip(CHANNELS, keys, strict=True):
            sections.append(Section(depth, filters, key=part))
            height, wide, depth = -(-height // 2), -(-wide // 2), filters
        self.sections = tuple(sections)
        self.out = eqx.nn.Linear(height * wide * depth, features, key=out_key)

    def __call__(self, image: Image) -> Float[Array, " features"]:
        x = matched(as_fractions(image), self.out.weight)
        for section in self.sections:
            x = section(x)
        return jax.nn.relu(self.out(jax.nn.relu(x).ravel()))
