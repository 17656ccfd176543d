"""The agent's network: embedding F₁, recurrent core F₂, and heads for policy and values (appendix B).

Shapes: B streams, S steps, H units, P parameters of the policy, V value streams.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.agents.config import AgentConfig
from derex.agents.policy import Policy
from derex.networks.histories import Embedded, Embedding, read_forwards
from derex.networks.inputs import Part, describe_parts
from derex.networks.layers import cast_to_precision
from derex.networks.paper import make_agent_embedding
from derex.networks.recurrent import make_core
from derex.representations.base import RolloutView
from derex.types import Trajectories

POLICY_SCALE = 0.01  # of the last layer at the start: all actions are nearly equally likely
VALUE_SCALE = 0.1

__all__ = ["AgentHead", "AgentNetwork", "NetworkOutput", "describe_parts"]


class AgentHead(eqx.Module):
    """Head of the policy or of the values: one hidden ReLU layer and a linear layer on the belief."""

    hidden: Float[Array, "H H"]
    hidden_bias: Float[Array, " H"]
    out: Float[Array, "H n"]
    out_bias: Float[Array, " n"]

    def __init__(self, width: int, size: int, scale: float, *, key: PRNGKeyArray):
        hidden_key, out_key = jax.random.split(key)
        self.hidden = jax.nn.initializers.he_normal()(hidden_key, (width, width))
        self.hidden_bias = jnp.zeros(width)
        self.out = scale * jax.nn.initializers.lecun_normal()(out_key, (width, size))
        self.out_bias = jnp.zeros(size)

    def __call__(self, beliefs: Float[Array, "B S H"]) -> Float[Array, "B S n"]:
        return jax.nn.relu(beliefs @ self.hidden + self.hidden_bias) @ self.out + self.out_bias


class NetworkOutput(NamedTuple):
    """Output of the network for S steps of B streams."""

    view: RolloutView
    policy: Float[Array, "B S P"]
    value: Float[Array, "B S V"]
    memory: Any  # after the last step


class AgentNetwork(eqx.Module):
    """π(a | b_t) and v(b_t) with b_t = F₂(F₁(O_0), …, F₁(O_t)); O_t holds the previous action."""

    embedding: Embedding
    core: Any
    policy: AgentHead
    value: AgentHead
    compute: str = eqx.field(static=True)
    """precision of the matrix products of F₁ and F₂; parameters and outputs stay in float32"""
    sees_action: bool = eqx.field(static=True)  # whether O_t holds the previous action

    def __init__(
        self, config: AgentConfig, observation: tuple[Part, ...], policy: Policy, *, key: PRNGKeyArray
    ):
        """The untrained network for observations of these parts and actions of that policy."""
        embedding_key, core_key, policy_key, value_key = jax.random.split(key, 4)
        width, self.compute, self.sees_action = config.width, config.compute, config.previous_action
        self.embedding = make_agent_embedding(
            config.encoder, observation, policy.width, width, key=embedding_key
        )
        self.core = make_core(config.core, width, width, key=core_key)
        self.policy = AgentHead(width, policy.size, POLICY_SCALE, key=policy_key)
        self.value = AgentHead(width, 2 if config.two_values else 1, VALUE_SCALE, key=value_key)

    def __call__(self, trajectories: Trajectories, memory: Any) -> NetworkOutput:
        """Evaluates all steps, starting from the core's `memory` before the first."""
        embedding, core = cast_to_precision((self.embedding, self.core), self.compute)
        observed = embedding.embed_observations(trajectories.observation, trajectories.shape)
        acted = embedding.embed_actions(trajectories.previous_action) if self.sees_action else 0.0
        history = embedding.combine(observed, acted)
        embedded = Embedded(history, embedding.combine(observed, 0.0))
        beliefs, memory = read_forwards(core, history, trajectories.first, memory)
        view = RolloutView(trajectories, embedded, beliefs)
        return NetworkOutput(view, self.policy(beliefs), self.value(beliefs), memory)
