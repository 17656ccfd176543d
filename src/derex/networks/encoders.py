"""The built-in encoders, and the table through which they are chosen by name.

An encoder is an Equinox module that maps *one* observation to k numbers. Two methods are optional:

- `features(x)`: the input of its last, linear layer, by which `derex.decomposition.bonus` recognises inputs unlike any
  in training.
- `prepared(rows)`: the module with its `Fixed` parts set from the training rows, once, before training.

A new encoder is a module and one entry in `ENCODERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Num, PRNGKeyArray

from derex.networks.images import Conv
from derex.networks.layers import Fixed, Standardise, iterate_blocks, match_precision

InputKind = Literal["ids", "vectors", "images"]


class InputSpec(NamedTuple):
    """Shape, kind and dtype of one side's observations."""

    shape: tuple[int, ...]  # of one observation; () for ids
    n_ids: int = 0  # size of the table, for ids
    kind: InputKind | None = None  # None: anything, for the user's own modules
    dtype: str = "float32"  # of the network's input


class Tabular(eqx.Module):
    """One row per state: f(x_s) = Uᵀ x_s with x_s one-hot (Section 3).

    f(s) = U_s c_s with c_s = d(s)^-½ fixed: the singular functions of rare states are large, like d(s)^-½, and would
    take as many more steps to learn. Initial values of f do not depend on c.
    """

    table: Float[Array, "n k"]
    scale: Fixed

    def __init__(self, n: int, k: int, *, key: PRNGKeyArray):
        self.table = jax.random.normal(key, (n, k))
        self.scale = Fixed(jnp.ones((n, 1)))

    def prepared(self, rows: np.ndarray) -> Tabular:
        visits = np.maximum(count_ids(rows, len(self.table)), 1)
        scale = jnp.asarray(np.sqrt(len(rows) / visits), self.table.dtype)[:, None]
        return eqx.tree_at(lambda t: (t.table, t.scale), self, (self.table / scale, Fixed(scale)))

    def __call__(self, state: Int[Array, ""]) -> Float[Array, " k"]:
        return self.table[state] * self.scale.value[state]


def count_ids(ids: np.ndarray, size: int) -> Int[np.ndarray, " size"]:
    """Count the occurrences of the ids 0, …, size - 1 in one pass."""
    total = np.zeros(size, np.int64)
    for block in iterate_blocks(ids):
        total += np.bincount(block, minlength=size)
    return total


class Linear(eqx.Module):
    """f(x) = Wᵀ x + c."""

    scale: Standardise
    out: eqx.nn.Linear

    def __init__(self, size: int, k: int, *, key: PRNGKeyArray):
        self.scale = Standardise(size)
        self.out = eqx.nn.Linear(size, k, key=key)

    def prepared(self, rows: np.ndarray) -> Linear:
        return eqx.tree_at(lambda m: m.scale, self, self.scale.prepared(rows))

    def features(self, x: Num[Array, " size"]) -> Float[Array, " size"]:
        return self.scale(x)

    def __call__(self, x: Num[Array, " size"]) -> Float[Array, " k"]:
        return self.out(self.features(x))


class MLP(eqx.Module):
    """A multi-layer perceptron with two hidden ReLU layers by default."""

    scale: Standardise
    hidden: tuple[eqx.nn.Linear, ...]
    out: eqx.nn.Linear

    def __init__(self, size: int, k: int, width: int = 256, depth: int = 2, *, key: PRNGKeyArray):
        *keys, last = jax.random.split(key, depth + 1)
        sizes = [size] + [width] * depth
        self.scale = Standardise(size)
        self.hidden = tuple(
            eqx.nn.Linear(a, b, key=key) for a, b, key in zip(sizes[:-1], sizes[1:], keys, strict=True)
        )
        self.out = eqx.nn.Linear(sizes[-1], k, key=last)

    def prepared(self, rows: np.ndarray) -> MLP:
        return eqx.tree_at(lambda m: m.scale, self, self.scale.prepared(rows))

    def features(self, x: Num[Array, " size"]) -> Float[Array, " width"]:
        x = match_precision(self.scale(x), self.out.weight)
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return x

    def __call__(self, x: Num[Array, " size"]) -> Float[Array, " k"]:
        return self.out(self.features(x))


class EncoderKind(NamedTuple):
    """Inputs, default learning rate and builder of a named encoder."""

    inputs: InputKind
    learning_rate: float
    build: Callable[[PRNGKeyArray, InputSpec, int], eqx.Module]


ENCODERS: dict[str, EncoderKind] = {
    "tabular": EncoderKind("ids", 1e-2, lambda key, spec, k: Tabular(spec.n_ids, k, key=key)),
    "linear": EncoderKind("vectors", 1e-2, lambda key, spec, k: Linear(spec.shape[0], k, key=key)),
    "mlp": EncoderKind("vectors", 1e-3, lambda key, spec, k: MLP(spec.shape[0], k, key=key)),
    "conv": EncoderKind("images", 1e-3, lambda key, spec, k: Conv(spec.shape, k, key=key)),
}
