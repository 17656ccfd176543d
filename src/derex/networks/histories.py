"""The architecture of Section 5 and appendix B (F₁, F₂, F₃ and the heads f, g), and the futures that histories predict.

F₁ embeds each observation together with the previous action. F₂, a forward LSTM, gives b_t = F₂(F₁(O_0), …, F₁(O_t)).
F₃, a reverse LSTM, runs from the end of a test: b'_{t+1} = F₃(F₁(O_{t+L}), …, F₁(O_{t+1})). f and g are heads on b_t
and b'_{t+1}: a projection and one layer, so that other readers of b_t, such as a policy, do not share it.

The test of a history h_t = (o_0, a_0, …, o_t) is τ = (a_t, o_{t+1}, …, o_{t+L}). Run to a fixed horizon, as in the
paper, its length reveals t, and every function of t is predicted without error: the leading singular functions are
clocks. With L drawn independently of t they are not; the last histories of an episode, too short for some L, must
then be left out of Σ̂ altogether, or L would depend on t again.

Shapes: B streams, T steps, S segments of a stream, L steps of a segment, H units, k features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from derex._text import require
from derex.decomposition.statistics import Half
from derex.networks.inputs import Part, UnitScale, encode_rows, make_encoder
from derex.networks.layers import matmul
from derex.networks.recurrent import LSTM, LSTMState
from derex.types import Indexed, Trajectories

SMALLEST_SPREAD = 1e-6
ACTION_SCALE = 0.3  # of random actions, which carry little about the state, against observations at 1


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
        """`size` is the encoder's output size; an action is one of `choices`, or a vector of that size."""
        initial = jax.nn.initializers.lecun_normal()
        observation_key, action_key = jax.random.split(key)
        self.encoder = encoder
        self.from_observation = initial(observation_key, (size, width))
        self.from_action = action_scale * jax.random.normal(action_key, (choices, width))
        self.bias = jnp.zeros(width)

    def calibrate(self, observations: Any) -> Embedding:
        """Rescale the observation's contribution to mean 0 and variance 1 over these rows, like that of actions.

        Frames that differ in a few pixels would otherwise have almost no effect at first.
        """
        rows = encode_rows(self.encoder, observations) @ self.from_observation
        spread = jnp.maximum(jnp.std(rows - rows.mean(axis=0)), SMALLEST_SPREAD)
        weight, bias = self.from_observation / spread, -rows.mean(axis=0) / spread
        return eqx.tree_at(lambda e: (e.from_observation, e.bias), self, (weight, bias))

    def embed_observations(self, observation: Any, batch: tuple[int, ...]) -> Float[Array, "*batch width"]:
        """The observations' contribution to F₁; `Indexed` ones are encoded once."""
        if isinstance(observation, Indexed):
            return matmul(encode_rows(self.encoder, observation.values), self.from_observation)[
                observation.index
            ]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(batch) :]), observation)
        return matmul(encode_rows(self.encoder, flat), self.from_observation).reshape(*batch, -1)

    def embed_actions(self, previous_action: Array) -> Float[Array, "*batch width"]:
        """The previous actions' contribution to F₁; 0 for `NO_ACTION`."""
        if jnp.issubdtype(previous_action.dtype, jnp.integer):
            previous_action = jax.nn.one_hot(previous_action, len(self.from_action))
        return matmul(previous_action, self.from_action)

    def combine(self, observed: Array, acted: Array | float) -> Float[Array, "*batch width"]:
        """F₁ from both contributions."""
        return jax.nn.relu(observed + acted + self.bias)


def make_embedding(observation: tuple[Part, ...], action: int, width: int, *, key: PRNGKeyArray) -> Embedding:
    """Build an untrained F₁ for actions encoded in `action` numbers."""
    encoder_key, key = jax.random.split(key)
    encoder = UnitScale(make_encoder(list(observation), width, key=encoder_key))
    return Embedding(encoder, width * len(observation), action, width, ACTION_SCALE, key=key)


class Head(eqx.Module):
    """A rectified projection of a belief, and a linear layer to k numbers."""

    projection: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, width: int, k: int, *, key: PRNGKeyArray):
        projection_key, out_key = jax.random.split(key)
        self.projection = eqx.nn.Linear(width, width, key=projection_key)
        self.out = eqx.nn.Linear(width, k, use_bias=False, key=out_key)  # outputs are centred anyway

    def __call__(self, belief: Float[Array, " H"]) -> Float[Array, " k"]:
        return self.out(jax.nn.relu(self.projection(belief)))


class Embedded(eqx.Module):
    """F₁ of streams, as the input of histories and of tests."""

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
    """whether tests include the actions along them, or observations only"""

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
        return read_forwards(self.forward, embedded, first, memory)


def read_forwards(
    core: Any, embedded: Float[Array, "B T width"], first: Bool[Array, "B T"], memory: Any
) -> tuple[Float[Array, "B T H"], Any]:
    """b_t of every step by the core F₂, which forgets everything at first steps, and its memory after the last."""
    keep = 1.0 - first.astype(embedded.dtype)
    out, memory = core(jnp.moveaxis(embedded, 1, 0), keep.T, memory)
    return jnp.moveaxis(out, 0, 1), memory


def apply_per_step(head: Callable[[Any], Array], inputs: Any) -> Float[Array, "B T k"]:
    """Apply a head to all beliefs, or to all observations: a pytree of arrays (B, T, …)."""
    if not getattr(head, "reads_rows", False):
        return jax.vmap(jax.vmap(head))(inputs)
    batch = jax.tree.leaves(inputs)[0].shape[:2]
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), inputs)
    return encode_rows(head, flat).reshape(*batch, -1)


@runtime_checkable
class PairNetworks(Protocol):
    """Networks on embedded histories and futures: `HistoryNetworks`, or an agent's own heads."""

    f: Any  # belief -> (k,)
    g: Any
    reverse: LSTM | None


@dataclass(frozen=True)
class Future:
    """A kind of future that histories predict: pure and hashable, independent of the networks."""

    @property
    def needs(self) -> int:
        """Steps of its episode that must follow a history for it to count."""
        return 1

    def draw_on_host(self, rng: np.random.Generator, streams: int, steps: int) -> Int[np.ndarray, " B"]:
        """The step at which futures end in each stream, its phase; random ones are drawn on the host."""
        return np.full(streams, steps - 1, np.int32)

    def draw(self, key: PRNGKeyArray, streams: int, steps: int) -> Int[Array, " B"]:
        """The same, drawn on the device."""
        return jnp.full(streams, steps - 1, jnp.int32)

    def read(
        self,
        networks: PairNetworks,
        embedded: Embedded,
        beliefs: Float[Array, "B T H"],
        left: Int[Array, "B T"],
        phase: Int[Array, " B"],
    ) -> Float[Array, "B T k"]:
        """g of the future that begins at each step; column t + 1 belongs to history t."""
        raise NotImplementedError


@dataclass(frozen=True)
class BoundedTests(Future):
    """Tests of 1 ≤ L ≤ `longest` steps, uniform and independent of t.

    In each stream tests end at every `longest`-th step, counted from a uniform random phase: for any t, the next end is
    1, …, longest steps away with equal probability. All tests with the same end share one backward pass.
    """

    longest: int

    @property
    def needs(self) -> int:
        return self.longest

    def draw_on_host(self, rng: np.random.Generator, streams: int, steps: int) -> Int[np.ndarray, " B"]:
        return rng.integers(0, self.longest, streams).astype(np.int32)

    def draw(self, key: PRNGKeyArray, streams: int, steps: int) -> Int[Array, " B"]:
        return jax.random.randint(key, (streams,), 0, self.longest)

    def read(self, networks: PairNetworks, embedded: Embedded, beliefs: Any, left: Any, phase: Any) -> Array:
        assert networks.reverse is not None
        backwards = read_backwards(networks.reverse, embedded.test, left, phase, self.longest)
        return apply_per_step(networks.g, backwards)


@dataclass(frozen=True)
class TestsToEnd(Future):
    """The paper's τ: to the end of the episode, or of its part in the stream."""

    __test__: ClassVar[bool] = False  # not for pytest

    def read(self, networks: PairNetworks, embedded: Embedded, beliefs: Any, left: Any, phase: Any) -> Array:
        assert networks.reverse is not None
        steps = left.shape[1]
        backwards = read_backwards(networks.reverse, embedded.test, left, phase, steps, segments=1)
        return apply_per_step(networks.g, backwards)


@dataclass(frozen=True)
class NextHistory(Future):
    """h_{t+1}, encoded by f itself: the graph-drawing baseline with u = h, v = h' (appendix C)."""

    def read(self, networks: PairNetworks, embedded: Embedded, beliefs: Any, left: Any, phase: Any) -> Array:
        return apply_per_step(networks.f, beliefs)


def make_future(tests: int | str, tied: bool) -> Future:
    """Build the future: tests of at most `tests` steps, or "to-end"; a tied objective uses the next history."""
    if tied:
        return NextHistory()
    if tests == "to-end":
        return TestsToEnd()
    good = not isinstance(tests, str) and tests >= 1
    require(good, "tests", 'the steps of the longest test, at least 1, or "to-end"', repr(tests))
    return BoundedTests(int(tests))


class Pairs(NamedTuple):
    """Outputs on pairs of a history and its future, one for every step but the last."""

    f: Float[Array, "B t k"]
    g: Float[Array, "B t k"]
    counted: Float[Array, "B t"]  # 1, or 0 where the pair does not count


def read_pairs(
    networks: PairNetworks,
    future: Future,
    embedded: Embedded,
    beliefs: Float[Array, "B T H"],
    trajectories: Trajectories,
    phase: Int[Array, " B"],
) -> Pairs:
    """f(h_t) and g(τ_t); a pair counts if its future fits into its episode."""
    left = count_steps_left(trajectories.first, trajectories.valid)
    g = future.read(networks, embedded, beliefs, left, phase)
    f = apply_per_step(networks.f, beliefs[:, :-1])
    return Pairs(f, g[:, 1:], (left[:, :-1] >= future.needs).astype(f.dtype))


def split_halves(
    f: Float[Array, "B t k"], g: Float[Array, "B t k"], counted: Float[Array, "B t"]
) -> tuple[Half, Half]:
    """Split the streams into two halves; of an odd number, the last stream is left out."""
    half, k = len(f) // 2, f.shape[-1]
    f, g, weights = (part[: 2 * half].reshape(2, -1, *part.shape[2:]) for part in (f, g, counted))
    first, second = (Half(f[i].reshape(-1, k), g[i].reshape(-1, k), weights[i]) for i in range(2))
    return first, second


def count_steps_left(first: Bool[Array, "B T"], valid: Bool[Array, "B T"]) -> Int[Array, "B T"]:
    """Count the steps of the same episode, in its stream, after each step; -1 in the padding."""
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
    segments: int | None = None,
) -> Float[Array, "B T H"]:
    """b'_t of every step: F₃ from the next end, or the end of t's episode if that is nearer, back to t.

    Ends are the steps phase, phase + longest, …. The segments between them are processed side by side: the scan has
    `longest` steps instead of T.
    """
    B, T = left.shape
    segments = (T + longest - 2) // longest + 1 if segments is None else segments
    folded = jnp.arange(segments * longest) + phase[:, None] - longest + 1  # step of each place in its stream
    # Places past the end repeat the last step, which ends its episode: the pass begins there. Places before the
    # beginning come last and are not used.
    source = jnp.clip(folded, 0, T - 1)
    x = jnp.take_along_axis(embedded, source[..., None], axis=1)
    keep = jnp.take_along_axis(left, source, axis=1) > 0

    def fold(values: Array) -> Array:
        """(B, S·L, …) -> (L, B·S, …), backwards."""
        return jnp.moveaxis(values.reshape(B * segments, longest, *values.shape[2:]), 1, 0)[::-1]

    out, _ = lstm(fold(x), fold(keep).astype(embedded.dtype), lstm.initial(B * segments))
    out = jnp.moveaxis(out[::-1], 0, 1).reshape(B, segments * longest, -1)
    unfolded = jnp.arange(T) - phase[:, None] + longest - 1
    return jnp.take_along_axis(out, unfolded[..., None], axis=1)
