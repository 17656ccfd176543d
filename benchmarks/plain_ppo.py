"""A plain feed-forward PPO, the whole run in one compiled loop: what `agent_speed.py` is timed against.

Actor and critic of two tanh layers each, GAE, clipped losses, epochs of shuffled single transitions, as single-file
implementations do it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

GAMMA, LAMBDA, CLIP, ENTROPY, VALUE = 0.99, 0.95, 0.2, 0.01, 0.5


class Carry(NamedTuple):
    parameters: Any
    optimiser: Any
    environment: Any
    time_step: Any
    key: Array


class Step(NamedTuple):
    observation: Array
    action: Array
    log_prob: Array
    value: Array
    reward: Array
    going: Array  # 0 where the episode ends


def dense(key: Array, sizes: tuple[int, ...]) -> list[tuple[Array, Array]]:
    orthogonal = jax.nn.initializers.orthogonal(2**0.5)
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (orthogonal(k, (a, b)), jnp.zeros(b)) for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def apply(layers: list[tuple[Array, Array]], x: Array) -> Array:
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


class PlainPPO:
    """For environments with a vector observation and discrete actions."""

    def __init__(
        self, streams: Any, unroll: int = 32, width: int = 64, epochs: int = 4, minibatches: int = 4
    ):
        self.streams, self.unroll, self.width = streams, unroll, width
        self.epochs, self.minibatches = epochs, minibatches
        self.optimiser = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4, eps=1e-5))

    @partial(jax.jit, static_argnums=0)
    def begin(self, key: Array) -> Carry:
        actor_key, critic_key, reset_key, key = jax.random.split(key, 4)
        size = self.streams.spec.observation.shape[0]
        hidden = (size, self.width, self.width)
        parameters = {
            "actor": dense(actor_key, (*hidden, self.streams.spec.action.n)),
            "critic": dense(critic_key, (*hidden, 1)),
        }
        environment, time_step = self.streams.reset(reset_key)
        return Carry(parameters, self.optimiser.init(parameters), environment, time_step, key)

    @partial(jax.jit, static_argnums=0)
    def advance(self, carry: Carry, iterations: int) -> Carry:
        return jax.lax.fori_loop(0, iterations, lambda _, carry: self.iterate(carry), carry)

    def iterate(self, carry: Carry) -> Carry:
        def act(carry: Carry, _: None):
            action_key, step_key, key = jax.random.split(carry.key, 3)
            observation = carry.time_step.observation
            logits = jax.nn.log_softmax(apply(carry.parameters["actor"], observation))
            value = apply(carry.parameters["critic"], observation)[:, 0]
            action = jax.random.categorical(action_key, logits)
            log_prob = jnp.take_along_axis(logits, action[:, None], 1)[:, 0]
            environment, time_step = self.streams.step(carry.environment, action, step_key)
            going = 1.0 - time_step.last.astype(jnp.float32)
            step = Step(observation, action, log_prob, value, time_step.reward, going)
            return carry._replace(environment=environment, time_step=time_step, key=key), step

        carry, steps = jax.lax.scan(act, carry, None, length=self.unroll)
        value = apply(carry.parameters["critic"], carry.time_step.observation)[:, 0]

        def back(after: tuple[Array, Array], step: Step):
            advantage, value = after
            delta = step.reward + GAMMA * step.going * value - step.value
            advantage = delta + GAMMA * LAMBDA * step.going * advantage
            return (advantage, step.value), advantage

        _, advantages = jax.lax.scan(back, (jnp.zeros_like(value), value), steps, reverse=True)
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (steps, advantages))

        def update(state: tuple[Any, Any], batch: Any):
            parameters, optimiser = state
            gradient = jax.grad(self.loss)(parameters, *batch)
            updates, optimiser = self.optimiser.update(gradient, optimiser)
            return (optax.apply_updates(parameters, updates), optimiser), None

        def epoch(state: tuple[Any, Any], key: Array):
            order = jax.random.permutation(key, len(rows[1]))
            batches = jax.tree.map(
                lambda leaf: leaf[order].reshape(self.minibatches, -1, *leaf.shape[1:]), rows
            )
            return jax.lax.scan(update, state, batches)

        key, epoch_key = jax.random.split(carry.key)
        keys = jax.random.split(epoch_key, self.epochs)
        (parameters, optimiser), _ = jax.lax.scan(epoch, (carry.parameters, carry.optimiser), keys)
        return carry._replace(parameters=parameters, optimiser=optimiser, key=key)

    def loss(self, parameters: Any, steps: Step, advantages: Array) -> Array:
        logits = jax.nn.log_softmax(apply(parameters["actor"], steps.observation))
        log_prob = jnp.take_along_axis(logits, steps.action[:, None], 1)[:, 0]
        value = apply(parameters["critic"], steps.observation)[:, 0]
        target = advantages + steps.value
        clipped = steps.value + jnp.clip(value - steps.value, -CLIP, CLIP)
        value_loss = 0.5 * jnp.mean(jnp.maximum(jnp.square(value - target), jnp.square(clipped - target)))
        normal = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = jnp.exp(log_prob - steps.log_prob)
        policy_loss = -jnp.mean(jnp.minimum(ratio * normal, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * normal))
        entropy = -jnp.mean(jnp.sum(jnp.exp(logits) * logits, axis=-1))
        return policy_loss + VALUE * value_loss - ENTROPY * entropy
