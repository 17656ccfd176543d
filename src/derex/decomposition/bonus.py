"""Pseudo-counts off the norm of the representation (Theorem 3; Section 4, exploration)."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

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
