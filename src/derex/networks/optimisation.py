"""Gradient descent on the trainable leaves of networks: the optimiser loop of estimators and agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import optax
from jax import Array
from jaxtyping import Float

from derex.networks.layers import trainable_mask


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
