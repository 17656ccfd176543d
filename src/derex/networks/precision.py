"""Matrix products in half precision: bfloat16 operands, everything between two products in single precision.

A network is trained in single precision and lowered where it is read; gradients go back through the cast. What a
product takes is rounded, what is summed up from step to step (an LSTM's cell) and what is compared (losses, values,
log-probabilities) is not. A network in single precision does exactly what it does without this module.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Shaped

from derex.networks.fixed import trainable

PRECISIONS = ("float32", "bfloat16")
HALF = jnp.dtype(jnp.bfloat16)


def lowered(module: Any, precision: str) -> Any:
    """The module with its trained arrays in that precision; what is `Fixed`, such as a mean, stays as it is."""
    if precision not in PRECISIONS:
        raise ValueError(f"compute: expected one of {', '.join(PRECISIONS)}; got {precision!r}.")
    if precision == "float32":
        return module
    trained, rest = eqx.partition(module, trainable(module))
    return eqx.combine(jax.tree.map(lambda leaf: leaf.astype(HALF), trained), rest)


def matched(x: Shaped[Array, "*shape"], weight: Array) -> Shaped[Array, "*shape"]:
    """x in half precision if the weight is, else as it is: a product of mixed operands would be a slow one."""
    return x.astype(HALF) if weight.dtype == HALF else x


def raised(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x in single precision if it was in half."""
    return x.astype(jnp.float32) if x.dtype == HALF else x


def product(x: Shaped[Array, "*rows n"], weight: Float[Array, "n m"]) -> Float[Array, "*rows m"]:
    """x W, in the precision of W; never less than single precision comes out."""
    return raised(matched(x, weight) @ weight)
