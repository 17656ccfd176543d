"""Networks that a representation trains by itself: some steps of its own optimiser on every unroll.

Shapes: B streams, b of them in a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import optax
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.networks.optimisation import clipped_adam, init_optimiser, run_gradient_steps
from derex.representations.base import LARGEST_COUNT, check, check_counts, check_positive

ADAM_EPSILON = 1e-8  # what belongs to rare states alone has gradients as small as they are rare


class OptimisedNetworks(NamedTuple):
    """Networks and the state of their optimiser."""

    networks: Any
    optimiser: optax.OptState


@dataclass(frozen=True)
class OptimisedTraining:
    """How they are trained."""

    steps: int = 8
    """on every unroll"""
    streams: int = 256
    """in a step, drawn without replacement; all of them if there are fewer"""
    learning_rate: float = 3e-3
    clip: float = 1.0
    """global gradient norm"""

    def __post_init__(self) -> None:
        steps = 0 <= self.steps <= LARGEST_COUNT
        check("training.steps", self.steps, steps, f"0 (not trained) or more, at most {LARGEST_COUNT}")
        check_counts("training.", streams=self.streams)
        check_positive("training.", learning_rate=self.learning_rate, clip=self.clip)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam on clipped gradients."""
        return clipped_adam(self.learning_rate, self.clip, ADAM_EPSILON)

    def begin(self, networks: Any) -> OptimisedNetworks:
        """Before the first step."""
        return OptimisedNetworks(networks, init_optimiser(self.optimiser, networks))

    def minibatch(self, unroll: Any, key: PRNGKeyArray) -> Any:
        """The rows of a step: different streams of the unroll, a pytree of arrays (B, …)."""
        B = len(jax.tree.leaves(unroll)[0])
        chosen = jax.random.permutation(key, B)[: self.streams]
        return jax.tree.map(lambda leaf: leaf[chosen], unroll)

    def run(
        self,
        own: OptimisedNetworks,
        unroll: Any,
        loss: Callable[[Any, Any, PRNGKeyArray], Float[Array, ""]],
        key: PRNGKeyArray,
    ) -> OptimisedNetworks:
        """`steps` of descent on loss(networks, rows, key), each on some rows of the unroll."""

        def minibatch_loss(networks: Any, key: PRNGKeyArray):
            draw_key, loss_key = jax.random.split(key)
            return loss(networks, self.minibatch(unroll, draw_key), loss_key), (None, None)

        keys = jax.random.split(key, self.steps)
        after = run_gradient_steps(minibatch_loss, self.optimiser, own.networks, own.optimiser, keys)
        return OptimisedNetworks(after.networks, after.optimiser)
