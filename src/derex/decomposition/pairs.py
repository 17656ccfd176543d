"""Paired outputs of f and g, and the estimates read off them.

Shapes: b rows of a half, k features. Weights (b,) are masks or counts (`derex.decomposition.normalisation`).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient as sg
from jaxtyping import Float

from derex.decomposition.normalisation import READING_EPSILON, Moments, Statistics, batch_normalise
from derex.decomposition.products import exact_product


class Half(NamedTuple):
    """Outputs of both networks on one half of the data; row i of `f` and of `g` come from the same pair."""

    f: Float[Array, "b k"]
    g: Float[Array, "b k"]
    weights: Float[Array, " b"] | None = None


def sigma_hat(
    f: Float[Array, "b k"], g: Float[Array, "b k"], weights: Float[Array, " b"] | None = None
) -> Float[Array, "k k"]:
    """Σ̂(θ) = 1/b Σ_i f(s_i) g(s'_i)ᵀ (Section 4); over a whole data set it is Σ(θ)."""
    if weights is None:
        return exact_product(f.T, g) / f.shape[0]
    return exact_product((f * weights[:, None]).T, g) / jnp.maximum(jnp.sum(weights), 1.0)


def both_statistics(first: Half, second: Half) -> Statistics:
    """Mean of what the halves say: moments, and Σ̂ after each output is rescaled to zero mean and unit variance."""
    halves = [Half(sg(half.f), sg(half.g), half.weights) for half in (first, second)]
    seen = [_statistics(half) for half in halves]
    rows = [_rows(half) for half in halves]
    share = rows[0] / jnp.maximum(rows[0] + rows[1], 1.0)  # a half that its mask empties says nothing

    def mean(a: Array, b: Array) -> Array:
        return share * a + (1.0 - share) * b

    return Statistics(
        Moments(*map(mean, seen[0].f, seen[1].f)),
        Moments(*map(mean, seen[0].g, seen[1].g)),
        mean(seen[0].sigma, seen[1].sigma),
    )


def _statistics(half: Half) -> Statistics:
    f, f_moments = batch_normalise(half.f, half.weights, READING_EPSILON)
    g, g_moments = batch_normalise(half.g, half.weights, READING_EPSILON)
    return Statistics(f_moments, g_moments, sigma_hat(f, g, half.weights))


def _rows(half: Half) -> Float[Array, ""]:
    return jnp.asarray(half.f.shape[0], half.f.dtype) if half.weights is None else jnp.sum(half.weights)
