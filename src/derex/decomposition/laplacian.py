"""Spectral graph drawing, the Laplacian baseline (appendix C; Wu et al. 2018).

One function f for both ends of a pair. Shapes: b pairs of a half, k features.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from derex.decomposition.statistics import Half, compute_moments, sigma_hat, standardise, weighted_mean


def attraction(
    u: Float[Array, "b k"], v: Float[Array, "b k"], weights: Float[Array, " b"] | None = None
) -> Float[Array, ""]:
    """L_diag = 1/(nk) Σ_i Σ_j (f(u_i)_j - f(v_i)_j)²: successive states are close."""
    return jnp.mean(weighted_mean(jnp.square(u - v), weights))


def orthonormality(
    u: Float[Array, "b k"],
    v: Float[Array, "c k"],
    weights_u: Float[Array, " b"] | None = None,
    weights_v: Float[Array, " c"] | None = None,
) -> Float[Array, ""]:
    """E_{u,v independent} 1/k² Σ_jl (f(u)_j f(u)_l - δ_jl)(f(v)_j f(v)_l - δ_jl), over all pairs (u, v).

    For independent u and v it is an unbiased estimate of ‖E[f fᵀ] - I‖²/k².
    """
    identity = jnp.eye(u.shape[-1])
    return jnp.mean((sigma_hat(u, u, weights_u) - identity) * (sigma_hat(v, v, weights_v) - identity))


def paired_orthonormality(
    u: Float[Array, "b k"], v: Float[Array, "b k"], weights: Float[Array, " b"] | None = None
) -> Float[Array, ""]:
    """L_off as the appendix prints it: u_i and v_i are the two ends of one transition.

    Σ_jl (u_j u_l - δ)(v_j v_l - δ) = (u·v)² - ‖u‖² - ‖v‖² + k for each pair. It is unbounded below on bipartite graphs
    when λ_r > k; kept for fidelity.
    """
    k = u.shape[-1]
    each = jnp.sum(u * v, -1) ** 2 - jnp.sum(u * u, -1) - jnp.sum(v * v, -1) + k
    return weighted_mean(each, weights) / k**2


def graph_drawing_loss(
    first: Half, second: Half, lambda_r: float, paired: bool = False, normalise: bool = False
) -> Float[Array, ""]:
    """Rep_loss = L_diag + λ_r L_off of graph drawing.

    Args:
        first: f at the pairs' first states (`f`) and next states (`g`), one half of the data.
        second: the same for the other, independent half.
        lambda_r: weight of orthonormality.
        paired: the appendix's literal L_off. The default draws u from one half and v from the other, as the
            original does.
        normalise: batch-normalise f (over both ends of a half together) first.
    """
    if normalise:
        first, second = _normalise(first), _normalise(second)
    close = (attraction(*first) + attraction(*second)) / 2
    if paired:
        off = (paired_orthonormality(*first) + paired_orthonormality(*second)) / 2
    else:
        off = orthonormality(first.f, second.f, first.weights, second.weights)
    return close + lambda_r * off


def _normalise(half: Half) -> Half:
    weights = None if half.weights is None else jnp.concatenate([half.weights, half.weights])
    shared = compute_moments(jnp.concatenate([half.f, half.g]), weights)
    return Half(standardise(half.f, shared), standardise(half.g, shared), half.weights)
