"""Where the training pairs of a fit come from: two independent halves a step, drawn with replacement.

A fixed data set is sampled *with replacement*, each half on its own: disjoint halves of a fixed set would not be
independent, and the double-sampled gradient would stay biased.

Work is not repeated. Where observations recur, each distinct one is stored once, and encoded once per step. Where whole
pairs recur so often that all distinct ones are no more than a batch, a step takes them all, weighted by how often each
occurs: the expectations over the data set themselves, for less than the price of an estimate.

From checked arrays to a training source: on the device where it fits, from the host otherwise.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from derex.decomposition.statistics import Half

Encode = Callable[[Array], Array]  # one observation -> (k,)
HASH_ROWS, HASH_BYTES = 8192, 1 << 24  # most that is hashed at a time


@runtime_checkable
class Source(Protocol):
    """Draws the halves of one step from an item of a scan, read by the networks as they are at that step."""

    def halves(self, item: Any, networks: Any) -> tuple[Half, Half]: ...


@runtime_checkable
class BothSides(Protocol):
    """Networks of pairs: one function for each side."""

    @property
    def f(self) -> Encode: ...

    @property
    def g_or_f(self) -> Encode: ...


class Rows(eqx.Module):
    """Pairs on the device, drawn by their numbers.

    `x_ids[i]` and `y_ids[i]` say which stored observations make pair i (None: those of number i).
    """

    x: Array
    y: Array
    x_ids: Int[Array, " n"] | None
    y_ids: Int[Array, " n"] | None

    def halves(self, item: Int[Array, " b"], networks: BothSides) -> tuple[Half, Half]:
        f_rows = encode(networks.f, self.x, item if self.x_ids is None else self.x_ids[item])
        g_rows = encode(networks.g_or_f, self.y, item if self.y_ids is None else self.y_ids[item])
        return split(f_rows, g_rows)


class AllPairs(eqx.Module):
    """The whole data set in every step: its distinct pairs (x_ids[p], y_ids[p]) and how often each occurs.

    Both halves are the same, Σ̂ = Σ exactly, and the double-sampled gradient is the gradient of L_off(Σ).
    """

    x: Array
    y: Array
    x_ids: Int[Array, " p"]
    y_ids: Int[Array, " p"]
    counts: Float[Array, " p"]

    def halves(self, item: None, networks: BothSides) -> tuple[Half, Half]:
        f, g = encode(networks.f, self.x, self.x_ids), encode(networks.g_or_f, self.y, self.y_ids)
        whole = Half(f, g, self.counts)
        return whole, whole


class GivenRows(eqx.Module):
    """The rows come with the item: batches gathered on the host, or handed over by the user."""

    def halves(self, item: tuple[Array, Array], networks: BothSides) -> tuple[Half, Half]:
        x, y = item
        return split(jax.vmap(networks.f)(x), jax.vmap(networks.g_or_f)(y))


@partial(jax.jit, static_argnames=("steps", "half"))
def draw(key: PRNGKeyArray, start: Any, n: Any, *, steps: int, half: int) -> Int[Array, "{steps} 2*{half}"]:
    """Row numbers for updates start, start + 1, …: two halves each, independent, drawn with replacement.

    What an update draws depends on its number and the key alone, not on how training is cut into chunks.
    """

    def one(step: Array) -> Array:
        return jax.random.randint(jax.random.fold_in(key, step), (2 * half,), 0, n, dtype=jnp.int32)

    return jax.vmap(one)(start + jnp.arange(steps, dtype=jnp.int32))


def encode(network: Encode, rows: Array, ids: Int[Array, " b"]) -> Float[Array, "b k"]:
    """network(rows[ids]), encoding every stored row once where that is less work."""
    if rows.shape[0] <= ids.shape[0]:
        return jax.vmap(network)(rows)[ids]
    return jax.vmap(network)(rows[ids])


def split(f: Float[Array, "n k"], g: Float[Array, "n k"]) -> tuple[Half, Half]:
    """The first half of the rows and the second; an odd last row is left out."""
    half = f.shape[0] // 2
    return Half(f[:half], g[:half]), Half(f[half : 2 * half], g[half : 2 * half])


class Distinct(NamedTuple):
    """The distinct rows of an array, by the first place each appears, and which of them every row is."""

    first: Int[np.ndarray, " m"]
    inverse: Int[np.ndarray, " n"]


def distinct_rows(rows: np.ndarray, most: int) -> Distinct | None:
    """The distinct rows if there are at most `most`, else None; stops reading as soon as that is known."""
    codes = np.concatenate([*_codes(rows, most)] or [np.zeros(0, np.uint64)])
    if len(codes) < len(rows):
        return None
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    if len(first) > most or not _verified(rows, first, inverse):
        return None
    return Distinct(first.astype(np.int32), inverse.astype(np.int32))


def _codes(rows: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """A 64-bit code of each block's rows; ends early once more than `most` have been met."""
    row_bytes = rows[:1].nbytes
    multipliers = np.random.default_rng(0).integers(1, 2**63, -(-row_bytes // 8), dtype=np.uint64)
    seen = np.zeros(0, np.uint64)
    for block in _blocks(rows):
        ids = rows.dtype.kind in "iu" and rows.ndim == 1
        codes = block.astype(np.uint64) if ids else _hash(block, row_bytes, multipliers | np.uint64(1))
        seen = np.union1d(seen, codes)
        if len(seen) > most:
            return
        yield codes


def _hash(block: np.ndarray, row_bytes: int, multipliers: np.ndarray) -> np.ndarray:
    """Multilinear hash of each row's bytes, modulo 2⁶⁴."""
    raw = np.ascontiguousarray(block).reshape(len(block), -1).view(np.uint8)
    words = np.zeros((len(block), 8 * len(multipliers)), np.uint8)
    words[:, :row_bytes] = raw
    mixed = words.view(np.uint64)
    mixed = mixed ^ (mixed >> np.uint64(29))
    return (mixed * multipliers).sum(axis=1, dtype=np.uint64)


def _verified(rows: np.ndarray, first: np.ndarray, inverse: np.ndarray) -> bool:
    """Equal codes really are equal rows."""
    start = 0
    for block in _blocks(rows):
        if not np.array_equal(block, rows[first[inverse[start : start + len(block)]]]):
            return False
        start += len(block)
    return True


def _blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    size = min(HASH_ROWS, max(1, HASH_BYTES // rows[:1].nbytes))
    return (rows[i : i + size] for i in range(0, len(rows), size))


DEVICE_SHARE = 0.4  # of an accelerator's free memory that a data set may take
CHUNK_STEPS = 200  # steps between looks at the progress
CHUNK_BYTES = 1 << 26  # most that one chunk gathers on the host
BLOCK_ROWS = 4096  # encoded at a time
FEWEST_BLOCK_ROWS = 128  # smaller blocks are padded


def on_device(array: np.ndarray, dtype: str) -> Array:
    """Copied to the device in the type it is computed in."""
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


class PairData:
    """A data set of pairs, ready to be drawn from.

    Attributes:
        chunk: how many steps to run between looks at the progress.
        source: what a training step takes its two halves from.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        dtypes: tuple[str, str],
        batch_size: int,
        rng: np.random.Generator,
    ):
        self.x, self.y, self.dtypes, self.rng = x, y, dtypes, rng
        self.half = batch_size // 2
        self.distinct_x: Distinct | None = None
        self.counted: tuple[np.ndarray, np.ndarray] | None = (
            None  # where each distinct pair is, and how often
        )
        self.chunk = CHUNK_STEPS
        self.source = self._from_device() if fits_device((x, y), dtypes) else self._from_host()

    def _from_host(self) -> Source:
        row_bytes = self.x[:1].nbytes + self.y[:1].nbytes
        self.chunk = int(np.clip(CHUNK_BYTES // (2 * self.half * row_bytes), 1, CHUNK_STEPS))
        return GivenRows()

    def _from_device(self) -> Source:
        distinct = [distinct_rows(side, most=2 * self.half) for side in (self.x, self.y)]
        self.distinct_x = distinct[0]
        x, y = (
            on_device(side if found is None else side[found.first], dtype)
            for side, found, dtype in zip((self.x, self.y), distinct, self.dtypes, strict=True)
        )
        if distinct[0] is not None and distinct[1] is not None:
            code = distinct[0].inverse.astype(np.int64) * len(distinct[1].first) + distinct[1].inverse
            pairs, first, counts = np.unique(code, return_index=True, return_counts=True)
            if len(pairs) <= 2 * self.half:
                self.counted = first, counts.astype(np.float64)
                x_ids, y_ids = (ids.astype(np.int32) for ids in np.divmod(pairs, len(distinct[1].first)))
                return AllPairs(
                    x, y, jnp.asarray(x_ids), jnp.asarray(y_ids), jnp.asarray(counts, jnp.float32)
                )
        ids = [None if found is None else jnp.asarray(found.inverse) for found in distinct]
        return Rows(x, y, ids[0], ids[1])

    def items(self, key: PRNGKeyArray, start: int, steps: int) -> Any:
        """What the scan over updates start, …, start + steps - 1 consumes."""
        if isinstance(self.source, AllPairs):
            return None
        numbers = draw(key, start, len(self.x), steps=steps, half=self.half)
        if isinstance(self.source, Rows):
            return numbers
        # Each row once and in the order of the file, then to its places.
        rows, places = np.unique(np.asarray(numbers), return_inverse=True)
        places = places.reshape(numbers.shape)
        return tuple(
            on_device(np.asarray(side[rows]).astype(dtype, copy=False)[places], dtype)
            for side, dtype in zip((self.x, self.y), self.dtypes, strict=True)
        )

    def pairs(self, most: int) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
        """Numbers of the distinct pairs with their counts where they are known, else of a sample, each counted once."""
        if self.counted is not None:
            return self.counted
        numbers = sample_rows(self.rng, len(self.x), most)
        return numbers, np.ones(len(numbers))

    def calibration(self, most: int) -> tuple[np.ndarray, Float[np.ndarray, " m"]]:
        """Distinct rows of X with their counts where they are few, else a sample, each counted once."""
        if self.distinct_x is not None and len(self.distinct_x.first) <= most:
            counts = np.bincount(self.distinct_x.inverse, minlength=len(self.distinct_x.first))
            return self.x[self.distinct_x.first], counts.astype(np.float64)
        numbers = sample_rows(self.rng, len(self.x), most)
        return np.asarray(self.x[numbers]), np.ones(len(numbers))


def sample_rows(rng: np.random.Generator, n: int, most: int) -> Int[np.ndarray, " m"]:
    """At most `most` of n row numbers, without replacement, in order."""
    return np.arange(n) if n <= most else np.sort(rng.choice(n, most, replace=False))


def map_rows(
    function: Callable[[Array], Array],
    rows: np.ndarray,
    dtype: str,
    numbers: Int[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, "n *rest"]:
    """A module's function of each row (of those with the given numbers), block by block."""
    parts = [
        np.asarray(_mapped(function, block), np.float32)[:n] for block, n in row_blocks(rows, dtype, numbers)
    ]
    return np.concatenate(parts)


@eqx.filter_jit
def _mapped(function: Callable[[Array], Array], rows: Array) -> Array:
    return jax.vmap(function)(rows)


def row_blocks(rows: np.ndarray, dtype: str, numbers: np.ndarray | None) -> Iterator[tuple[Array, int]]:
    """Blocks of rows on the device, the last padded to a power of two: few shapes, so few compilations."""
    for start in range(0, len(rows) if numbers is None else len(numbers), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        block = np.asarray(rows[part] if numbers is None else rows[numbers[part]])
        length = len(block)
        padded = max(1 << (length - 1).bit_length(), FEWEST_BLOCK_ROWS)
        if padded > length:
            block = np.concatenate([block, np.repeat(block[-1:], padded - length, axis=0)])
        yield on_device(block, dtype), length
