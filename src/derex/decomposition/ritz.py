"""Singular functions within what f and g span: the Rayleigh–Ritz step of numerical linear algebra.

Learnt features span the singular functions long before each f_i is one of them: near-degenerate modes stay mixed, and
with many features some are learnt twice. With C_f, C_g and Σ the correlations of f with f, g with g and f with g, the
singular values and functions within the span are those of C_f^-½ Σ C_g^-½, and the norm of the representation that
the exact functions would have is

    ‖f(s)‖² = f(s)ᵀ C_f^-½ (Σ_w Σ_wᵀ)^-1 C_f^-½ f(s),    Σ_w = C_f^-½ Σ C_g^-½,

whatever the basis; without the weights Σ_w it is f(s)ᵀ C_f⁻¹ f(s) ≤ 1/d(s), the leverage of s. For the exact singular
functions (C_f = C_g = I, Σ diagonal) it is the norm of the paper. What no visited state needs, such as the direction in
which an unvisited one differs, has next to no variance, and shows.

Shapes: k features.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float

from derex.decomposition.products import exact_product

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


def spanned_sigma(
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
        between = spanned_sigma(C_f, C_g, sigma, ridge)
        rows = whitened(exact_product(between, between.T), rows, floor**2)
    return jnp.linalg.norm(rows, axis=-1)
