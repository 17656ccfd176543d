"""How much of a representation an episode has not shown yet.

The norm of De-Rex tells what is rare in all experience. Where every episode has a world of its own, that is not enough:
whoever finds a rare sight may stay before it, or go to and fro, and is paid at every step. Here each stream keeps the
features of its episode, M = r I + Σ f fᵀ, and what counts of a new one is the share that the others leave of it,

    new(h_t) = r f(h_t)ᵀ M⁻¹ f(h_t) / ‖f(h_t)‖²,

which is 1 for what is orthogonal to all before, and 1 / (1 + n ‖f‖² / r) for what was seen n times and nothing else. f
is whitened over all experience, so that every direction counts alike. Not in the paper. The elliptical episodic bonus
of Henaff et al. (2022) is fᵀ M⁻¹ f alone, on features of inverse dynamics.

Shapes: B streams, S steps of an unroll, k features.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

SMALLEST = 1e-6  # ‖f‖² that is divided by


def begin_episodes(streams: int, k: int) -> Float[Array, "B k k"]:
    """r M⁻¹ of every stream before its first step."""
    return jnp.broadcast_to(jnp.eye(k), (streams, k, k))


def newness(
    features: Float[Array, "B S k"], first: Bool[Array, "B S"], kept: Float[Array, "B k k"], ridge: float
) -> tuple[Float[Array, "B S"], Float[Array, "B k k"]]:
    """new(h_t) of every step, and what to keep: all before the last step, with which the next unroll begins.

    `ridge` is r as a multiple of k, the mean of ‖f‖². After each step K = r M⁻¹ becomes K - u uᵀ / (r + fᵀ u), u = K f
    (Sherman and Morrison).
    """
    k = features.shape[-1]
    fresh = jnp.eye(k)

    def step(kept: Array, inputs: tuple[Array, Array]):
        f, begins = inputs
        kept = jnp.where(begins[:, None, None], fresh, kept)
        u = jnp.einsum("bij,bj->bi", kept, f, precision=jax.lax.Precision.HIGHEST)
        left = jnp.sum(f * u, axis=-1)
        share = left / jnp.maximum(jnp.sum(jnp.square(f), axis=-1), SMALLEST)
        kept = kept - u[:, :, None] * u[:, None, :] / (ridge * k + left)[:, None, None]
        return kept, jnp.clip(share, 0.0, 1.0)

    by_step = jnp.moveaxis(features, 1, 0), first.T
    kept, shares = jax.lax.scan(step, kept, jax.tree.map(lambda leaf: leaf[:-1], by_step))
    _, last = step(kept, jax.tree.map(lambda leaf: leaf[-1], by_step))
    return jnp.concatenate([shares, last[None]]).T, kept
