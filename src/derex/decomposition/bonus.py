"""Exploration bonuses from the norm of the representation (Theorem 3; Section 4, exploration), and their guard.

Three parts: the paper's norm (`compute_bonus`), the same norm within the span of the features
(`compute_ritz_bonus`), and a guard that raises the bonus of inputs unlike any in training (`raise_bonus`).

**Rayleigh–Ritz.** Learnt features span the singular functions long before each f_i is one of them: near-degenerate
modes stay mixed, and with many features some are learnt twice. Let C_f, C_g and Σ be the correlations of f with f, g
with g and f with g. The singular values and functions within the span are those of Σ_w = C_f^-½ Σ C_g^-½, and the
exact functions would have the norm

    ‖f(s)‖² = f(s)ᵀ C_f^-½ (Σ_w Σ_wᵀ)^-1 C_f^-½ f(s)

in any basis. Without the weights Σ_w it is f(s)ᵀ C_f⁻¹ f(s) ≤ 1/d(s), the leverage of s. For the exact singular
functions (C_f = C_g = I, Σ diagonal) it is the norm of the paper. A direction in which only an unvisited state differs
has almost no variance, so it dominates the norm of that state.

**Support guard.** In the exact visitation geometry f(s) = U_s / √d(s), and a state never visited has an infinite norm.
Networks do not extrapolate that way: without training signal they often return an average representation, hence a
*small* norm. Such inputs are recognised by the part of their features that the training features do not span. With
features φ over n training visits, C = E[φ φᵀ] (centred) and ρ = E‖φ‖²/n, the weight of one visit,

    share(s) = φᵀ ρ (C + ρ I)⁻¹ φ / ‖φ‖²   in [0, 1].

For one-hot features it is 1/(N(s) + 1) after N(s) visits, up to the centring, a relative error of order Σ_s d(s)².
The threshold is the share that fresh visits to training states have (99th percentile over visits, each left out of
its own C). At or below it the bonus is unchanged. Above it, √2 times the largest training bonus is added, times the
excess 1 - threshold / share. √2 is thus a floor for the entirely unseen (excess 1), not a cap: it is the bonus of a
state visited half as often as the rarest, and the input's own norm comes on top.

Shapes: k features, m distinct rows, h inputs of an encoder's last layer.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float

from derex.decomposition.statistics import precise_matmul

SIGMA_FLOOR = 0.05  # directions with smaller σ are noise that would dominate the norm
RIDGE = 1e-5  # added to correlations: smaller variances are estimation noise
LARGEST_RIDGE = 0.1  # with it, only non-finite correlations fail
SHARE_QUANTILE = 0.99  # of fresh visits whose bonus is never raised
# Least bonus of an input unlike all training data, in units of the largest training bonus.
UNSEEN_FLOOR = 2.0**0.5


def compute_bonus(
    f: Float[Array, "*b k"],
    sigma: Float[Array, " k"],
    weighted: bool = True,
    sigma_floor: float = SIGMA_FLOOR,
) -> Float[Array, "*b"]:
    """‖f(s)‖_{Λ̃⁻¹} with Λ̃ = Σ̃² (Section 4); large where experience is rare.

    Args:
        f: standardised representations.
        sigma: the diagonal of Σ̃.
        weighted: the paper's weights Σ̃⁻²; False gives the plain norm ‖f(s)‖.
        sigma_floor: weights use max(σ, sigma_floor). A departure from the paper, whose weights are unbounded as
            σ → 0; 0 is the paper's form, for σ > 0.

    Returns:
        One number per row.
    """
    if weighted:
        f = f / jnp.maximum(sigma, sigma_floor)
    return jnp.linalg.norm(f, axis=-1)


def compute_ritz_bonus(
    f: Float[Array, "*b k"],
    C_f: Float[Array, "k k"],
    C_g: Float[Array, "k k"],
    sigma: Float[Array, "k k"],
    weighted: bool = True,
    sigma_ridge: float = 0.0,
    ridge: float = RIDGE,
) -> Float[Array, "*b"]:
    """The norm of the exact singular functions within the span of f and g (see the module's text).

    Args:
        f: standardised representations.
        C_f: correlations of f with f.
        C_g: correlations of g with g.
        sigma: Σ̃, the correlations of f with g.
        weighted: False leaves out Σ_w, which gives the leverage.
        sigma_ridge: weights use σ² + sigma_ridge² in place of σ², so that small σ do not dominate the norm.
        ridge: added to C_f and C_g.

    Returns:
        One number per row.
    """
    rows = whiten(C_f, f, ridge)
    if weighted:
        sigma_w = whiten_sigma(C_f, C_g, sigma, ridge)
        rows = whiten(precise_matmul(sigma_w, sigma_w.T), rows, sigma_ridge**2)
    return jnp.linalg.norm(rows, axis=-1)


def whiten_sigma(
    C_f: Float[Array, "k k"], C_g: Float[Array, "k k"], sigma: Float[Array, "k k"], ridge: float = RIDGE
) -> Float[Array, "k k"]:
    """Σ_w = C_f^-½ Σ C_g^-½; its singular values are those within the span."""
    half = whiten(C_f, sigma.T, ridge).T
    return whiten(C_g, half, ridge)


def whiten(C: Float[Array, "k k"], rows: Float[Array, "*b k"], ridge: float = RIDGE) -> Float[Array, "*b k"]:
    """L⁻¹ z for every row z, with L Lᵀ = C + ridge I: the cheapest square root of C."""
    L = _cholesky(C, ridge)
    return solve_triangular(L, rows.reshape(-1, len(C)).T, lower=True).T.reshape(rows.shape)


def _cholesky(C: Float[Array, "k k"], ridge: float) -> Float[Array, "k k"]:
    """L with L Lᵀ = C + ridge I; while rounding makes that indefinite, the ridge is multiplied by ten.

    Rounding moves the eigenvalues of k correlated features by about k 1e-7. Of many features on few states most
    eigenvalues are 0, and the factorisation may fail on one device and succeed on another.
    """
    I = jnp.eye(len(C), dtype=C.dtype)

    def failed(attempt: tuple[Array, Array]) -> Bool[Array, ""]:
        ridge, L = attempt
        return ~jnp.all(jnp.isfinite(L)) & (ridge < LARGEST_RIDGE)

    def retry(attempt: tuple[Array, Array]) -> tuple[Array, Array]:
        ridge = jnp.maximum(10.0 * attempt[0], RIDGE)  # the first ridge may be 0
        return ridge, jnp.linalg.cholesky(C + ridge * I)

    first = jnp.asarray(ridge, C.dtype)
    return jax.lax.while_loop(failed, retry, (first, jnp.linalg.cholesky(C + first * I)))[1]


class Support(NamedTuple):
    """The span of the training features."""

    mean: Float[np.ndarray, " h"]
    filter: Float[np.ndarray, "h h"]  # φ -> the part of φ that training does not explain
    threshold: Float[np.ndarray, ""]  # of the share; 1 switches the guard off


def fit_support(features: Float[np.ndarray, "m h"], counts: Float[np.ndarray, " m"]) -> Support:
    """Describe the span of the training features; row i was visited counts[i] times."""
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


def compute_unexplained_share(
    features: Float[np.ndarray, "b h"], support: Support
) -> Float[np.ndarray, " b"]:
    """share(s) of each row: 0 where training explains the features, 1 where nothing like them was seen."""
    phi = np.asarray(features, np.float32) - support.mean
    energy = np.maximum(np.sum(phi**2, axis=1), np.finfo(np.float32).tiny)
    return np.clip(np.sum((phi @ support.filter.T) ** 2, axis=1) / energy, 0.0, 1.0)


def compute_excess(share: Float[np.ndarray, " b"], support: Support) -> Float[np.ndarray, " b"]:
    """1 - threshold / share where the share is above the threshold, 0 elsewhere; in [0, 1)."""
    return (1.0 - support.threshold / np.maximum(share, support.threshold)).astype(np.float32)


def raise_bonus(
    bonus: Float[np.ndarray, " b"], excess: Float[np.ndarray, " b"], largest_bonus: float
) -> Float[np.ndarray, " b"]:
    """bonus + √2 · (largest training bonus) · excess: unchanged at excess 0, at least √2 times the largest at 1."""
    return (bonus + np.float32(UNSEEN_FLOOR * largest_bonus) * excess).astype(np.float32)


def _fresh_visit_quantile(
    share: Float[np.ndarray, " m"], relative_energy: Float[np.ndarray, " m"], counts: Float[np.ndarray, " m"]
) -> float:
    """Quantile over visits of the share at a fresh visit, with that visit left out of mean and C.

    Leaving one visit out of n takes n/(n-1) φφᵀ from the scatter matrix n C: a rank-one update.
    """
    n = counts.sum()
    leverage = np.clip(share * relative_energy * n / max(n - 1.0, 1.0), 0.0, 1.0 - 1e-9)
    fresh = np.minimum(share / (1.0 - leverage), 1.0)
    quantile = np.quantile(fresh, SHARE_QUANTILE, weights=counts, method="inverted_cdf")
    return float(max(quantile, np.finfo(np.float32).tiny))
