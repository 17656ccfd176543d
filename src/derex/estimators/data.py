"""Training pairs of a fit: two independent halves per step, drawn with replacement.

A fixed data set is sampled *with replacement*, each half on its own: disjoint halves of a fixed set would not be
independent, and the double-sampled gradient would stay biased.

Work is not repeated. Where observations recur, each distinct one is stored once, and encoded once per step. Where whole
pairs recur so often that all distinct ones are no more than a batch, a step takes them all, weighted by how often each
occurs: the expectations over the data set themselves, for less than the price of an estimate.

Shapes: n pairs, b pairs of a batch, p distinct pairs, k features.
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
from derex.estimators import validation as check
from derex.estimators.validation import Sides
from derex.networks import InputSpec
from derex.networks.encoders import InputKind

Encode = Callable[[Array], Array]  # one observation -> (k,)

HASH_ROWS, HASH_BYTES = 8192, 1 << 24  # hashed at a time
DEVICE_SHARE = 0.4  # of an accelerator's free memory that a data set may take
CHUNK_STEPS = 200  # steps between reports of progress
CHUNK_BYTES = 1 << 26  # most that one chunk gathers on the host
MAX_TABLE = 2**24  # largest table made without being asked for
BLOCK_ROWS = 4096  # encoded at a time
MIN_BLOCK_ROWS = 128  # smaller blocks are padded


# --- sources of a training step ------------------------------------------------------------------------------------


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
        whole = Half(f, g, self.counts)
        return whole, whole


class GivenRows(eqx.Module):
    """The rows come with the item: batches gathered on the host, or passed by the user."""

    def halves(self, item: tuple[Array, Array], networks: Any) -> tuple[Half, Half]:
        x, y = item
        return split(jax.vmap(networks.f)(x), jax.vmap(networks.g_or_f)(y))


@partial(jax.jit, static_argnames=("steps", "half"))
def draw(key: PRNGKeyArray, start: Any, n: Any, *, steps: int, half: int) -> Int[Array, "{steps} 2*{half}"]:
    """Draws the row indices of updates start, start + 1, …: two independent halves each, with replacement.

    The draws of an update depend on its number and the key alone, not on how training is cut into chunks.
    """

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


# --- distinct rows -------------------------------------------------------------------------------------------------


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


# --- specifications of the two sides -------------------------------------------------------------------------------


def make_input_specs(rows: Sides, kinds: Sides, n_states: Any, tied: bool) -> Sides:
    """Makes the `InputSpec`s of both sides; a tied objective needs them to be the same."""
    sizes = n_states if isinstance(n_states, tuple | list) else (n_states, n_states)
    specs = [_make_spec(*each) for each in zip("XY", rows, kinds, sizes, strict=True)]
    if not tied:
        return Sides(*specs)
    if kinds.x != kinds.y or specs[0].shape != specs[1].shape or specs[0].dtype != specs[1].dtype:
        raise ValueError(
            "objective: 'laplacian' has one network for X and Y, so both need the same encoder and rows of the same "
            f"shape and type; got {specs[0].shape} {specs[0].dtype} and {specs[1].shape} {specs[1].dtype}."
        )
    shared = specs[0]._replace(n_ids=max(spec.n_ids for spec in specs))
    return Sides(shared, shared)


def _make_spec(name: str, rows: np.ndarray, kind: InputKind | None, declared: Any) -> InputSpec:
    """Makes one side's `InputSpec`; a table has the declared size, or one past the largest id."""
    dtype = check.device_dtype(rows.dtype, kind)
    if kind != "ids":
        return InputSpec(tuple(rows.shape[1:]), 0, kind, dtype)
    largest = int(check.min_max(rows)[1])
    if declared is None and largest >= MAX_TABLE:
        raise ValueError(
            f"{name}: ids up to {largest} would need a table of as many rows. {check.RENUMBER.format(name)} If such a "
            f"table is meant, set n_states={largest + 1}."
        )
    if declared is not None and largest >= declared:
        raise ValueError(
            f"{name}: ids run from 0 to n_states - 1 = {declared - 1}, got {largest}. Raise n_states."
        )
    return InputSpec((), largest + 1 if declared is None else int(declared), kind, dtype)


# --- data sets on the device or the host ---------------------------------------------------------------------------


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
    """Whether the arrays can live on the device. LSTMState maps never do: they may be larger than memory."""
    if any(map(is_memory_mapped, arrays)):
        return False
    statistics = jax.local_devices()[0].memory_stats() or {}
    limit = statistics.get("bytes_limit")
    if limit is None:  # a CPU: the arrays are in its memory already
        return True
    free = limit - statistics.get("bytes_in_use", 0)
    needed = sum(a.size * np.dtype(dtype).itemsize for a, dtype in zip(arrays, dtypes, strict=True))
    return needed <= DEVICE_SHARE * free


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
        distinct = [find_distinct_rows(side, most=2 * self.half) for side in (self.x, self.y)]
        self.distinct_x = distinct[0]
        x, y = (
            to_device(side if found is None else side[found.first], dtype)
            for side, found, dtype in zip((self.x, self.y), distinct, self.dtypes, strict=True)
        )
        if distinct[0] is not None and distinct[1] is not None:
            code = distinct[0].inverse.astype(np.int64) * len(distinct[1].first) + distinct[1].inverse
            pairs, first, counts = np.unique(code, return_index=True, return_counts=True)
            if len(pairs) <= 2 * self.half:
                self.counted = first, counts.astype(np.float64)
                x_ids, y_ids = np.divmod(pairs, len(distinct[1].first))
                ids = jnp.asarray(x_ids.astype(np.int32)), jnp.asarray(y_ids.astype(np.int32))
                return AllPairs(x, y, ids[0], ids[1], jnp.asarray(counts, jnp.float32))
        return Rows(x, y, *(None if found is None else jnp.asarray(found.inverse) for found in distinct))

    def items(self, start: int, steps: int) -> Any:
        """Makes the items of the scan over updates start, …, start + steps - 1."""
        if isinstance(self.source, AllPairs):
            return None
        indices = draw(self.key, start, len(self.x), steps=steps, half=self.half)
        if isinstance(self.source, Rows):
            return indices
        # Read each row once and in the order of the file, then copy it to its places.
        rows, places = np.unique(np.asarray(indices), return_inverse=True)
        places = places.reshape(indices.shape)
        return tuple(
            to_device(np.asarray(side[rows]).astype(dtype, copy=False)[places], dtype)
            for side, dtype in zip((self.x, self.y), self.dtypes, strict=True)
        )

    def sample_pairs(self, most: int) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
        """Returns indices and counts: of the distinct pairs where they are known, else of a random sample."""
        if self.counted is not None:
            return self.counted
        indices = sample_indices(self.rng, len(self.x), most)
        return indices, np.ones(len(indices))

    def sample_x(self, most: int) -> tuple[np.ndarray, Float[np.ndarray, " m"]]:
        """Returns rows of X and their counts: the distinct ones where they are few, else a random sample."""
        if self.distinct_x is not None and len(self.distinct_x.first) <= most:
            counts = np.bincount(self.distinct_x.inverse, minlength=len(self.distinct_x.first))
            return self.x[self.distinct_x.first], counts.astype(np.float64)
        indices = sample_indices(self.rng, len(self.x), most)
        return np.asarray(self.x[indices]), np.ones(len(indices))


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
