"""Observations as plain numbers, for networks that read them without a choice of encoders, such as random ones.

What names things is spelt out, since its numbers mean nothing: symbols one-hot, an instruction as how often it has each
word. Everything else is as it comes.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer

from derex.networks.parts import Part
from derex.networks.symbols import one_hots
from derex.types import Symbols, Words


def flat_size(parts: tuple[Part, ...]) -> int:
    """How many numbers an observation of these parts becomes."""
    return sum(_size(part) for part in parts)


def flat_numbers(
    parts: tuple[Part, ...], observation: Any, axes: tuple[int, ...]
) -> Float[Array, "*axes size"]:
    """All parts of observations, which have these axes in front, side by side."""
    leaves = jax.tree.leaves(observation)
    rows = [_numbers(part, leaf).reshape(*axes, -1) for part, leaf in zip(parts, leaves, strict=True)]
    return jnp.concatenate(rows, axis=-1)


def _size(part: Part) -> int:
    if isinstance(part, Symbols):
        return math.prod(part.shape[:-1]) * sum(part.sizes)
    return part.buckets if isinstance(part, Words) else math.prod(part.shape)


def _numbers(part: Part, values: Array) -> Array:
    if isinstance(part, Symbols):
        return one_hots(values if part.shape else values[..., None], part.sizes)
    return word_counts(values, part.buckets) if isinstance(part, Words) else values.astype(jnp.float32)


def word_counts(words: Integer[Array, "*axes length"], buckets: int) -> Float[Array, "*axes buckets"]:
    """How often each word is there; 0, which is no word, counts as none."""
    rows = words.reshape(-1, words.shape[-1])
    counts = jnp.zeros((len(rows), buckets)).at[jnp.arange(len(rows))[:, None], rows].add(rows > 0)
    return counts.reshape(*words.shape[:-1], buckets)
