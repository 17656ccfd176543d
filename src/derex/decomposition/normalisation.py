"""Batch normalisation without learnt scale or offset (Section 4), and the running statistics read out later.

In training each half of the data is normalised by its own statistics; `transform` and `bonus` use the
running ones. A learnt scale would make L_diag unbounded, so there is none.

Shapes: b rows of a half, k features. Weights (b,) say how often a row counts: 0/1 for a validity mask, or the
number of times a row was drawn. `None` means that every row counts once.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from derex.decomposition.products import exact_product

EPSILON = 1e-5  # added to variances before the square root
READING_EPSILON = (
    1e-12  # the same where statistics are read: outputs of any scale have correlation 1 with themselves
)
DECAY = 0.99  # of the running statistics: the last hundred updates, roughly


class Moments(NamedTuple):
    """Mean and (biased) variance of each feature."""

    mean: Float[Array, " k"]
    variance: Float[Array, " k"]


def weighted_mean(
    values: Float[Array, "b *rest"], weights: Float[Array, " b"] | None = None
) -> Float[Array, "*rest"]:
    """Mean over rows, row i counted weights[i] times. An all-zero mask gives 0, not NaN."""
    if weights is None:
        return jnp.mean(values, axis=0)
    total = exact_product(weights, values.reshape(len(values), -1)).reshape(values.shape[1:])
    return total / jnp.maximum(jnp.sum(weights), 1.0)


def moments(z: Float[Array, "b k"], weights: Float[Array, " b"] | None = None) -> Moments:
    """Mean and variance of each feature over the rows that count."""
    mean = weighted_mean(z, weights)
    return Moments(mean, weighted_mean(jnp.square(z - mean), weights))


def standardise(
    z: Float[Array, "*b k"], statistics: Moments, epsilon: float = EPSILON
) -> Float[Array, "*b k"]:
    """(z - mean) / √(variance + ε) with the given statistics."""
    return (z - statistics.mean) / jnp.sqrt(statistics.variance + epsilon)


def limited(z: Float[Array, "*b k"], limit: float) -> Float[Array, "*b k"]:
    """Cut at ± limit; beyond it there is no gradient but that through the statistics, which leads back."""
    return z if math.isinf(limit) else jnp.clip(z, -limit, limit)


def batch_normalise(
    z: Float[Array, "b k"], weights: Float[Array, " b"] | None = None, epsilon: float = EPSILON
) -> tuple[Float[Array, "b k"], Moments]:
    """Zero mean and unit variance over the rows that count; gradients flow through the statistics.

    Rows of weight 0 are transformed too but influence nothing; their values must be finite.
    """
    statistics = moments(z, weights)
    return standardise(z, statistics, epsilon), statistics


class Statistics(NamedTuple):
    """What one update shows of the decomposition: moments of both outputs and Σ̂ between unit-variance outputs."""

    f: Moments
    g: Moments
    sigma: Float[Array, "k k"]


class RunningStatistics(NamedTuple):
    """Exponential means of `Statistics`; divide by `weight` to correct the bias of starting at zero."""

    total: Statistics
    weight: Float[Array, ""]


def initial_statistics(k: int) -> RunningStatistics:
    """Nothing seen yet."""
    zero = Moments(jnp.zeros(k), jnp.zeros(k))
    return RunningStatistics(Statistics(zero, zero, jnp.zeros((k, k))), jnp.zeros(()))


def update_statistics(
    running: RunningStatistics, seen: Statistics, decay: float = DECAY
) -> RunningStatistics:
    """Σ̃ ← decay Σ̃ + (1 - decay) Σ̂, and the same for the moments (Section 4, exploration (a))."""

    def mix(old: Array, new: Array) -> Array:
        return decay * old + (1.0 - decay) * new

    total = Statistics(
        Moments(*map(mix, running.total.f, seen.f)),
        Moments(*map(mix, running.total.g, seen.g)),
        mix(running.total.sigma, seen.sigma),
    )
    return RunningStatistics(total, mix(running.weight, jnp.ones(())))


def read_statistics(running: RunningStatistics) -> Statistics:
    """The running means, corrected for their start at zero. Before any update: mean 0, variance 0, Σ̃ = 0."""
    scale = 1.0 / jnp.maximum(running.weight, jnp.finfo(jnp.float32).tiny)
    total = running.total
    return Statistics(
        Moments(*(scale * x for x in total.f)), Moments(*(scale * x for x in total.g)), scale * total.sigma
    )
