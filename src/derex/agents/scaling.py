"""Rewards brought to unit scale by a running standard deviation (BYOL-Explore, appendix A.3).

    m₁ ← β m₁ + (1 - β) mean r,    m₂ ← β m₂ + (1 - β) mean r²,    w ← β w + (1 - β)
    μ = m₁/w,  μ₂ = m₂/w,    σ = √(max(μ₂ - μ², 0) + 10⁻⁸),    r/σ

Nothing is subtracted: a centred bonus would punish the familiar, and 0 should stay 0. The environment's reward and the
bonus are scaled apart, each with a `Scale` of its own.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

DECAY = 0.99
EPSILON = 1e-8  # added to the variance
CLIP = 10.0  # the first reward after a hundred batches without any comes out at about 1400 otherwise


class Scale(NamedTuple):
    """Exponential means of r and r²; divide by `weight` to correct the bias of starting at zero."""

    first: Float[Array, ""]
    second: Float[Array, ""]
    weight: Float[Array, ""]


def initial_scale() -> Scale:
    """Nothing seen yet."""
    return Scale(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


def update_scale(
    scale: Scale,
    values: Float[Array, "*B"],
    weights: Bool[Array, "*B"] | Float[Array, "*B"] | None = None,
    decay: float = DECAY,
) -> Scale:
    """One batch more. Values of weight 0 (False) do not count; a batch in which none does changes nothing."""
    counted = jnp.ones(values.shape, values.dtype) if weights is None else weights.astype(values.dtype)
    total = jnp.sum(counted)
    r = jnp.where(counted > 0, values, 0.0)
    mean, mean_square = (jnp.sum(counted * x) / jnp.maximum(total, 1.0) for x in (r, jnp.square(r)))
    seen = Scale(mean, mean_square, jnp.ones_like(total))
    mixed = (decay * old + (1.0 - decay) * new for old, new in zip(scale, seen, strict=True))
    return Scale(*(jnp.where(total > 0, new, old) for old, new in zip(scale, mixed, strict=True)))


def deviation(scale: Scale) -> Float[Array, ""]:
    """σ; 1 before any update."""
    weight = jnp.where(scale.weight > 0, scale.weight, 1.0)
    variance = jnp.maximum(scale.second / weight - jnp.square(scale.first / weight), 0.0)
    return jnp.where(scale.weight > 0, jnp.sqrt(variance + EPSILON), 1.0)


def scaled(
    values: Float[Array, "*B"], scale: Scale, clip: float | None = CLIP, smallest: float = 0.0
) -> Float[Array, "*B"]:
    """r/max(σ, smallest), clipped to ±clip (None: not clipped). Before any update σ = 1."""
    divided = values / jnp.maximum(deviation(scale), smallest)
    return divided if clip is None else jnp.clip(divided, -clip, clip)
