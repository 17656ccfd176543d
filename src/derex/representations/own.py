"""Networks that a representation trains by itself: some steps of its own optimiser on every unroll.

Shapes: B streams, b of them in a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import optax
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.networks.fixed import trainable

ADAM_EPSILON = 1e-5  # parameters without a gradient would otherwise walk about on rounding errors


class Own(NamedTuple):
    """Networks and the state of their optimiser."""

    networks: Any
    optimiser: optax.OptState


@dataclass(frozen=True)
class OwnTraining:
    """How they are trained."""

    steps: int = 8
    """on every unroll"""
    streams: int = 256
    """of the unroll in a step, drawn without replacement; all of them if there are fewer"""
    learning_rate: float = 1e-3
    clip: float = 1.0
    """global gradient norm"""

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam on clipped gradients."""
        return optax.chain(
            optax.clip_by_global_norm(self.clip), optax.adam(self.learning_rate, eps=ADAM_EPSILON)
        )

    def begin(self, networks: Any) -> Own:
        """Before the first step."""
        return Own(networks, self.optimiser.init(eqx.filter(networks, trainable(networks))))

    def run(
        self,
        own: Own,
        tracked: Any,
        loss: Callable[[Any, Array, PRNGKeyArray], tuple[Float[Array, ""], Any]],
        track: Callable[[Any, Any], Any],
        B: int,
        key: PRNGKeyArray,
    ) -> tuple[Own, Any]:
        """`steps` of descent; `loss(networks, chosen streams, key)` also gives what `track` takes into `tracked`."""

        def step(carry: tuple[Own, Any], key: PRNGKeyArray):
            (networks, optimiser), tracked = carry
            choice_key, loss_key = jax.random.split(key)
            chosen = jax.random.permutation(choice_key, B)[: self.streams]
            trained, fixed = eqx.partition(networks, trainable(networks))

            def of_trained(trained: Any):
                return loss(eqx.combine(trained, fixed), chosen, loss_key)

            gradient, seen = jax.grad(of_trained, has_aux=True)(trained)
            updates, optimiser = self.optimiser.update(gradient, optimiser, trained)
            networks = eqx.combine(optax.apply_updates(trained, updates), fixed)
            return (Own(networks, optimiser), track(tracked, seen)), None

        (own, tracked), _ = jax.lax.scan(step, (own, tracked), jax.random.split(key, self.steps))
        return own, tracked
