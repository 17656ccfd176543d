"""Pseudo-counts off the norm of the representation (Theorem 3; Section 4, exploration).

Singular functions within what f and g span: the Rayleigh–Ritz step of numerical linear algebra.

Learnt features span the singular functions long before each f_i is one of them: near-degenerate modes stay mixed, and
with many features some are learnt twice. With C_f, C_g and Σ the correlations of f with f, g with g and f with g, the
singular values and functions within the span are those of C_f^-½ Σ C_g^-½, and the norm of the representation that
the exact functions would have is

    ‖f(s)‖² = f(s)ᵀ C_f^-½ (Σ_w Σ_wᵀ)^-1 C_f^-½ f(s),    Σ_w = C_f^-½ Σ C_g^-½,

whatever the basis; without the weights Σ_w it is f(s)ᵀ C_f⁻¹ f(s) ≤ 1/d(s), the leverage of s. For the exact singular
functions (C_f = C_g = I, Σ diagonal) it is the norm of the paper. What no visited state needs, such as the direction in
which an unvisited one differs, has next to no variance, and shows.

Shapes: k features.

Inputs unlike any the networks were trained on: their norm says nothing, so their bonus must not rest on it.

In the exact visitation geometry f(s) = U_s / √d(s), and a state that was never seen has an infinite norm. A network
does not extrapolate that way: where no training signal arrived it often returns an average representation, that
is a *small* norm. What tells such inputs apart is the part of their features that no training row's features span.
With features φ, counted over n training visits, C = E[φ φᵀ] (centred) and ρ = E‖φ‖²/n, the weight of one visit,

    share(s) = φᵀ ρ (C + ρ I)⁻¹ φ / ‖φ‖²   in [0, 1].

For one-hot features it is 1/(N(s) + 1), N(s) the number of visits: 1 if never seen (up to the centring, a relative
error of the order of Σ_s d(s)²). A bonus is raised where
the share is above what fresh visits to the training states show (the 99th percentile over visits, each left out of its
own C), continuously, by up to √2 times the largest bonus in training: that of a state visited half as often as the
rarest. Below it the bonus is left exactly as it is.

Shapes: m distinct rows, h features.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float

from derex.decomposition.statistics import exact_product

SIGMA_FLOOR = 0.05  # directions with smaller σ are noise that would dominate the norm


def bonus(
    f: Float[Array, "*b k"], sigma: Float[Array, " k"], weighted: bool = True, floor: float = SIGMA_FLOOR
) -> Float[Array, "*b"]:
    """‖f(s)‖_{Λ̃⁻¹} with Λ̃ = Σ̃² (Section 4); large where experience is rare.

    Args:
        f: standardised representations.
        sigma: the diagonal of Σ̃.
        weighted: the paper's weights Σ̃⁻²; False gives the plain norm ‖f(s)‖.
        floor: σ below it, negative ones too, counts as the floor. A departure from the paper: its weights are
            unbounded as σ → 0. `floor=0` is the paper's form, for σ > 0.

    Returns:
        One number per row.
    """
    if weighted:
        f = f / jnp.maximum(sigma, floor)
    return jnp.linalg.norm(f, axis=-1)


RIDGE = 1e-5  # added to correlations: what varies less than that is noise of estimating them
LARGEST_RIDGE = 0.1  # with which no correlations fail but those that are not finite


def whitened(
    C: Float[Array, "k k"], rows: Float[Array, "*b k"], ridge: float = RIDGE
) -> Float[Array, "*b k"]:
    """L⁻¹ z of every row z, with L Lᵀ = C + ridge I: a square root like any other, and the cheapest."""
    L = _factor(C, ridge)
    return solve_triangular(L, rows.reshape(-1, len(C)).T, lower=True).T.reshape(rows.shape)


def _factor(C: Float[Array, "k k"], ridge: float) -> Float[Array, "k k"]:
    """L with L Lᵀ = C + ridge I; where for want of digits that is not positive, with ten times the ridge, and so on.

    Rounding moves the eigenvalues of k correlated features by about k 1e-7. Of many features that few states tell apart
    most eigenvalues are 0, and the factorisation of a device may fail where another's does not.
    """
    I = jnp.eye(len(C), dtype=C.dtype)

    def failed(attempt: tuple[Array, Array]) -> Bool[Array, ""]:
        ridge, L = attempt
        return ~jnp.all(jnp.isfinite(L)) & (ridge < LARGEST_RIDGE)

    def again(attempt: tuple[Array, Array]) -> tuple[Array, Array]:
        ridge = jnp.maximum(10.0 * attempt[0], RIDGE)  # where it began at 0 too
        return ridge, jnp.linalg.cholesky(C + ridge * I)

    first = jnp.asarray(ridge, C.dtype)
    return jax.lax.while_loop(failed, again, (first, jnp.linalg.cholesky(C + first * I)))[1]


def whitened_sigma(
    C_f: Float[Array, "k k"], C_g: Float[Array, "k k"], sigma: Float[Array, "k k"], ridge: float = RIDGE
) -> Float[Array, "k k"]:
    """Σ_w: its singular values are those within the span."""
    half = whitened(C_f, sigma.T, ridge).T
    return whitened(C_g, half, ridge)


def ritz_bonus(
    f: Float[Array, "*b k"],
    C_f: Float[Array, "k k"],
    C_g: Float[Array, "k k"],
    sigma: Float[Array, "k k"],
    weighted: bool = True,
    floor: float = 0.0,
    ridge: float = RIDGE,
) -> Float[Array, "*b"]:
    """The norm above, of standardised features; σ² + floor² in the place of σ² keeps small σ from being all of it."""
    rows = whitened(C_f, f, ridge)
    if weighted:
        between = whitened_sigma(C_f, C_g, sigma, ridge)
        rows = whitened(exact_product(between, between.T), rows, floor**2)
    return jnp.linalg.norm(rows, axis=-1)


QUANTILE = 0.99
CEILING = 2.0**0.5


class Support(NamedTuple):
    """What the training rows' features span."""

    mean: Float[np.ndarray, " h"]
    filter: Float[np.ndarray, "h h"]  # φ -> the part of φ that training does not explain
    threshold: Float[np.ndarray, ""]  # of the share; 1 switches the guard off


def fit_support(features: Float[np.ndarray, "m h"], counts: Float[np.ndarray, " m"]) -> Support:
    """Describe the span of training features, row i seen counts[i] times."""
    phi, counts = np.asarray(features, np.float64), np.asarray(counts, np.float64)
    n = counts.sum()
    mean = counts @ phi / n
    phi = phi - mean
    energy = np.sum(phi**2, axis=1)
    ridge = max(float(counts @ energy), np.finfo(np.float64).tiny) / n  # n ρ: one average visit
    eigenvalues, directions = np.linalg.eigh((phi * counts[:, None]).T @ phi)
    kept = ridge / (np.maximum(eigenvalues, 0.0) + ridge)
    share = (phi @ directions) ** 2 @ kept / np.maximum(energy, np.finfo(np.float64).tiny)
    return Support(
        mean.astype(np.float32),
        (directions * np.sqrt(kept)).T.astype(np.float32),
        np.asarray(_fresh_visit_quantile(share, energy / ridge, counts), np.float32),
    )


def unexplained_share(features: Float[np.ndarray, "b h"], support: Support) -> Float[np.ndarray, " b"]:
    """share(s) of each row: 0 where training explains the features, 1 where nothing like them was seen."""
    phi = np.asarray(features, np.float32) - support.mean
    energy = np.maximum(np.sum(phi**2, axis=1), np.finfo(np.float32).tiny)
    return np.clip(np.sum((phi @ support.filter.T) ** 2, axis=1) / energy, 0.0, 1.0)


def excess(share: Float[np.ndarray, " b"], support: Support) -> Float[np.ndarray, " b"]:
    """1 - threshold / share where the share is above the threshold, 0 elsewhere: how much of the ceiling to add."""
    return (1.0 - support.threshold / np.maximum(share, support.threshold)).astype(np.float32)


def raise_bonus(
    bonus: Float[np.ndarray, " b"], excess: Float[np.ndarray, " b"], largest_bonus: float
) -> Float[np.ndarray, " b"]:
    """bonus + √2 · (largest bonus in training) · excess: where nothing is in excess, the bonus itself."""
    return (bonus + np.float32(CEILING * largest_bonus) * excess).astype(np.float32)


def _fresh_visit_quantile(
    share: Float[np.ndarray, " m"], relative_energy: Float[np.ndarray, " m"], counts: Float[np.ndarray, " m"]
) -> float:
    """The share at a fresh visit, with that visit left out of mean and C, at the quantile over visits.

    Leaving one visit out of n takes n/(n-1) φφᵀ from the scatter matrix n C: a rank-one update.
    """
    n = counts.sum()
    leverage = np.clip(share * relative_energy * n / max(n - 1.0, 1.0), 0.0, 1.0 - 1e-9)
    fresh = np.minimum(share / (1.0 - leverage), 1.0)
    order = np.argsort(fresh)
    cumulative = np.cumsum(counts[order]) / n
    at = min(np.searchsorted(cumulative, QUANTILE), len(order) - 1)
    return float(max(fresh[order][at], np.finfo(np.float32).tiny))
