"""Batch normalisation without learnt scale or offset (Section 4), Σ̂, and their running means.

In training each half of the data is normalised by its own statistics; `transform` and `bonus` use the running ones. A
learnt scale would make L_diag unbounded, so there is none.

Shapes: b rows of a half, k features. Weights (b,) say how often a row counts: 0/1 for a validity mask, or the number of
times a row was drawn. `None` counts every row once.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import Precision
from jax.lax import stop_gradient as sg
from jaxtyping import Float

EPSILON = 1e-5  # added to variances before the square root
READING_EPSILON = 1e-12  # the same for statistics: outputs of any scale have correlation 1 with themselves
DECAY = 0.99  # of the running statistics: roughly the last hundred updates


class Moments(NamedTuple):
    """Mean and (biased) variance of each feature."""

    mean: Float[Array, " k"]
    variance: Float[Array, " k"]


class BatchStatistics(NamedTuple):
    """Statistics of one update: moments of both outputs, and Σ̂ between outputs rescaled to unit variance."""

    f: Moments
    g: Moments
    sigma: Float[Array, "k k"]


class RunningStatistics(NamedTuple):
    """Exponential means of `BatchStatistics`; dividing by `weight` corrects the bias of starting at zero."""

    total: BatchStatistics
    weight: Float[Array, ""]


class Half(NamedTuple):
    """Outputs of both networks on one half of the data; row i of `f` and of `g` come from the same pair."""

    f: Float[Array, "b k"]
    g: Float[Array, "b k"]
    weights: Float[Array, " b"] | None = None


def precise_matmul(a: Array, b: Array) -> Array:
    """a @ b in full single precision.

    Accelerators round the operands of a float32 product to 10 bits of mantissa by default (NVIDIA's TF32). In a layer
    of a network that is harmless. A correlation would be wrong by 1e-3, where the ridge that keeps a correlation matrix
    invertible is 1e-5: its Cholesky factorisation fails, or the bonus consists of rounding errors.
    """
    return jnp.matmul(a, b, precision=Precision.HIGHEST)


def weighted_mean(
    values: Float[Array, "b *rest"], weights: Float[Array, " b"] | None = None
) -> Float[Array, "*rest"]:
    """Mean over rows, row i counted weights[i] times. An all-zero mask gives 0, not NaN."""
    if weights is None:
        return jnp.mean(values, axis=0)
    total = precise_matmul(weights, values.reshape(len(values), -1)).reshape(values.shape[1:])
    return total / jnp.maximum(jnp.sum(weights), 1.0)


def sigma_hat(
    f: Float[Array, "b k"], g: Float[Array, "b k"], weights: Float[Array, " b"] | None = None
) -> Float[Array, "k k"]:
    """Σ̂(θ) = 1/b Σ_i f(s_i) g(s'_i)ᵀ (Section 4); over a whole data set it is Σ(θ)."""
    if weights is None:
        return precise_matmul(f.T, g) / f.shape[0]
    return precise_matmul((f * weights[:, None]).T, g) / jnp.maximum(jnp.sum(weights), 1.0)


def compute_moments(z: Float[Array, "b k"], weights: Float[Array, " b"] | None = None) -> Moments:
    """Mean and variance of each feature over the rows that count."""
    mean = weighted_mean(z, weights)
    return Moments(mean, weighted_mean(jnp.square(z - mean), weights))


def standardise(
    z: Float[Array, "*b k"], statistics: Moments, epsilon: float = EPSILON
) -> Float[Array, "*b k"]:
    """(z - mean) / √(variance + ε) with the given statistics."""
    return (z - statistics.mean) / jnp.sqrt(statistics.variance + epsilon)


def batch_normalise(
    z: Float[Array, "b k"], weights: Float[Array, " b"] | None = None, epsilon: float = EPSILON
) -> tuple[Float[Array, "b k"], Moments]:
    """Zero mean and unit variance over the rows that count; gradients flow through the statistics.

    Rows of weight 0 are transformed too but influence nothing; their values must be finite.
    """
    statistics = compute_moments(z, weights)
    return standardise(z, statistics, epsilon), statistics


def clip_outputs(z: Float[Array, "*b k"], limit: float) -> Float[Array, "*b k"]:
    """z clipped to ± limit; clipped values have a gradient only through the statistics, which leads back."""
    return z if math.isinf(limit) else jnp.clip(z, -limit, limit)


def compute_batch_statistics(first: Half, second: Half) -> BatchStatistics:
    """Mean over both halves of the moments, and of Σ̂ after each output is standardised; no gradient."""

    def describe(half: Half) -> BatchStatistics:
        f, f_moments = batch_normalise(sg(half.f), half.weights, READING_EPSILON)
        g, g_moments = batch_normalise(sg(half.g), half.weights, READING_EPSILON)
        return BatchStatistics(f_moments, g_moments, sigma_hat(f, g, half.weights))

    rows = [
        jnp.asarray(len(half.f), half.f.dtype) if half.weights is None else jnp.sum(half.weights)
        for half in (first, second)
    ]
    share = rows[0] / jnp.maximum(rows[0] + rows[1], 1.0)  # a half whose mask is empty does not count
    return jax.tree.map(lambda a, b: share * a + (1.0 - share) * b, describe(first), describe(second))


def init_statistics(k: int) -> RunningStatistics:
    """Running statistics before any update: all zero."""
    zero = Moments(jnp.zeros(k), jnp.zeros(k))
    return RunningStatistics(BatchStatistics(zero, zero, jnp.zeros((k, k))), jnp.zeros(()))


def update_statistics(
    running: RunningStatistics, seen: BatchStatistics, decay: float = DECAY
) -> RunningStatistics:
    """Σ̃ ← decay Σ̃ + (1 - decay) Σ̂, and the same for the moments (Section 4, exploration (a))."""
    new = RunningStatistics(seen, jnp.ones(()))
    return jax.tree.map(lambda old, new: decay * old + (1.0 - decay) * new, running, new)


def read_statistics(running: RunningStatistics) -> BatchStatistics:
    """The running means, corrected for their start at zero. Before any update: mean 0, variance 0, Σ̃ = 0."""
    scale = 1.0 / jnp.maximum(running.weight, jnp.finfo(jnp.float32).tiny)
    return jax.tree.map(lambda total: scale * total, running.total)
