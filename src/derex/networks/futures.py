"""What a history is paired with: the test that follows it (Section 5), or the next history.

A test of history h_t = (o_0, a_0, …, o_t) is τ = (a_t, o_{t+1}, …, o_{t+L}). Where it ends matters. Run to a fixed
horizon, as in the paper, its length reveals t, and every function of t is predicted without error: the leading singular
functions are clocks. With L drawn independently of t they are not; then the last histories of an episode, which some L
would not fit, have to stay out of Σ̂ altogether, or L would depend on t again.

Shapes: B streams, T steps, S stretches of a stream, L steps of a stretch, H units, k features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from derex.decomposition.pairs import Half
from derex.networks.histories import Embedded, at_each_step
from derex.networks.recurrent import LSTM
from derex.types import Trajectories


@runtime_checkable
class Readers(Protocol):
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

    def phases(self, rng: np.random.Generator, streams: int, steps: int) -> Int[np.ndarray, " B"]:
        """What is random about the futures of each stream, drawn on the host."""
        ...

    def draw(self, key: PRNGKeyArray, streams: int, steps: int) -> Int[Array, " B"]:
        """The same, drawn where the networks run."""
        ...

    def read(
        self,
        networks: Readers,
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

    def phases(self, rng: np.random.Generator, streams: int, steps: int) -> Int[np.ndarray, " B"]:
        return rng.integers(0, self.longest, streams).astype(np.int32)

    def draw(self, key: PRNGKeyArray, streams: int, steps: int) -> Int[Array, " B"]:
        return jax.random.randint(key, (streams,), 0, self.longest)

    def read(
        self, networks: Readers, embedded: Embedded, beliefs: Array, left: Array, phase: Array
    ) -> Float[Array, "B T k"]:
        assert networks.reverse is not None
        backwards = read_backwards(networks.reverse, embedded.test, left, phase, self.longest)
        return at_each_step(networks.g, backwards)


@dataclass(frozen=True)
class TestsToEnd:
    """The paper's τ: to the end of the episode, or of what the stream holds of it."""

    needs: int = 1
    __test__: ClassVar[bool] = False  # not for pytest

    def phases(self, rng: np.random.Generator, streams: int, steps: int) -> Int[np.ndarray, " B"]:
        return np.full(streams, steps - 1, np.int32)

    def draw(self, key: PRNGKeyArray, streams: int, steps: int) -> Int[Array, " B"]:
        return jnp.full(streams, steps - 1, jnp.int32)

    def read(
        self, networks: Readers, embedded: Embedded, beliefs: Array, left: Array, phase: Array
    ) -> Float[Array, "B T k"]:
        assert networks.reverse is not None
        backwards = read_backwards(networks.reverse, embedded.test, left, phase, left.shape[1], stretches=1)
        return at_each_step(networks.g, backwards)


@dataclass(frozen=True)
class NextHistory:
    """h_{t+1}, read by f itself: the graph-drawing baseline with u = h, v = h' (appendix C)."""

    needs: int = 1

    def phases(self, rng: np.random.Generator, streams: int, steps: int) -> Int[np.ndarray, " B"]:
        return np.zeros(streams, np.int32)

    def draw(self, key: PRNGKeyArray, streams: int, steps: int) -> Int[Array, " B"]:
        return jnp.zeros(streams, jnp.int32)

    def read(
        self, networks: Readers, embedded: Embedded, beliefs: Array, left: Array, phase: Array
    ) -> Float[Array, "B T k"]:
        return at_each_step(networks.f, beliefs)


def future_of(tests: int | str, tied: bool) -> Future:
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
    networks: Readers,
    future: Future,
    embedded: Embedded,
    beliefs: Float[Array, "B T H"],
    trajectories: Trajectories,
    phase: Int[Array, " B"],
) -> tuple[Float[Array, "B t k"], Float[Array, "B t k"], Float[Array, "B t"]]:
    """f(h_t), g(τ_t) and whether the pair counts, for every step t but the last."""
    left = steps_left(trajectories.first, trajectories.valid)
    g = future.read(networks, embedded, beliefs, left, phase)
    f = at_each_step(networks.f, beliefs[:, :-1])
    return f, g[:, 1:], (left[:, :-1] >= future.needs).astype(f.dtype)


def halves_of(
    f: Float[Array, "B t k"], g: Float[Array, "B t k"], counted: Float[Array, "B t"]
) -> tuple[Half, Half]:
    """The first half of the streams against the second; a stream left over counts nowhere."""
    half, k = len(f) // 2, f.shape[-1]
    f, g, weights = (part[: 2 * half].reshape(2, -1, *part.shape[2:]) for part in (f, g, counted))
    first, second = (Half(f[i].reshape(-1, k), g[i].reshape(-1, k), weights[i]) for i in range(2))
    return first, second


def steps_left(first: Bool[Array, "B T"], valid: Bool[Array, "B T"]) -> Int[Array, "B T"]:
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
