"""The agent's network: F₁ embeds, F₂ remembers, policy and values read the belief (appendix B).

Shapes: B streams, S steps, H units, P parameters of the policy, V value streams.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.networks.cores import make_core
from derex.networks.encoders import InputSpec
from derex.networks.histories import Embedded, Embedding, fresh_embedding
from derex.networks.observations import kind_of
from derex.representations.base import View
from derex.types import Trajectories

POLICY_SCALE = 0.01  # of the last layer at the start: all actions are nearly equally likely
VALUE_SCALE = 0.1


class Readout(eqx.Module):
    """A rectified layer and a linear one on the belief."""

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


class Seen(NamedTuple):
    """What the network makes of some steps of some streams."""

    view: View
    policy: Float[Array, "B S P"]
    value: Float[Array, "B S V"]
    memory: Any
    """after the last step"""


class AgentNetwork(eqx.Module):
    """π(a | b_t) and v(b_t) with b_t = F₂(F₁(O_0), …, F₁(O_t)); O_t holds the previous action."""

    embedding: Embedding
    core: Any
    policy: Readout
    value: Readout

    def __init__(
        self,
        observation: tuple[InputSpec, ...],
        action: int,
        outputs: int,
        values: int = 1,
        core: str = "lstm",
        width: int = 128,
        *,
        key: PRNGKeyArray,
    ):
        """`action` numbers encode an action, `outputs` parametrise the policy, `values` streams are valued."""
        embedding_key, core_key, policy_key, value_key = jax.random.split(key, 4)
        self.embedding = fresh_embedding(observation, action, width, key=embedding_key)
        self.core = make_core(core, width, width, key=core_key)
        self.policy = Readout(width, outputs, POLICY_SCALE, key=policy_key)
        self.value = Readout(width, values, VALUE_SCALE, key=value_key)

    def __call__(self, trajectories: Trajectories, memory: Any) -> Seen:
        """Everything at every step, beginning with `memory` of what came before."""
        observed = self.embedding.observed(trajectories.observation, trajectories.shape)
        acted = self.embedding.acted(trajectories.previous_action)
        history = self.embedding.joined(observed, acted)
        embedded = Embedded(history, self.embedding.joined(observed, 0.0))
        keep = 1.0 - trajectories.first.astype(history.dtype)
        beliefs, memory = self.core(jnp.moveaxis(history, 1, 0), keep.T, memory)
        beliefs = jnp.moveaxis(beliefs, 0, 1)
        view = View(trajectories, embedded, beliefs)
        return Seen(view, self.policy(beliefs), self.value(beliefs), memory)


def parts_of(observation: Any) -> tuple[InputSpec, ...]:
    """The parts of an environment's observation, as encoders want to know them."""
    leaves = jax.tree.leaves(observation)
    return tuple(
        InputSpec(tuple(leaf.shape), kind=kind_of(tuple(leaf.shape), np.dtype(leaf.dtype))) for leaf in leaves
    )
