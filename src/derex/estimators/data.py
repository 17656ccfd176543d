"""From checked arrays to a training source: on the device where it fits, from the host otherwise."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PRNGKeyArray

from derex.estimators.sources import AllPairs, Distinct, GivenRows, Rows, Source, distinct_rows, draw
from derex.estimators.validation import as_device_dtype

DEVICE_SHARE = 0.4  # of an accelerator's free memory that a data set may take
CHUNK_STEPS = 200  # steps between looks at the progress
CHUNK_BYTES = 1 << 26  # most that one chunk gathers on the host


def on_device(array: np.ndarray) -> Array:
    """Copied to the device in the type it is computed in."""
    return jnp.asarray(np.asarray(array).astype(as_device_dtype(array.dtype), copy=False))


def is_memory_mapped(array: Any) -> bool:
    """Whether an array, or the array it is a view of, lives in a file."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def fits_device(*arrays: np.ndarray) -> bool:
    """Whether the arrays can live on the device. Memory maps never do: they may be larger than memory."""
    if any(map(is_memory_mapped, arrays)):
        return False
    statistics = jax.local_devices()[0].memory_stats() or {}
    limit = statistics.get("bytes_limit")
    if limit is None:  # a CPU: the arrays are in its memory already
        return True
    free = limit - statistics.get("bytes_in_use", 0)
    return sum(array.nbytes for array in arrays) <= DEVICE_SHARE * free


class PairData:
    """A data set of pairs, ready to be drawn from.

    Attributes:
        chunk: how many steps to run between looks at the progress.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, batch_size: int):
        self.x, self.y, self.n, self.half = x, y, len(x), batch_size // 2
        self.on_host = not fits_device(x, y)
        self.chunk = CHUNK_STEPS
        self.source = self._from_host() if self.on_host else self._from_device()

    def _from_host(self) -> Source:
        row_bytes = self.x[:1].nbytes + self.y[:1].nbytes
        self.chunk = int(np.clip(CHUNK_BYTES // (2 * self.half * row_bytes), 1, CHUNK_STEPS))
        self.distinct_x: Distinct | None = None
        return GivenRows(self.half)

    def _from_device(self) -> Source:
        distinct = [distinct_rows(side, most=2 * self.half) for side in (self.x, self.y)]
        self.distinct_x = distinct[0]
        x, y = (
            on_device(side if found is None else side[found.first])
            for side, found in zip((self.x, self.y), distinct, strict=True)
        )
        if distinct[0] is not None and distinct[1] is not None:
            code = distinct[0].inverse.astype(np.int64) * len(distinct[1].first) + distinct[1].inverse
            pairs, counts = np.unique(code, return_counts=True)
            if len(pairs) <= 2 * self.half:
                x_ids, y_ids = (ids.astype(np.int32) for ids in np.divmod(pairs, len(distinct[1].first)))
                return AllPairs(
                    x, y, jnp.asarray(x_ids), jnp.asarray(y_ids), jnp.asarray(counts, jnp.float32)
                )
        ids = [None if found is None else jnp.asarray(found.inverse) for found in distinct]
        return Rows(x, y, ids[0], ids[1], self.n, self.half)

    def items(self, keys: PRNGKeyArray) -> Any:
        """What the scan of a chunk consumes: keys, or on the host the very rows those keys draw."""
        if not self.on_host:
            return keys
        rows = np.asarray(jax.vmap(lambda key: draw(key, self.n, self.half).ravel())(keys))
        return on_device(self.x[rows]), on_device(self.y[rows])

    def calibration(self, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Distinct rows of X with their counts where they are few, else evenly spaced rows, each counted once."""
        if self.distinct_x is not None and len(self.distinct_x.first) <= most:
            counts = np.bincount(self.distinct_x.inverse, minlength=len(self.distinct_x.first))
            return self.x[self.distinct_x.first], counts.astype(np.float64)
        rows = np.unique(np.linspace(0, self.n - 1, min(self.n, most)).astype(np.int64))
        return np.asarray(self.x[rows]), np.ones(len(rows))


def row_blocks(rows: np.ndarray, size: int) -> Iterator[tuple[Array, int]]:
    """Blocks of rows on the device, the last padded to a power of two: few shapes, so few compilations."""
    for start in range(0, len(rows), size):
        block = np.asarray(rows[start : start + size])
        length = len(block)
        padded = 1 << (length - 1).bit_length()
        if padded > length:
            block = np.concatenate([block, np.repeat(block[-1:], padded - length, axis=0)])
        yield on_device(block), length
