"""Training data of fits: two independent halves per step, drawn with replacement, and samples to measure with.

A fixed data set is sampled *with replacement*, each half on its own: disjoint halves of a fixed set would not be
independent, and the double-sampled gradient would stay biased. The halves of an update depend on its number and the
seed alone, not on how training is cut into chunks.

**Pairs.** Work is not repeated. Where observations recur, each distinct one is stored once, and encoded once per step.
Where whole pairs recur so often that all distinct ones are no more than a batch, a step takes them all, weighted by how
often each occurs: the expectations over the data set themselves, for less than the price of an estimate.

**Trajectories.** The halves of an update are streams; a half's statistics are taken over all its histories that count.

Shapes: n pairs, b pairs or streams of a batch, p distinct pairs, t histories of a stream (every step but the last),
k features.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from derex.decomposition.statistics import Half
from derex.estimators.validation import device_dtype
from derex.networks.histories import Future, HistoryNetworks, read_pairs, split_halves
from derex.types import Indexed, Trajectories

Encode = Callable[[Array], Array]  # one observation -> (k,)

HASH_ROWS, HASH_BYTES = 8192, 1 << 24  # hashed at a time
DEVICE_SHARE = 0.4  # of an accelerator's free memory that a data set may take
CHUNK_STEPS, STREAM_CHUNK_STEPS = 200, 100  # updates between reports of progress
CHUNK_BYTES, STREAM_CHUNK_BYTES = 1 << 26, 1 << 28  # most that one chunk gathers on the host
MEASURED_PAIRS, MEASURED_STREAMS = 1 << 16, 512  # at most, for the statistics of a finished fit
BLOCK_ROWS = 4096  # encoded at a time
MIN_BLOCK_ROWS = 128  # smaller blocks are padded


def to_device(array: np.ndarray, dtype: str) -> Array:
    """Copies an array to the device as `dtype`."""
    return jnp.asarray(np.asarray(array).astype(dtype, copy=False))


def is_memory_mapped(array: Any) -> bool:
    """Whether an array, or the array it is a view of, lives in a file."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def fits_device(arrays: tuple[np.ndarray, ...], dtypes: tuple[str, ...]) -> bool:
    """Whether the arrays can live on the device. Memory maps never do: they may be larger than memory."""
    if any(map(is_memory_mapped, arrays)):
        return False
    statistics = jax.local_devices()[0].memory_stats() or {}
    limit = statistics.get("bytes_limit")
    if limit is None:  # a CPU: the arrays are in its memory already
        return True
    free = limit - statistics.get("bytes_in_use", 0)
    needed = sum(a.size * np.dtype(dtype).itemsize for a, dtype in zip(arrays, dtypes, strict=True))
    return needed <= DEVICE_SHARE * free


def sample_indices(rng: np.random.Generator, n: int, most: int) -> Int[np.ndarray, " m"]:
    """Draws at most `most` of n indices, without replacement, in order."""
    return np.arange(n) if n <= most else np.sort(rng.choice(n, most, replace=False))


def map_rows(
    function: Encode, rows: np.ndarray, dtype: str, indices: Int[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, "n *rest"]:
    """Applies a module or `eqx.Partial` to each row (of those with the given indices), block by block.

    The last block is padded to a power of two: few shapes, so few compilations.
    """
    parts = []
    for start in range(0, len(rows) if indices is None else len(indices), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        block = np.asarray(rows[part] if indices is None else rows[indices[part]])
        length = len(block)
        padded = max(1 << (length - 1).bit_length(), MIN_BLOCK_ROWS)
        if padded > length:
            block = np.concatenate([block, np.repeat(block[-1:], padded - length, axis=0)])
        parts.append(np.asarray(_map_block(function, to_device(block, dtype)), np.float32)[:length])
    return np.concatenate(parts)


@eqx.filter_jit
def _map_block(function: Encode, rows: Array) -> Array:
    return jax.vmap(function)(rows)


class UniqueRows(NamedTuple):
    """The distinct rows of an array: the index where each first appears, and which of them every row is."""

    first: Int[np.ndarray, " m"]
    inverse: Int[np.ndarray, " n"]


def find_distinct_rows(rows: np.ndarray, most: int) -> UniqueRows | None:
    """Finds the distinct rows if there are at most `most`, else None; stops reading once there are more."""
    row_bytes = rows[:1].nbytes
    size = min(HASH_ROWS, max(1, HASH_BYTES // row_bytes))
    starts = range(0, len(rows), size)
    multipliers = np.random.default_rng(0).integers(1, 2**63, -(-row_bytes // 8), dtype=np.uint64)
    codes, seen = [], np.zeros(0, np.uint64)
    for start in starts:
        codes.append(hash_rows(rows[start : start + size], multipliers | np.uint64(1)))
        seen = np.union1d(seen, codes[-1])
        if len(seen) > most:
            return None
    _, first, inverse = np.unique(np.concatenate(codes), return_index=True, return_inverse=True)
    for start in starts:  # equal codes must be equal rows
        part = slice(start, start + size)
        if not np.array_equal(rows[part], rows[first[inverse[part]]]):
            return None
    return UniqueRows(first.astype(np.int32), inverse.astype(np.int32))


def hash_rows(rows: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
    """Computes a 64-bit code per row: an id itself, else a multilinear hash of the row's bytes modulo 2⁶⁴."""
    if rows.dtype.kind in "iu" and rows.ndim == 1:
        return rows.astype(np.uint64)
    raw = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    padded = np.zeros((len(rows), 8 * len(multipliers)), np.uint8)
    padded[:, : raw.shape[1]] = raw
    words = padded.view(np.uint64)
    words = words ^ (words >> np.uint64(29))
    return (words * multipliers).sum(axis=1, dtype=np.uint64)


# --- pairs ---------------------------------------------------------------------------------------------------------


@runtime_checkable
class Source(Protocol):
    """Draws the two halves of one step from an item of a scan, encoded by the networks of that step."""

    def halves(self, item: Any, networks: Any) -> tuple[Half, Half]: ...


class Rows(eqx.Module):
    """Pairs on the device, drawn by index.

    `x_ids[i]` and `y_ids[i]` are the stored observations of pair i (None: those of index i).
    """

    x: Array
    y: Array
    x_ids: Int[Array, " n"] | None
    y_ids: Int[Array, " n"] | None

    def halves(self, item: Int[Array, " b"], networks: Any) -> tuple[Half, Half]:
        f = encode(networks.f, self.x, item if self.x_ids is None else self.x_ids[item])
        g = encode(networks.g_or_f, self.y, item if self.y_ids is None else self.y_ids[item])
        return split(f, g)


class AllPairs(eqx.Module):
    """The whole data set in every step: its distinct pairs (x_ids[p], y_ids[p]) and their counts.

    Both halves are the same, Σ̂ = Σ exactly, and the double-sampled gradient is the gradient of L_off(Σ).
    """

    x: Array
    y: Array
    x_ids: Int[Array, " p"]
    y_ids: Int[Array, " p"]
    counts: Float[Array, " p"]

    def halves(self, item: None, networks: Any) -> tuple[Half, Half]:
        f, g = encode(networks.f, self.x, self.x_ids), encode(networks.g_or_f, self.y, self.y_ids)
        return Half(f, g, self.counts), Half(f, g, self.counts)


class GivenRows(eqx.Module):
    """The rows come with the item: batches gathered on the host, or passed by the user."""

    def halves(self, item: tuple[Array, Array], networks: Any) -> tuple[Half, Half]:
        x, y = item
        return split(jax.vmap(networks.f)(x), jax.vmap(networks.g_or_f)(y))


@partial(jax.jit, static_argnames=("steps", "half"))
def draw(key: PRNGKeyArray, start: Any, n: Any, *, steps: int, half: int) -> Int[Array, "{steps} 2*{half}"]:
    """Draws the row indices of updates start, start + 1, …: two independent halves each, with replacement."""

    def one(step: Array) -> Array:
        return jax.random.randint(jax.random.fold_in(key, step), (2 * half,), 0, n, dtype=jnp.int32)

    return jax.vmap(one)(start + jnp.arange(steps, dtype=jnp.int32))


def encode(network: Encode, rows: Array, ids: Int[Array, " b"]) -> Float[Array, "b k"]:
    """Computes network(rows[ids]), encoding every stored row once where that is less work."""
    if rows.shape[0] <= ids.shape[0]:
        return jax.vmap(network)(rows)[ids]
    return jax.vmap(network)(rows[ids])


def split(f: Float[Array, "n k"], g: Float[Array, "n k"]) -> tuple[Half, Half]:
    """Splits rows into their first and second half; an odd last row is left out."""
    half = f.shape[0] // 2
    return Half(f[:half], g[:half]), Half(f[half : 2 * half], g[half : 2 * half])


class PairData:
    """A data set of pairs to draw from: on the device where it fits, else read from the host batch by batch.

    Attributes:
        source: where a training step takes its two halves from.
        chunk: steps to run between reports of progress.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        dtypes: tuple[str, str],
        batch_size: int,
        rng: np.random.Generator,
        key: PRNGKeyArray,
    ):
        self.x, self.y, self.dtypes, self.rng, self.key = x, y, dtypes, rng, key
        self.half, self.chunk = batch_size // 2, CHUNK_STEPS
        self.distinct_x: UniqueRows | None = None
        self.counted: tuple[np.ndarray, np.ndarray] | None = None  # indices of the distinct pairs, and counts
        self.source: Source = GivenRows()
        if fits_device((x, y), dtypes):
            self.source = self._store_on_device()
        else:
            row_bytes = x[:1].nbytes + y[:1].nbytes
            self.chunk = int(np.clip(CHUNK_BYTES // (2 * self.half * row_bytes), 1, CHUNK_STEPS))

    def _store_on_device(self) -> Source:
        in_x, in_y = (find_distinct_rows(side, most=2 * self.half) for side in (self.x, self.y))
        self.distinct_x = in_x
        x, y = (
            to_device(side if found is None else side[found.first], dtype)
            for side, found, dtype in zip((self.x, self.y), (in_x, in_y), self.dtypes, strict=True)
        )
        if in_x is not None and in_y is not None:
            code = in_x.inverse.astype(np.int64) * len(in_y.first) + in_y.inverse
            pairs, first, counts = np.unique(code, return_index=True, return_counts=True)
            if len(pairs) <= 2 * self.half:
                order = np.argsort(first)  # that of the data, whatever its type
                self.counted = first[order], counts[order].astype(np.float64)
                of_x, of_y = (jnp.asarray(ids, jnp.int32) for ids in np.divmod(pairs, len(in_y.first)))
                return AllPairs(x, y, of_x, of_y, jnp.asarray(counts, jnp.float32))
        return Rows(x, y, *(None if found is None else jnp.asarray(found.inverse) for found in (in_x, in_y)))

    def items(self, start: int, steps: int) -> Any:
        """Makes the items of the scan over updates start, …, start + steps - 1."""
        if isinstance(self.source, AllPairs):
            return None
        indices = draw(self.key, start, len(self.x), steps=steps, half=self.half)
        if isinstance(self.source, Rows):
            return indices
        # Read each row once and in the order of the file, then copy it to its places.
        rows, places = np.unique(np.asarray(indices), return_inverse=True)
        sides = zip((self.x, self.y), self.dtypes, strict=True)
        return tuple(
            to_device(np.asarray(side[rows], dtype)[places.reshape(indices.shape)], dtype)
            for side, dtype in sides
        )

    def encode_sample(
        self, networks: Any, most: int = MEASURED_PAIRS
    ) -> tuple[Float[np.ndarray, "m k"], Float[np.ndarray, "m k"], Float[np.ndarray, " m"] | None]:
        """Computes f, g and counts: of the distinct pairs where known, else of a random sample with counts None."""
        if self.counted is None:
            indices, counts = sample_indices(self.rng, len(self.x), most), None
        else:
            indices, counts = self.counted
        f = map_rows(networks.f, self.x, self.dtypes[0], indices)
        return f, map_rows(networks.g_or_f, self.y, self.dtypes[1], indices), counts

    def sample_x(self, most: int) -> tuple[np.ndarray, Float[np.ndarray, " m"]]:
        """Returns rows of X and their counts: the distinct ones where they are few, else a random sample."""
        if self.distinct_x is not None and len(self.distinct_x.first) <= most:
            counts = np.bincount(self.distinct_x.inverse, minlength=len(self.distinct_x.first))
            return self.x[self.distinct_x.first], counts.astype(np.float64)
        indices = sample_indices(self.rng, len(self.x), most)
        return np.asarray(self.x[indices]), np.ones(len(indices))


# --- trajectories --------------------------------------------------------------------------------------------------


class TrajectoryBatch(NamedTuple):
    """The streams of one update and the random phases of their tests."""

    trajectories: Trajectories  # observations that recur are given by their indices
    phase: Int[Array, " b"]


class StreamSource(eqx.Module):
    """Encodes a batch: f of its histories, g of their futures, first half against second."""

    values: Any  # observations that recur, or None
    future: Future = eqx.field(static=True)

    def halves(self, item: TrajectoryBatch, networks: HistoryNetworks) -> tuple[Half, Half]:
        return split_halves(*self.encode(item, networks))

    def encode(
        self, item: TrajectoryBatch, networks: HistoryNetworks
    ) -> tuple[Float[Array, "b t k"], Float[Array, "b t k"], Float[Array, "b t"]]:
        """Computes f(h_t), g(τ_t) and whether the pair counts, for every step but the last."""
        trajectories = item.trajectories
        if self.values is not None:
            trajectories = trajectories._replace(observation=Indexed(self.values, trajectories.observation))
        embedded = networks.embed(trajectories)
        beliefs, _ = networks.beliefs(embedded.history, trajectories.first)
        return read_pairs(networks, self.future, embedded, beliefs, trajectories, item.phase)


class StreamData:
    """A data set of trajectories to draw from; attributes as in `PairData`."""

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
        self.chunk = int(np.clip(STREAM_CHUNK_BYTES // step_bytes, 1, STREAM_CHUNK_STEPS))

    def items(self, start: int, steps: int) -> TrajectoryBatch:
        """Draws the batches of updates start, …, start + steps - 1."""
        indices, phases = [], []
        for step in range(start, start + steps):
            rng = np.random.default_rng([self.seed, step])
            indices.append(self.useful[rng.integers(0, len(self.useful), self.batch_size)])
            phases.append(self.future.draw_on_host(rng, self.batch_size, self.streams.shape[1]))
        return self._gather(np.stack(indices), np.stack(phases))

    def sample(self, most: int) -> list[TrajectoryBatch]:
        """Returns batches of at most `most` of the useful trajectories, each once."""
        rng = np.random.default_rng([self.seed, 1 << 32])
        chosen = self.useful if len(self.useful) <= most else rng.choice(self.useful, most, replace=False)
        phases = self.future.draw_on_host(rng, len(chosen), self.streams.shape[1])
        parts = range(0, len(chosen), self.batch_size)
        return [self._gather(*(a[i : i + self.batch_size] for a in (chosen, phases))) for i in parts]

    def encode_sample(
        self, networks: HistoryNetworks, most: int = MEASURED_STREAMS
    ) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, "n k"], None]:
        """Computes f and g of all pairs that count in a sample; each counts once."""
        encode, f, g = eqx.filter_jit(self.source.encode), [], []
        for batch in self.sample(most):
            f_rows, g_rows, counted = map(np.asarray, encode(batch, networks))
            f.append(f_rows[counted > 0])
            g.append(g_rows[counted > 0])
        return np.concatenate(f), np.concatenate(g), None

    def _gather(self, indices: np.ndarray, phases: np.ndarray) -> TrajectoryBatch:
        return TrajectoryBatch(trajectories_to_device(self.streams.rows(indices)), jnp.asarray(phases))


def trajectories_to_device(trajectories: Trajectories) -> Trajectories:
    """Copies each leaf to the device in the type that networks read: bytes stay bytes, other numbers take 32 bits."""

    def move(leaf: Any) -> Array:
        array = np.asarray(leaf)
        return to_device(array, "bool" if array.dtype == bool else device_dtype(array.dtype, None))

    return jax.tree.map(move, trajectories)
