"""Where the training pairs of a fit come from: two independent halves a step, drawn with replacement.

A fixed data set is sampled *with replacement*, each half on its own: disjoint halves of a fixed set would not be
independent, and the double-sampled gradient would stay biased.

Work is not repeated. Where observations recur, each distinct one is stored once, and encoded once per step. Where whole
pairs recur so often that all distinct ones are no more than a batch, a step takes them all, weighted by how often each
occurs: the expectations over the data set themselves, for less than the price of an estimate.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from derex.decomposition.pairs import Half

Encode = Callable[[Array], Array]  # one observation -> (k,)
HASH_BLOCK = 8192  # rows hashed at a time


class Source(Protocol):
    """Draws the halves of one step from an item of a scan."""

    def halves(self, item: Any, f: Encode, g: Encode) -> tuple[Half, Half]: ...


class Rows(eqx.Module):
    """Pairs on the device; `x_ids[i]`, `y_ids[i]` say which stored observations make pair i (None: pair i itself)."""

    x: Array
    y: Array
    x_ids: Int[Array, " n"] | None
    y_ids: Int[Array, " n"] | None
    n: int = eqx.field(static=True)
    half: int = eqx.field(static=True)

    def halves(self, item: PRNGKeyArray, f: Encode, g: Encode) -> tuple[Half, Half]:
        drawn = draw(item, self.n, self.half).ravel()
        f_rows = encode(f, self.x, drawn if self.x_ids is None else self.x_ids[drawn])
        g_rows = encode(g, self.y, drawn if self.y_ids is None else self.y_ids[drawn])
        return split(f_rows, g_rows, self.half)


class AllPairs(eqx.Module):
    """The whole data set in every step: its distinct pairs (x_ids[p], y_ids[p]) and how often each occurs.

    Both halves are the same, Σ̂ = Σ exactly, and the double-sampled gradient is the gradient of L_off(Σ).
    """

    x: Array
    y: Array
    x_ids: Int[Array, " p"]
    y_ids: Int[Array, " p"]
    counts: Float[Array, " p"]

    def halves(self, item: PRNGKeyArray, f: Encode, g: Encode) -> tuple[Half, Half]:
        whole = Half(encode(f, self.x, self.x_ids), encode(g, self.y, self.y_ids), self.counts)
        return whole, whole


class GivenRows(eqx.Module):
    """The rows come with the item: batches gathered on the host, or handed over by the user."""

    half: int = eqx.field(static=True)

    def halves(self, item: tuple[Array, Array], f: Encode, g: Encode) -> tuple[Half, Half]:
        x, y = item
        return split(jax.vmap(f)(x), jax.vmap(g)(y), self.half)


def draw(key: PRNGKeyArray, n: int, half: int) -> Int[Array, "2 half"]:
    """Row numbers of two halves, each drawn with replacement, independently."""
    return jax.random.randint(key, (2, half), 0, n)


def encode(network: Encode, rows: Array, ids: Int[Array, " b"]) -> Float[Array, "b k"]:
    """network(rows[ids]), encoding every stored row once where that is less work."""
    if rows.shape[0] <= ids.shape[0]:
        return jax.vmap(network)(rows)[ids]
    return jax.vmap(network)(rows[ids])


def split(f: Float[Array, "n k"], g: Float[Array, "n k"], half: int) -> tuple[Half, Half]:
    """The first `half` rows and the next as many."""
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


def _codes(rows: np.ndarray, most: int):
    """A 64-bit code of each block's rows; ends early once more than `most` have been met."""
    if rows.dtype.kind in "iu" and rows.ndim == 1:
        blocks = (rows[i : i + HASH_BLOCK] for i in range(0, len(rows), HASH_BLOCK))
        encode_block = lambda block: block.astype(np.uint64)  # noqa: E731
    else:
        size = int(np.prod(rows.shape[1:], dtype=np.int64)) * rows.dtype.itemsize
        multipliers = np.random.default_rng(0).integers(1, 2**63, -(-size // 8), dtype=np.uint64) | np.uint64(
            1
        )
        blocks = (rows[i : i + HASH_BLOCK] for i in range(0, len(rows), HASH_BLOCK))
        encode_block = lambda block: _hash(block, size, multipliers)  # noqa: E731
    seen = np.zeros(0, np.uint64)
    for block in blocks:
        codes = encode_block(block)
        seen = np.union1d(seen, codes)
        if len(seen) > most:
            return
        yield codes


def _hash(block: np.ndarray, size: int, multipliers: np.ndarray) -> np.ndarray:
    """Multilinear hash of each row's bytes, modulo 2⁶⁴."""
    raw = np.ascontiguousarray(block).reshape(len(block), -1).view(np.uint8)
    words = np.zeros((len(block), 8 * len(multipliers)), np.uint8)
    words[:, :size] = raw
    mixed = words.view(np.uint64)
    mixed = mixed ^ (mixed >> np.uint64(29))
    return (mixed * multipliers).sum(axis=1, dtype=np.uint64)


def _verified(rows: np.ndarray, first: np.ndarray, inverse: np.ndarray) -> bool:
    """Equal codes really are equal rows."""
    for i in range(0, len(rows), HASH_BLOCK):
        block = slice(i, i + HASH_BLOCK)
        if not np.array_equal(rows[block], rows[first[inverse[block]]]):
            return False
    return True
