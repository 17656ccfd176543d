"""The architecture of Section 5 and appendix B: histories through a forward LSTM, futures through a reverse one.

F₁ embeds each observation together with the previous action. F₂ reads the embeddings forwards:
b_t = F₂(F₁(O_0), …, F₁(O_t)). F₃ reads them backwards from the end of a test:
b'_{t+1} = F₃(F₁(O_{t+L}), …, F₁(O_{t+1})). f and g are heads on b_t and b'_{t+1}: a projection and one layer, so that
whoever else reads b_t, such as a policy, has it to itself.

Shapes: B streams, T steps, H units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from derex.networks.observations import UnitScale, encoder_of, rows_of
from derex.networks.parts import Part
from derex.networks.precision import product
from derex.networks.recurrent import LSTM, Memory
from derex.types import Indexed, Trajectories

SMALLEST_SPREAD = 1e-6
FRESH_ACTION_SCALE = 0.3  # of random actions, which say little of the state, against observations at 1


class Embedding(eqx.Module):
    """F₁: an encoded observation and the previous action, joined by one rectified layer."""

    encoder: Callable[[Any], Float[Array, " size"]]
    from_observation: Float[Array, "size width"]
    from_action: Float[Array, "choices width"]
    bias: Float[Array, " width"]

    def __init__(
        self,
        encoder: Any,
        size: int,
        choices: int,
        width: int,
        action_scale: float = 1.0,
        *,
        key: PRNGKeyArray,
    ):
        """`size` numbers come out of the encoder; an action is one of `choices`, or a vector of as many numbers."""
        initial = jax.nn.initializers.lecun_normal()
        observation_key, action_key = jax.random.split(key)
        self.encoder = encoder
        self.from_observation = initial(observation_key, (size, width))
        self.from_action = action_scale * jax.random.normal(action_key, (choices, width))
        self.bias = jnp.zeros(width)

    def calibrated(self, observations: Any) -> Embedding:
        """The same, with what observations say of mean 0 and variance 1 over these rows, as what actions say is.

        Frames that differ in a few pixels would otherwise hardly be heard at first.
        """
        rows = self._encoded(observations) @ self.from_observation
        spread = jnp.maximum(jnp.std(rows - rows.mean(axis=0)), SMALLEST_SPREAD)
        weight, bias = self.from_observation / spread, -rows.mean(axis=0) / spread
        return eqx.tree_at(lambda e: (e.from_observation, e.bias), self, (weight, bias))

    def observed(self, observation: Any, batch: tuple[int, ...]) -> Float[Array, "*batch width"]:
        """What the observations say; those that recur are encoded once."""
        if isinstance(observation, Indexed):
            return product(self._encoded(observation.values), self.from_observation)[observation.index]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(batch) :]), observation)
        return product(self._encoded(flat), self.from_observation).reshape(*batch, -1)

    def acted(self, previous_action: Array) -> Float[Array, "*batch width"]:
        """What the previous actions say: nothing where there is none."""
        if jnp.issubdtype(previous_action.dtype, jnp.integer):
            previous_action = jax.nn.one_hot(previous_action, len(self.from_action))
        return product(previous_action, self.from_action)

    def joined(self, observed: Array, acted: Array | float) -> Float[Array, "*batch width"]:
        """F₁ of both."""
        return jax.nn.relu(observed + acted + self.bias)

    def _encoded(self, observations: Any) -> Float[Array, "n size"]:
        return rows_of(self.encoder, observations)


def fresh_embedding(
    observation: tuple[Part, ...], action: int, width: int, *, key: PRNGKeyArray
) -> Embedding:
    """F₁ of an agent that has seen nothing yet: `action` numbers encode an action."""
    encoder_key, key = jax.random.split(key)
    encoder = UnitScale(encoder_of(list(observation), width, key=encoder_key))
    return Embedding(encoder, width * len(observation), action, width, FRESH_ACTION_SCALE, key=key)


class Head(eqx.Module):
    """A projection of a belief, and one layer from it to k numbers."""

    projection: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, width: int, k: int, *, key: PRNGKeyArray):
        projection_key, out_key = jax.random.split(key)
        self.projection = eqx.nn.Linear(width, width, key=projection_key)
        self.out = eqx.nn.Linear(width, k, use_bias=False, key=out_key)  # outputs are centred anyway

    def __call__(self, belief: Float[Array, " H"]) -> Float[Array, " k"]:
        return self.out(jax.nn.relu(self.projection(belief)))


class Embedded(eqx.Module):
    """Streams after F₁, once as histories read them and once as tests do."""

    history: Float[Array, "B T width"]
    test: Float[Array, "B T width"]


class HistoryNetworks(eqx.Module):
    """F₁, F₂ and F₃ with the heads f and g; a tied objective has neither F₃ nor g."""

    embedding: Embedding
    forward: LSTM
    reverse: LSTM | None
    f: Any  # belief -> (k,)
    g: Any
    test_actions: bool = eqx.field(static=True)
    """whether tests hold the actions that were taken along them, or observations alone"""

    def embed(self, trajectories: Trajectories) -> Embedded:
        """F₁ of every step."""
        observed = self.embedding.observed(trajectories.observation, trajectories.shape)
        history = self.embedding.joined(observed, self.embedding.acted(trajectories.previous_action))
        return Embedded(history, history if self.test_actions else self.embedding.joined(observed, 0.0))

    def beliefs(
        self, embedded: Float[Array, "B T width"], first: Bool[Array, "B T"], memory: Memory | None = None
    ) -> tuple[Float[Array, "B T H"], Memory]:
        """b_t = F₂(F₁(O_0), …, F₁(O_t)) of every step, and the memory after the last."""
        memory = self.forward.initial(len(first)) if memory is None else memory
        keep = 1.0 - first.astype(embedded.dtype)
        out, memory = self.forward(jnp.moveaxis(embedded, 1, 0), keep.T, memory)
        return jnp.moveaxis(out, 0, 1), memory


def at_each_step(head: Callable[[Any], Array], inputs: Any) -> Float[Array, "B T k"]:
    """A head's outputs for all beliefs, or for all observations: a pytree of arrays (B, T, …)."""
    if not getattr(head, "reads_rows", False):
        return jax.vmap(jax.vmap(head))(inputs)
    batch = jax.tree.leaves(inputs)[0].shape[:2]
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), inputs)
    return rows_of(head, flat).reshape(*batch, -1)
