"""The architecture of Section 5 and appendix B: histories through a forward LSTM, futures through a reverse one.

F₁ embeds each observation together with the previous action. F₂ reads the embeddings forwards:
b_t = F₂(F₁(O_0), …, F₁(O_t)). F₃ reads them backwards from the end of a test:
b'_{t+1} = F₃(F₁(O_{t+L}), …, F₁(O_{t+1})). f and g are heads on b_t and b'_{t+1}: a projection and one layer, so that
whoever else reads b_t, such as a policy, has it to itself.

Shapes: B streams, T steps, H units.

What a history is paired with: the test that follows it (Section 5), or the next history.

A test of history h_t = (o_0, a_0, …, o_t) is τ = (a_t, o_{t+1}, …, o_{t+L}). Where it ends matters. Run to a fixed
horizon, as in the paper, its length reveals t, and every function of t is predicted without error: the leading singular
functions are clocks. With L drawn independently of t they are not; then the last histories of an episode, which some L
would not fit, have to stay out of Σ̂ altogether, or L would depend on t again.

Shapes: B streams, T steps, S stretches of a stream, L steps of a stretch, H units, k features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from derex.decomposition.statistics import Half
from derex.networks.inputs import Part, UnitScale, encode_rows, make_encoder
from derex.networks.layers import matmul
from derex.networks.recurrent import LSTM, LSTMState
from derex.types import Indexed, Trajectories

SMALLEST_SPREAD = 1e-6
ACTION_SCALE = 0.3  # of random actions, which say little of the state, against observations at 1


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

    def calibrate(self, observations: Any) -> Embedding:
        """The same, with what observations say of mean 0 and variance 1 over these rows, as what actions say is.

        Frames that differ in a few pixels would otherwise hardly be heard at first.
        """
        rows = self._encoded(observations) @ self.from_observation
        spread = jnp.maximum(jnp.std(rows - rows.mean(axis=0)), SMALLEST_SPREAD)
        weight, bias = self.from_observation / spread, -rows.mean(axis=0) / spread
        return eqx.tree_at(lambda e: (e.from_observation, e.bias), self, (weight, bias))

    def embed_observations(self, observation: Any, batch: tuple[int, ...]) -> Float[Array, "*batch width"]:
        """What the observations say; those that recur are encoded once."""
        if isinstance(observation, Indexed):
            return matmul(self._encoded(observation.values), self.from_observation)[observation.index]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(batch) :]), observation)
        return matmul(self._encoded(flat), self.from_observation).reshape(*batch, -1)

    def embed_actions(self, previous_action: Array) -> Float[Array, "*batch width"]:
        """What the previous actions say: nothing where there is none."""
        if jnp.issubdtype(previous_action.dtype, jnp.integer):
            previous_action = jax.nn.one_hot(previous_action, len(self.from_action))
        return matmul(previous_action, self.from_action)

    def combine(self, observed: Array, acted: Array | float) -> Float[Array, "*batch width"]:
        """F₁ of both."""
        return jax.nn.relu(observed + acted + self.bias)

    def _encoded(self, observations: Any) -> Float[Array, "n size"]:
        return encode_rows(self.encoder, observations)


def make_embedding(observation: tuple[Part, ...], action: int, width: int, *, key: PRNGKeyArray) -> Embedding:
    """F₁ of an agent that has seen nothing yet: `action` numbers encode an action."""
    encoder_key, key = jax.random.split(key)
    encoder = UnitScale(make_encoder(list(observation), width, key=encoder_key))
    return Embedding(encoder, width * len(observation), action, width, ACTION_SCALE, key=key)


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
        observed = self.embedding.embed_observations(trajectories.observation, trajectories.shape)
        history = self.embedding.combine(observed, self.embedding.embed_actions(trajectories.previous_action))
        return Embedded(history, history if self.test_actions else self.embedding.combine(observed, 0.0))

    def beliefs(
        self, embedded: Float[Array, "B T width"], first: Bool[Array, "B T"], memory: LSTMState | None = None
    ) -> tuple[Float[Array, "B T H"], LSTMState]:
        """b_t = F₂(F₁(O_0), …, F₁(O_t)) of every step, and the memory after the last."""
        memory = self.forward.initial(len(first)) if memory is None else memory
        keep = 1.0 - first.astype(embedded.dtype)
        out, memory = self.forward(jnp.moveaxis(embedded, 1, 0), keep.T, memory)
        return jnp.moveaxis(out, 0, 1), memory


def apply_per_step(head: Callable[[Any], Array], inputs: Any) -> Float[Array, "B T k"]:
    """A head's outputs for all beliefs, or for all observations: a pytree of arrays (B, T, …)."""
    if not getattr(head, "reads_rows", False):
        return jax.vmap(jax.vmap(head))(inputs)
    batch = jax.tree.leaves(inputs)[0].shape[:2]
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), inputs)
    return encode_rows(head, flat).reshape(*batch, -1)


@runtime_checkable
class PairNetworks(Protocol):
    """What reads histories and futures once they are embedded; `HistoryNetworks`, or an agent's own heads."""

    f: Any  # belief -> (k,)
    g: Any
    reverse: LSTM | None


@runtime_checkable
class Future(Protocol):
    """A kind of future: pure, hashable, and drawn apart from the networks that read it."""

    @property
    def needs(self) -> int:
        """Fewest further steps of its episode that a history must have to count."""
        ...

    def draw_on_host(self, rng: np.random.Generator, streams: int, steps: int) -> Int[np.ndarray, " B"]:
        """What is random about the futures of each stream, drawn on the host."""
        ...

    def draw(self, key: PRNGKeyArray, streams: int, steps: int) -> Int[Array, " B"]:
        """The same, drawn where the networks run."""
        ...

    def read(
        self,
        networks: PairNetworks,
        embedded: Embedded,
        beliefs: Float[Array, "B T H"],
        left: Int[Array, "B T"],
        phase: Int[Array, " B"],
    ) -> Float[Array, "B T k"]:
        """g of what begins at each step t + 1: column t + 1 belongs to history t."""
        ...


@dataclass(frozen=True)
class BoundedTests:
    """Tests of 1 ≤ L ≤ `longest` steps, uniform and independent of t.

    In each stream tests end at every `longest`-th step, counted from a phase that is drawn uniformly: whatever t, the
    next end is 1, …, longest steps away with equal probability. All tests with the same end share one backward reading.
    """

    longest: int

    @property
    def needs(self) -> int:
        return self.longest

    def draw_on_host(self, rng: np.random.Generator, streams: int, steps: int) -> Int[np.ndarray, " B"]:
        return rng.integers(0, self.longest, streams).astype(np.int32)

    def draw(self, key: PRNGKeyArray, streams: int, steps: int) -> Int[Array, " B"]:
        return jax.random.randint(key, (streams,), 0, self.longest)

    def read(
        self, networks: PairNetworks, embedded: Embedded, beliefs: Array, left: Array, phase: Array
    ) -> Float[Array, "B T k"]:
        assert networks.reverse is not None
        backwards = read_backwards(networks.reverse, embedded.test, left, phase, self.longest)
        return apply_per_step(networks.g, backwards)


@dataclass(frozen=True)
class TestsToEnd:
    """The paper's τ: to the end of the episode, or of what the stream holds of it."""

    needs: int = 1
    __test__: ClassVar[bool] = False  # not for pytest

    def draw_on_host(self, rng: np.random.Generator, streams: int, steps: int) -> Int[np.ndarray, " B"]:
        return np.full(streams, steps - 1, np.int32)

    def draw(self, key: PRNGKeyArray, streams: int, steps: int) -> Int[Array, " B"]:
        return jnp.full(streams, steps - 1, jnp.int32)

    def read(
        self, networks: PairNetworks, embedded: Embedded, beliefs: Array, left: Array, phase: Array
    ) -> Float[Array, "B T k"]:
        assert networks.reverse is not None
        backwards = read_backwards(networks.reverse, embedded.test, left, phase, left.shape[1], stretches=1)
        return apply_per_step(networks.g, backwards)


@dataclass(frozen=True)
class NextHistory:
    """h_{t+1}, read by f itself: the graph-drawing baseline with u = h, v = h' (appendix C)."""

    needs: int = 1

    def draw_on_host(self, rng: np.random.Generator, streams: int, steps: int) -> Int[np.ndarray, " B"]:
        return np.zeros(streams, np.int32)

    def draw(self, key: PRNGKeyArray, streams: int, steps: int) -> Int[Array, " B"]:
        return jnp.zeros(streams, jnp.int32)

    def read(
        self, networks: PairNetworks, embedded: Embedded, beliefs: Array, left: Array, phase: Array
    ) -> Float[Array, "B T k"]:
        return apply_per_step(networks.f, beliefs)


def make_future(tests: int | str, tied: bool) -> Future:
    """What histories are paired with: tests of at most so many steps, or "to-end"; a tied objective has no tests."""
    if tied:
        return NextHistory()
    if tests == "to-end":
        return TestsToEnd()
    if isinstance(tests, str) or tests < 1:
        raise ValueError(
            f'tests: expected the steps of the longest test, at least 1, or "to-end"; got {tests!r}.'
        )
    return BoundedTests(int(tests))


def read_pairs(
    networks: PairNetworks,
    future: Future,
    embedded: Embedded,
    beliefs: Float[Array, "B T H"],
    trajectories: Trajectories,
    phase: Int[Array, " B"],
) -> tuple[Float[Array, "B t k"], Float[Array, "B t k"], Float[Array, "B t"]]:
    """f(h_t), g(τ_t) and whether the pair counts, for every step t but the last."""
    left = count_steps_left(trajectories.first, trajectories.valid)
    g = future.read(networks, embedded, beliefs, left, phase)
    f = apply_per_step(networks.f, beliefs[:, :-1])
    return f, g[:, 1:], (left[:, :-1] >= future.needs).astype(f.dtype)


def split_halves(
    f: Float[Array, "B t k"], g: Float[Array, "B t k"], counted: Float[Array, "B t"]
) -> tuple[Half, Half]:
    """The first half of the streams against the second; a stream left over counts nowhere."""
    half, k = len(f) // 2, f.shape[-1]
    f, g, weights = (part[: 2 * half].reshape(2, -1, *part.shape[2:]) for part in (f, g, counted))
    first, second = (Half(f[i].reshape(-1, k), g[i].reshape(-1, k), weights[i]) for i in range(2))
    return first, second


def count_steps_left(first: Bool[Array, "B T"], valid: Bool[Array, "B T"]) -> Int[Array, "B T"]:
    """How many more steps of its episode, in its stream, follow each step; -1 in the padding."""
    last = jnp.concatenate([first[:, 1:] | ~valid[:, 1:], jnp.ones_like(first[:, :1])], axis=1)
    time = jnp.arange(first.shape[1])
    end = jax.lax.cummin(jnp.where(last, time, first.shape[1]), axis=1, reverse=True)
    return jnp.where(valid, end - time, -1)


def read_backwards(
    lstm: LSTM,
    embedded: Float[Array, "B T size"],
    left: Int[Array, "B T"],
    phase: Int[Array, " B"],
    longest: int,
    stretches: int | None = None,
) -> Float[Array, "B T H"]:
    """b'_t of every step: read from the next end, or the end of t's episode if that is nearer, back to t.

    Ends are the steps phase, phase + longest, …. The stretches between them are folded side by side: the scan then has
    `longest` steps instead of T.
    """
    B, T = left.shape
    stretches = (T + longest - 2) // longest + 1 if stretches is None else stretches
    folded = (
        jnp.arange(stretches * longest) + phase[:, None] - longest + 1
    )  # where in its stream each place is
    # Places past the end repeat the last step, which is the end of its episode: reading begins there. Places before the
    # beginning are read last of all, and nobody asks for them.
    source = jnp.clip(folded, 0, T - 1)
    x = jnp.take_along_axis(embedded, source[..., None], axis=1)
    keep = jnp.take_along_axis(left, source, axis=1) > 0

    def fold(values: Array) -> Array:
        """(B, S·L, …) -> (L, B·S, …), backwards."""
        return jnp.moveaxis(values.reshape(B * stretches, longest, *values.shape[2:]), 1, 0)[::-1]

    out, _ = lstm(fold(x), fold(keep).astype(embedded.dtype), lstm.initial(B * stretches))
    out = jnp.moveaxis(out[::-1], 0, 1).reshape(B, stretches * longest, -1)
    unfolded = jnp.arange(T) - phase[:, None] + longest - 1
    return jnp.take_along_axis(out, unfolded[..., None], axis=1)
