"""Networks that a representation trains with its own optimiser: some steps on every rollout."""

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

ADAM_EPSILON = 1e-8  # parameters of rare states have small gradients


class OptimisedNetworks(NamedTuple):
    """Networks and the state of their optimiser."""

    networks: Any
    optimiser: optax.OptState


@dataclass(frozen=True)
class OptimisedTraining:
    """Options of that training."""

    steps: int = 8
    """on every rollout"""
    streams: int = 256
    """in a minibatch, drawn without replacement; all if there are fewer"""
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

    def init(self, networks: Any) -> OptimisedNetworks:
        """State before the first step."""
        return OptimisedNetworks(networks, init_optimiser(self.optimiser, networks))

    def minibatch(self, rollout: Any, key: PRNGKeyArray) -> Any:
        """Some streams of a rollout, a pytree of arrays (B, …)."""
        B = len(jax.tree.leaves(rollout)[0])
        chosen = jax.random.permutation(key, B)[: self.streams]
        return jax.tree.map(lambda leaf: leaf[chosen], rollout)

    def run(
        self,
        own: OptimisedNetworks,
        rollout: Any,
        loss: Callable[[Any, Any, PRNGKeyArray], Float[Array, ""]],
        key: PRNGKeyArray,
    ) -> OptimisedNetworks:
        """`steps` gradient steps on loss(networks, minibatch, key)."""

        def minibatch_loss(networks: Any, key: PRNGKeyArray):
            draw_key, loss_key = jax.random.split(key)
            return loss(networks, self.minibatch(rollout, draw_key), loss_key), (None, None)

        keys = jax.random.split(key, self.steps)
        after = run_gradient_steps(minibatch_loss, self.optimiser, own.networks, own.optimiser, keys)
        return OptimisedNetworks(after.networks, after.optimiser)
