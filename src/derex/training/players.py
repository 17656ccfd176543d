"""A trained network at play: one step of B streams at a time, with what it has to remember.

Shapes: B streams, P parameters of the policy, W numbers an action is encoded in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray, Shaped

from derex.agents.distributions import Policy
from derex.agents.network import AgentNetwork
from derex.types import Trajectories


class Memory(NamedTuple):
    """What an agent takes from one step to the next; every array begins with B."""

    previous_action: Float[Array, "B W"]
    """encoded"""
    core: Any


class Decision(NamedTuple):
    """What an agent does at a step."""

    action: Shaped[Array, "B *action"]
    parameters: Float[Array, "B P"]
    """of the policy"""
    memory: Memory


def fresh_memory(network: AgentNetwork, policy: Policy, streams: int) -> Memory:
    """Nothing seen and nothing done."""
    return Memory(jnp.zeros((streams, policy.width)), network.core.initial(streams))


def decide(
    network: AgentNetwork,
    policy: Policy,
    observation: Any,
    first: Bool[Array, " B"],
    memory: Memory,
    key: PRNGKeyArray | None,
) -> Decision:
    """One step; `first` forgets what came before, and without a key the action is the likeliest."""
    previous = jnp.where(first[:, None], 0.0, memory.previous_action)
    seen, done, begins = jax.tree.map(lambda leaf: leaf[:, None], (observation, previous, first))
    step = network(Trajectories(seen, done, begins, jnp.ones_like(begins)), memory.core)
    parameters = step.policy[:, 0]
    action = policy.mode(parameters) if key is None else policy.sample(parameters, key)
    return Decision(action, parameters, Memory(policy.encoded(action), step.memory))
