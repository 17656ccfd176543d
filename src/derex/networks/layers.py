"""Building blocks of networks: half-precision products, parts that are set once, and gradient descent on the others.

Networks are trained in single precision. With `bfloat16` the operands of matrix products are cast where they are used,
and gradients flow back through the cast; sums over steps (an LSTM's cell), losses, values and log-probabilities stay in
single precision. A network in `float32` is not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
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


def iterate_blocks(array: np.ndarray) -> list[np.ndarray]:
    """Views of the array's rows in blocks of bounded size, for one pass over data larger than memory."""
    rows = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
    return [array[i : i + rows] for i in range(0, len(array), rows)]


class Optimised(NamedTuple):
    """Result of `run_gradient_steps`."""

    networks: Any
    optimiser: optax.OptState
    carry: Any  # after the last step
    outputs: Any  # of `loss`, stacked: arrays (steps, …)


def clipped_adam(learning_rate: float, clip: float, epsilon: float) -> optax.GradientTransformation:
    """Adam on gradients of global norm at most `clip`."""
    return optax.chain(optax.clip_by_global_norm(clip), optax.adam(learning_rate, eps=epsilon))


def init_optimiser(optimiser: optax.GradientTransformation, networks: Any) -> optax.OptState:
    """State of the optimiser before the first step, for the trainable leaves of the networks."""
    return optimiser.init(eqx.filter(networks, trainable_mask(networks)))


def run_gradient_steps(
    loss: Callable[[Any, Any], tuple[Float[Array, ""], tuple[Any, Any]]],
    optimiser: optax.GradientTransformation,
    networks: Any,
    optimiser_state: optax.OptState,
    inputs: Any,
    *,
    carry: Any = None,
    update_carry: Callable[[Any, Any], Any] = lambda carry, statistics: carry,
    rates: Float[Array, " steps"] | None = None,
    project: Callable[[Any], Any] = lambda trained: trained,
) -> Optimised:
    """A scan of gradient steps, one for each element of `inputs`.

    Args:
        loss: (networks, element of `inputs`) -> (loss, (statistics for `update_carry`, outputs to stack)).
        optimiser: applied to the trainable leaves alone.
        networks: a pytree of modules; leaves that are not trained are returned as they are.
        optimiser_state: from `init_optimiser` or an earlier call.
        inputs: a pytree of arrays (steps, …).
        carry: running statistics.
        update_carry: (carry, statistics of a step) -> carry.
        rates: learning rate of each step, if the optimiser applies none: the update is -rate times its output.
        project: applied to the trained leaves after each step, such as a projection onto constraints.
    """
    trained, fixed = eqx.partition(networks, trainable_mask(networks))

    def step(before: Any, given: tuple[Any, Any]):
        trained, optimiser_state, carry = before
        element, rate = given

        def loss_of_trained(trained: Any):
            return loss(eqx.combine(trained, fixed), element)

        gradient, (statistics, outputs) = jax.grad(loss_of_trained, has_aux=True)(trained)
        updates, optimiser_state = optimiser.update(gradient, optimiser_state, trained)
        if rate is not None:
            updates = jax.tree.map(lambda update: -rate * update, updates)
        trained = project(optax.apply_updates(trained, updates))
        return (trained, optimiser_state, update_carry(carry, statistics)), outputs

    after, outputs = jax.lax.scan(step, (trained, optimiser_state, carry), (inputs, rates))
    trained, optimiser_state, carry = after
    return Optimised(eqx.combine(trained, fixed), optimiser_state, carry, outputs)
