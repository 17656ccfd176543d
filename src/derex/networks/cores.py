"""Cores of an agent: what turns embeddings into beliefs, with or without memory.

A core is an Equinox module with `width`, `initial(*batch)` and a call on whole streams at once, as `LSTM` has. A new
one is a module and one line in `CORES`; a program of your own adds its own there, and names it in `AgentConfig.core`.

Shapes: T steps, B streams, H units.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.networks.precision import product
from derex.networks.recurrent import LSTM


@runtime_checkable
class Core(Protocol):
    """F₂: b_t from what came up to t."""

    @property
    def width(self) -> int:
        """Number of units H."""
        ...

    def initial(self, *batch: int) -> Any:
        """Nothing remembered: a pytree of arrays that begin with the axes of `batch`."""
        ...

    def __call__(
        self, inputs: Float[Array, "T B size"], keep: Float[Array, "T B"], memory: Any
    ) -> tuple[Float[Array, "T B H"], Any]:
        """Outputs of all steps and the memory after the last; `keep` 0 forgets everything before that step."""
        ...


class FeedForward(eqx.Module):
    """One rectified layer, each step by itself: b_t depends on o_t and a_{t-1} alone."""

    weight: Float[Array, "size H"]
    bias: Float[Array, " H"]

    def __init__(self, size: int, width: int, *, key: PRNGKeyArray):
        self.weight = jax.nn.initializers.he_normal()(key, (size, width))
        self.bias = jnp.zeros(width)

    @property
    def width(self) -> int:
        return len(self.bias)

    def initial(self, *batch: int) -> tuple[()]:
        return ()

    def __call__(
        self, inputs: Float[Array, "T B size"], keep: Float[Array, "T B"], memory: tuple[()]
    ) -> tuple[Float[Array, "T B H"], tuple[()]]:
        return jax.nn.relu(product(inputs, self.weight) + self.bias), memory


CORES: dict[str, Callable[..., Any]] = {"lstm": partial(LSTM, residual=True), "feed-forward": FeedForward}
"""Builders (size, width, key) -> core."""


def make_core(name: str, size: int, width: int, *, key: PRNGKeyArray) -> Any:
    """The core of that name."""
    if name not in CORES:
        raise ValueError(f"agent.core: expected one of {', '.join(CORES)}; got {name!r}.")
    return CORES[name](size, width, key=key)
