"""Matrix products in half precision: bfloat16 operands, everything between two products in single precision.

A network is trained in single precision and cast where it is read; gradients go back through the cast. What a
product takes is rounded, what is summed up from step to step (an LSTM's cell) and what is compared (losses, values,
log-probabilities) is not. A network in single precision does exactly what it does without this module.

Parts of a network that are set from data once and never trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Num, PyTree, Shaped

PRECISIONS = ("float32", "bfloat16")
HALF = jnp.dtype(jnp.bfloat16)


def cast_to_precision(module: Any, precision: str) -> Any:
    """The module with its trained arrays in that precision; what is `Fixed`, such as a mean, stays as it is."""
    if precision not in PRECISIONS:
        raise ValueError(f"compute: expected one of {', '.join(PRECISIONS)}; got {precision!r}.")
    if precision == "float32":
        return module
    trained, rest = eqx.partition(module, trainable_mask(module))
    return eqx.combine(jax.tree.map(lambda leaf: leaf.astype(HALF), trained), rest)


def match_precision(x: Shaped[Array, "*shape"], weight: Array) -> Shaped[Array, "*shape"]:
    """x in half precision if the weight is, else as it is: a product of mixed operands would be a slow one."""
    return x.astype(HALF) if weight.dtype == HALF else x


def to_float32(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x in single precision if it was in half."""
    return x.astype(jnp.float32) if x.dtype == HALF else x


def matmul(x: Shaped[Array, "*rows n"], weight: Float[Array, "n m"]) -> Float[Array, "*rows m"]:
    """x W, in the precision of W; never less than single precision comes out."""
    return to_float32(match_precision(x, weight) @ weight)


BLOCK_BYTES = 1 << 26  # how much of a memory-mapped array is read at a time


class Fixed(eqx.Module):
    """Something that the optimiser does not see: an array, or a whole network."""

    value: Any


def trainable_mask(tree: PyTree) -> PyTree:
    """A mask over a tree of modules: floating-point arrays outside of `Fixed`."""

    def mask(leaf: PyTree) -> PyTree:
        return jax.tree.map(lambda _: False, leaf) if isinstance(leaf, Fixed) else eqx.is_inexact_array(leaf)

    return jax.tree.map(mask, tree, is_leaf=lambda leaf: isinstance(leaf, Fixed))


class Standardise(eqx.Module):
    """(x - mean) / reach, reach the largest distance from the mean: one-hot stays one-hot, any unit becomes order 1."""

    mean: Fixed
    reach: Fixed

    def __init__(self, size: int):
        self.mean, self.reach = Fixed(jnp.zeros(size)), Fixed(jnp.ones(size))

    def prepared(self, rows: np.ndarray) -> Standardise:
        total = sum(block.sum(axis=0, dtype=np.float64) for block in iterate_blocks(rows))
        mean = np.asarray(total) / len(rows)
        reach = np.max([np.abs(block - mean).max(axis=0) for block in iterate_blocks(rows)], axis=0)
        reach = np.where(reach > 0.0, reach, 1.0)
        fixed = tuple(Fixed(jnp.asarray(value, self.mean.value.dtype)) for value in (mean, reach))
        return eqx.tree_at(lambda s: (s.mean, s.reach), self, fixed)

    def __call__(self, x: Num[Array, " size"]) -> Float[Array, " size"]:
        return (x - self.mean.value) / self.reach.value


def iterate_blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The array in pieces of bounded size, for one pass over data larger than memory."""
    rows = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
    return (array[i : i + rows] for i in range(0, len(array), rows))
