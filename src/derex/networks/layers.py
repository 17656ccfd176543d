"""Building blocks of encoders: half-precision products, and parts that are set from data once and never trained.

Networks are trained in single precision. With `bfloat16` the operands of matrix products are cast where they are used,
and gradients flow back through the cast; sums over steps (an LSTM's cell), losses, values and log-probabilities stay in
single precision. A network in `float32` is not affected by this module.
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

from derex._text import require

PRECISIONS = ("float32", "bfloat16")
HALF = jnp.dtype(jnp.bfloat16)
BLOCK_BYTES = 1 << 26  # how much of a memory-mapped array is read at a time


def cast_to_precision(module: Any, precision: str) -> Any:
    """Cast the trained arrays of a module; `Fixed` parts, such as a mean, keep their precision."""
    require(precision in PRECISIONS, "compute", f"one of {', '.join(PRECISIONS)}", repr(precision))
    if precision == "float32":
        return module
    trained, rest = eqx.partition(module, trainable_mask(module))
    return eqx.combine(jax.tree.map(lambda leaf: leaf.astype(HALF), trained), rest)


def match_precision(x: Shaped[Array, "*shape"], weight: Array) -> Shaped[Array, "*shape"]:
    """Cast x to half precision if the weight is: products of mixed operands are slow."""
    return x.astype(HALF) if weight.dtype == HALF else x


def to_float32(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Cast half precision to single precision; other dtypes are unchanged."""
    return x.astype(jnp.float32) if x.dtype == HALF else x


def matmul(x: Shaped[Array, "*rows n"], weight: Float[Array, "n m"]) -> Float[Array, "*rows m"]:
    """x W in the precision of W; the result has at least single precision."""
    return to_float32(match_precision(x, weight) @ weight)


class Fixed(eqx.Module):
    """A value that the optimiser does not train: an array, or a whole network."""

    value: Any


def trainable_mask(tree: PyTree) -> PyTree:
    """A boolean mask over a tree of modules: True for floating-point arrays outside of `Fixed`."""

    def mask(leaf: PyTree) -> PyTree:
        return jax.tree.map(lambda _: False, leaf) if isinstance(leaf, Fixed) else eqx.is_inexact_array(leaf)

    return jax.tree.map(mask, tree, is_leaf=lambda leaf: isinstance(leaf, Fixed))


class Standardise(eqx.Module):
    """(x - mean) / reach, with reach the largest distance from the mean: sparse inputs stay sparse, units cancel."""

    mean: Fixed
    reach: Fixed

    def __init__(self, size: int):
        self.mean, self.reach = Fixed(jnp.zeros(size)), Fixed(jnp.ones(size))

    def prepared(self, rows: np.ndarray) -> Standardise:
        mean = compute_mean(rows)
        reach = np.max([np.abs(block - mean).max(axis=0) for block in iterate_blocks(rows)], axis=0)
        reach = np.where(reach > 0.0, reach, 1.0)
        fixed = tuple(Fixed(jnp.asarray(value, self.mean.value.dtype)) for value in (mean, reach))
        return eqx.tree_at(lambda s: (s.mean, s.reach), self, fixed)

    def __call__(self, x: Num[Array, " size"]) -> Float[Array, " size"]:
        return (x - self.mean.value) / self.reach.value


def compute_mean(rows: np.ndarray) -> np.ndarray:
    """Mean over the rows, in one pass."""
    total = sum(block.sum(axis=0, dtype=np.float64) for block in iterate_blocks(rows))
    return np.asarray(total) / len(rows)


def iterate_blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the array in blocks of bounded size, for one pass over data larger than memory."""
    rows = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
    return (array[i : i + rows] for i in range(0, len(array), rows))
