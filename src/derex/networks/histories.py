"""The architecture of Section 5 and appendix B: histories through a forward LSTM, futures through a reverse one.

F₁ embeds each observation together with the previous action. F₂ reads the embeddings forwards: b_t = F₂(F₁(O_0), …,
F₁(O_t)). F₃ reads them backwards from the end of a test: b'_{t+1} = F₃(F₁(O_{t+L}), …, F₁(O_{t+1})). f and g are heads on
b_t and b'_{t+1}: a projection and one layer, so that whoever else reads b_t keeps it for itself.

Shapes: T steps, B streams, S tests of a stream side by side, L steps of a test, H units.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from derex.networks.recurrent import LSTM, Memory
from derex.types import Indexed, Trajectories


class Embedding(eqx.Module):
    """F₁: an encoded observation and the previous action, through one rectified layer."""

    encoder: Any  # one observation -> vector
    actions: int  # how many actions are numbered; 0: they are vectors
    mix: eqx.nn.Linear

    def __init__(
        self, encoder: Any, encoded: int, actions: int, action_size: int, width: int, *, key: PRNGKeyArray
    ):
        self.encoder, self.actions = encoder, actions
        self.mix = eqx.nn.Linear(encoded + action_size, width, key=key)

    def __call__(self, observation: Any, previous_action: Array) -> Float[Array, "*batch width"]:
        encoded = self.encode(observation, previous_action.shape[:2])
        action = jax.nn.one_hot(previous_action, self.actions) if self.actions else previous_action
        joined = jnp.concatenate([encoded, action.reshape(*encoded.shape[:-1], -1)], axis=-1)
        return jax.nn.relu(joined @ self.mix.weight.T + self.mix.bias)

    def encode(self, observation: Any, batch: tuple[int, ...]) -> Float[Array, "*batch size"]:
        """Each observation through the encoder; those that recur, once."""
        if isinstance(observation, Indexed):
            return jax.vmap(self.encoder)(observation.values)[observation.index]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(batch) :]), observation)
        encoded = jax.vmap(self.encoder)(flat)
        return encoded.reshape(*batch, -1)


class Head(eqx.Module):
    """A projection of a belief, and one layer from it to k numbers."""

    projection: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, width: int, k: int, *, key: PRNGKeyArray):
        projection_key, out_key = jax.random.split(key)
        self.projection = eqx.nn.Linear(width, width, key=projection_key)
        self.out = eqx.nn.Linear(width, k, key=out_key)

    def __call__(self, belief: Float[Array, " H"]) -> Float[Array, " k"]:
        return self.out(jax.nn.relu(self.projection(belief)))


def keeps(first: Bool[Array, "B T"]) -> Float[Array, "T B"]:
    """0 where the forward LSTM forgets."""
    return 1.0 - first.T.astype(jnp.float32)


def steps_left(first: Bool[Array, "B T"], valid: Bool[Array, "B T"]) -> Int[Array, "B T"]:
    """How many more steps of its episode, in its row, follow each step; -1 in the padding."""
    T = first.shape[1]
    begins = jnp.concatenate([first[:, 1:] | ~valid[:, 1:], jnp.ones_like(first[:, :1])], axis=1)
    time = jnp.arange(T)
    end = jax.lax.cummin(jnp.where(begins, time, T), axis=1, reverse=True)
    return jnp.where(valid, end - time, -1)


class TestPlan(NamedTuple):
    """Which tests to take: each ends where its stream reaches a multiple of `longest` plus the stream's `phase`.

    With a phase drawn uniformly from 0, …, longest - 1 the length of a test, 1 ≤ L ≤ longest, is uniform whatever t.
    All tests of a stream that end at the same step share one backward reading of it.
    """

    phase: Int[Array, " B"]
    longest: int


def read_backwards(
    lstm: LSTM,
    embedded: Float[Array, "B T size"],
    left: Int[Array, "B T"],
    phase: Int[Array, " B"],
    longest: int,
) -> Float[Array, "B T H"]:
    """b'_t for every step t: from the end of its test (or of its episode, whichever comes first) back to t.

    Stretches between ends are folded side by side, so that the scan has `longest` steps instead of T.
    """
    B, T = left.shape
    stretches = (T + longest - 2) // longest + 1
    steps = jnp.arange(stretches * longest)
    place = steps[None, :] + phase[:, None] - longest + 1  # of each folded step in its stream
    inside = (place >= 0) & (place < T)
    place = jnp.clip(place, 0, T - 1)
    x = jnp.take_along_axis(embedded, place[..., None], axis=1)
    keep = jnp.take_along_axis(left, place, axis=1) > 0  # 0 at the end of an episode: reading starts there
    keep = keep & inside

    def fold(a: Array) -> Array:
        """(B, S·L, …) -> (L, B·S, …)."""
        a = a.reshape(B * stretches, longest, *a.shape[2:])
        return jnp.moveaxis(a, 1, 0)

    x, keep = fold(x)[::-1], fold(keep)[::-1].astype(jnp.float32)
    out, _ = lstm(x, keep, lstm.initial(B * stretches))
    out = jnp.moveaxis(out[::-1], 0, 1).reshape(B, stretches * longest, -1)
    back = jnp.arange(T)[None, :] - phase[:, None] + longest - 1
    return jnp.take_along_axis(out, back[..., None], axis=1)
