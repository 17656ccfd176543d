"""Encoders of categorical inputs: symbols (such as the tiles of a grid) as one-hots, instructions through an LSTM.

Words are embedded in 20 numbers and encoded by an LSTM of 64 units (appendix B). An instruction stays the same through
an episode, and many streams share one. In a batch each is therefore encoded once (`encode_distinct_rows`), with
exact results.

Shapes: N rows, L words.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Integer, PRNGKeyArray

from derex.networks.encoders import Conv
from derex.networks.layers import match_precision
from derex.networks.recurrent import LSTM
from derex.types import Symbols

GRID_RANK = 3
LARGEST_FLAT = 8192  # one-hot numbers; 9 × 9 tiles of three symbols have some 2 000, 25 × 25 have 13 000


def encode_one_hot(values: Integer[Array, "*shape"], sizes: tuple[int, ...]) -> Float[Array, "*cells total"]:
    """Concatenated one-hots of the integers on the last axis; integers out of range give zeros."""
    numbers = values.reshape(*values.shape[:-1], len(sizes)) if values.ndim else values[None]
    return jnp.concatenate([jax.nn.one_hot(numbers[..., i], n) for i, n in enumerate(sizes)], axis=-1)


class FlatSymbols(eqx.Module):
    """All one-hots through a rectified layer and a linear one.

    The initial scale counts active inputs, one per symbol: scaled by all inputs, of which most are 0, outputs would be
    several times too small.
    """

    weight: Float[Array, "inputs size"]
    bias: Float[Array, " size"]
    out: eqx.nn.Linear
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, part: Symbols, size: int, *, key: PRNGKeyArray):
        weight_key, out_key = jax.random.split(key)
        self.sizes = part.sizes
        things = math.prod(part.shape[:-1])
        scale = (2.0 / (things * len(part.sizes))) ** 0.5
        self.weight = scale * jax.random.normal(weight_key, (things * sum(part.sizes), size))
        self.bias = jnp.zeros(size)
        self.out = eqx.nn.Linear(size, size, key=out_key)

    def features(self, values: Integer[Array, "*shape"]) -> Float[Array, " size"]:
        active = match_precision(encode_one_hot(values, self.sizes).ravel(), self.weight)
        return jax.nn.relu(active @ self.weight + self.bias)

    def __call__(self, values: Integer[Array, "*shape"]) -> Float[Array, " size"]:
        return self.out(self.features(values))


class SymbolGrid(eqx.Module):
    """One-hots as channels of an image, for grids whose flat layer would be large."""

    conv: Conv
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, part: Symbols, size: int, *, key: PRNGKeyArray):
        self.sizes = part.sizes
        self.conv = Conv((*part.shape[:-1], sum(part.sizes)), size, key=key)

    def features(self, values: Integer[Array, "h w m"]) -> Float[Array, " width"]:
        return self.conv.features(encode_one_hot(values, self.sizes))

    def __call__(self, values: Integer[Array, "h w m"]) -> Float[Array, " size"]:
        return self.conv(encode_one_hot(values, self.sizes))


def make_symbol_encoder(part: Symbols, size: int, *, key: PRNGKeyArray) -> FlatSymbols | SymbolGrid:
    """A flat encoder for small inputs, a convolutional one for large grids."""
    inputs = math.prod(part.shape[:-1]) * sum(part.sizes)
    is_large_grid = len(part.shape) == GRID_RANK and inputs > LARGEST_FLAT
    return (SymbolGrid if is_large_grid else FlatSymbols)(part, size, key=key)


WORD, STATE = 20, 64
OUT_GAIN = 5.0  # an untrained LSTM's state is about 0.2 in size
FEWEST_ROWS = 128  # per chunk: smaller chunks take as long
MOST_READINGS = 16  # chunks of a batch in which nothing recurs


class InstructionLSTM(eqx.Module):
    """The state of an LSTM after the last word; 0 for an empty instruction."""

    table: Float[Array, "buckets word"]
    lstm: LSTM

    def __init__(self, buckets: int, *, key: PRNGKeyArray):
        table_key, lstm_key = jax.random.split(key)
        self.table = jax.random.normal(table_key, (buckets, WORD))
        self.lstm = LSTM(WORD, STATE, key=lstm_key)

    def __call__(self, words: Integer[Array, "N L"]) -> Float[Array, "N state"]:
        """Encode every row."""
        is_word = words != 0
        last = jnp.max(jnp.where(is_word, jnp.arange(words.shape[1]), 0), axis=1)
        keep = jnp.ones(words.shape[::-1])
        states, _ = self.lstm(self.table[words.T], keep, self.lstm.initial(len(words)))
        state = jnp.take_along_axis(states, last[None, :, None], axis=0)[0]
        return jnp.where(is_word.any(axis=1)[:, None], state, 0.0)


class Instructions(eqx.Module):
    """An instruction to `size` numbers, or to the LSTM's state; `rows` encodes a batch, each instruction once."""

    reader: InstructionLSTM
    out: eqx.nn.Linear | None

    def __init__(self, buckets: int, size: int | None, *, key: PRNGKeyArray):
        reader_key, out_key = jax.random.split(key)
        self.reader = InstructionLSTM(buckets, key=reader_key)
        self.out = None
        if size is not None:
            linear = eqx.nn.Linear(STATE, size, key=out_key)
            self.out = eqx.tree_at(lambda layer: layer.weight, linear, OUT_GAIN * linear.weight)

    def __call__(self, words: Integer[Array, " L"]) -> Float[Array, " size"]:
        return self._project(self.reader(words[None])[0])

    def rows(self, words: Integer[Array, "N L"]) -> Float[Array, "N size"]:
        return jax.vmap(self._project)(encode_distinct_rows(self.reader, words))

    def _project(self, state: Float[Array, " state"]) -> Float[Array, " size"]:
        return state if self.out is None else self.out(match_precision(state, self.out.weight))


class DistinctInstructions(NamedTuple):
    """Which rows of a batch are equal."""

    number: Int[Array, " N"]  # of each row: the number of its instruction, 0, 1, …
    example: Int[Array, " N"]
    """for each number, a row with that instruction; entries beyond `count` are arbitrary"""
    count: Int[Array, ""]


def find_distinct_rows(words: Integer[Array, "N L"]) -> DistinctInstructions:
    """Number the rows so that only equal rows share a number.

    Rows are sorted by a hash and compared by their words. If different rows share a hash, equal ones may get several
    numbers, which costs time but changes no result.
    """
    rng = np.random.default_rng(0)
    odd = jnp.asarray(rng.integers(0, 2**31, words.shape[1]) * 2 + 1, jnp.uint32)
    order = jnp.argsort(jnp.sum(words.astype(jnp.uint32) * odd, axis=1, dtype=jnp.uint32))
    together = words[order]
    is_new: Bool[Array, " N"] = jnp.any(together != jnp.roll(together, 1, axis=0), axis=1).at[0].set(True)
    numbers = jnp.cumsum(is_new) - 1
    example = order[jnp.nonzero(is_new, size=len(words), fill_value=0)[0]]
    return DistinctInstructions(jnp.zeros_like(numbers).at[order].set(numbers), example, numbers[-1] + 1)


def count_rows_at_once(n: int) -> int:
    """How many of n rows are encoded together."""
    return min(n, max(FEWEST_ROWS, -(-n // MOST_READINGS)))


@jax.custom_vjp
def encode_distinct_rows(reader: Any, words: Integer[Array, "N L"]) -> Float[Array, "N state"]:
    """`reader(words)`, but equal rows are encoded once, in chunks of the distinct ones.

    The number of chunks is known only at run time. JAX cannot differentiate a loop of unknown length, so the derivative
    is written out: gradients of equal rows are summed, and the chunks are encoded again.
    """
    return _encode(reader, words)[0]


def _encode(reader: Any, words: Integer[Array, "N L"]) -> tuple[Float[Array, "N state"], Any]:
    found = find_distinct_rows(words)
    size, room, chunks = _chunking(found)

    def encode_chunk(chunk: Array, states: Array) -> Array:
        encoded = reader(words[_examples(found, chunk)])
        return jax.lax.dynamic_update_slice(states, encoded, (chunk * size, 0))

    states = jax.lax.fori_loop(0, chunks, encode_chunk, jnp.zeros((room, STATE)))
    return states[found.number], (reader, words, found)


def _encode_backward(saved: Any, gradient: Float[Array, "N state"]) -> tuple[Any, None]:
    reader, words, found = saved
    size, room, chunks = _chunking(found)
    summed = jnp.zeros((room, STATE)).at[found.number].add(gradient)
    trained, rest = eqx.partition(reader, eqx.is_inexact_array)

    def add_chunk(chunk: Array, total: Any) -> Any:
        rows = words[_examples(found, chunk)]
        _, pull = jax.vjp(lambda trained: eqx.combine(trained, rest)(rows), trained)
        (added,) = pull(jax.lax.dynamic_slice(summed, (chunk * size, 0), (size, STATE)))
        return jax.tree.map(lambda total, part: total + part.astype(total.dtype), total, added)

    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)), trained
    )
    total = jax.lax.fori_loop(0, chunks, add_chunk, zeros)
    return jax.tree.map(lambda total, leaf: total.astype(leaf.dtype), total, trained), None


encode_distinct_rows.defvjp(_encode, _encode_backward)


def _chunking(found: DistinctInstructions) -> tuple[int, int, Int[Array, ""]]:
    """Rows of a chunk, rows of all chunks if nothing recurs, and the number of chunks needed."""
    n = len(found.example)
    size = count_rows_at_once(n)
    return size, -(-n // size) * size, (found.count + size - 1) // size


def _examples(found: DistinctInstructions, chunk: Int[Array, ""]) -> Int[Array, " size"]:
    """One row for each instruction of a chunk."""
    size, room, _ = _chunking(found)
    padded = jnp.pad(found.example, (0, room - len(found.example)))
    return jax.lax.dynamic_slice(padded, (chunk * size,), (size,))
