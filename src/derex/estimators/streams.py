"""Training batches of whole trajectories, and what networks say of them.

The two halves of an update are trajectories drawn independently and with replacement; a half's statistics are taken
over all its histories that count.

Shapes: b streams of a batch, t histories of each (every step but the last), k features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from derex.decomposition.statistics import Half
from derex.networks.histories import Future, HistoryNetworks, read_pairs, split_halves
from derex.types import Indexed, Trajectories

CHUNK_STEPS = 100  # updates between looks at the progress
CHUNK_BYTES = 1 << 28  # most that one chunk gathers on the host


class Batch(NamedTuple):
    """Streams of one update, and what is random about their futures."""

    trajectories: Trajectories  # of repeated observations only their numbers
    phase: Int[Array, " b"]


class StreamSource(eqx.Module):
    """Reads a batch: f of its histories, g of their futures, first half against second."""

    values: Any  # observations that recur, or None
    future: Future = eqx.field(static=True)

    def halves(self, item: Batch, networks: HistoryNetworks) -> tuple[Half, Half]:
        return split_halves(*self.read(item, networks))

    def read(
        self, item: Batch, networks: HistoryNetworks
    ) -> tuple[Float[Array, "b t k"], Float[Array, "b t k"], Float[Array, "b t"]]:
        """f(h_t), g(τ_t) and whether the pair counts, for every step but the last."""
        trajectories = self.whole(item.trajectories)
        embedded = networks.embed(trajectories)
        beliefs, _ = networks.beliefs(embedded.history, trajectories.first)
        return read_pairs(networks, self.future, embedded, beliefs, trajectories, item.phase)

    def whole(self, trajectories: Trajectories) -> Trajectories:
        """The trajectories with the observations that their numbers stand for."""
        if self.values is None:
            return trajectories
        return trajectories._replace(observation=Indexed(self.values, trajectories.observation))


class StreamData:
    """A data set of trajectories, ready to be drawn from.

    Attributes:
        source: what a training step takes its two halves from.
        chunk: how many updates to run between looks at the progress.
    """

    def __init__(
        self, X: Trajectories, useful: Int[np.ndarray, " n"], future: Future, batch_size: int, seed: int
    ):
        self.useful, self.future, self.seed = useful, future, seed
        self.batch_size = 2 * (batch_size // 2)
        indexed = isinstance(X.observation, Indexed)
        values = jax.tree.map(jnp.asarray, X.observation.values) if indexed else None
        self.source = StreamSource(values, future)
        self.streams = X._replace(observation=X.observation.index) if indexed else X
        step_bytes = sum(leaf[:1].nbytes for leaf in jax.tree.leaves(self.streams)) * self.batch_size
        self.chunk = int(np.clip(CHUNK_BYTES // step_bytes, 1, CHUNK_STEPS))

    def items(self, start: int, steps: int) -> Batch:
        """Batches of updates start, …, start + steps - 1, stacked: what an update draws depends on its number alone."""
        draws = [self._draw(start + i) for i in range(steps)]
        numbers, phases = (np.stack(part) for part in zip(*draws, strict=True))
        return self._gathered(numbers, phases)

    def sample(self, most: int) -> list[Batch]:
        """Batches of the data set's own trajectories, each once, at most `most` of them."""
        rng = np.random.default_rng([self.seed, 1 << 32])
        chosen = self.useful if len(self.useful) <= most else rng.choice(self.useful, most, replace=False)
        phases = self.future.draw_on_host(rng, len(chosen), self.streams.shape[1])
        parts = range(0, len(chosen), self.batch_size)
        return [self._gathered(*(a[i : i + self.batch_size] for a in (chosen, phases))) for i in parts]

    def _draw(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([self.seed, step])
        numbers = self.useful[rng.integers(0, len(self.useful), self.batch_size)]
        return numbers, self.future.draw_on_host(rng, self.batch_size, self.streams.shape[1])

    def _gathered(self, numbers: np.ndarray, phases: np.ndarray) -> Batch:
        return Batch(on_device(self.streams.rows(numbers)), jnp.asarray(phases))


def on_device(trajectories: Trajectories) -> Trajectories:
    """With each leaf in the type that networks read: bytes stay bytes, other numbers take 32 bits."""

    def move(leaf: Any) -> Array:
        array = np.asarray(leaf)
        narrow = {"f": np.float32, "i": np.int32, "u": np.int32}.get(array.dtype.kind)
        if array.dtype in (np.uint8, bool) or narrow is None:
            return jnp.asarray(array)
        return jnp.asarray(array.astype(narrow, copy=False))

    return jax.tree.map(move, trajectories)


@eqx.filter_jit
def read_batch(source: StreamSource, item: Batch, networks: HistoryNetworks) -> tuple[Array, Array, Array]:
    """`StreamSource.read`, compiled."""
    return source.read(item, networks)


def counted_rows(
    source: StreamSource, batches: list[Batch], networks: HistoryNetworks
) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, "n k"]]:
    """f and g of all pairs that count."""
    f, g = [], []
    for batch in batches:
        f_rows, g_rows, counted = map(np.asarray, read_batch(source, batch, networks))
        f.append(f_rows[counted > 0])
        g.append(g_rows[counted > 0])
    return np.concatenate(f), np.concatenate(g)
