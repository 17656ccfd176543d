"""What an observation consists of: from an environment's declaration to what encoders want to know."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from derex.networks.encoders import InputSpec
from derex.types import Amount, Symbols, Words

IMAGE_RANK = 3
SMALLEST_VOCABULARY = 2  # 0, which is no word, and one bucket


class ByteNumbers(NamedTuple):
    """Numbers from 0 to 255, read as fractions of 255."""

    shape: tuple[int, ...]
    dtype: str = "uint8"


Part = InputSpec | ByteNumbers | Symbols | Words | Amount
"""A part of an observation; all have a `shape`."""

_KINDS: dict[type, str] = {ByteNumbers: "bytes", Symbols: "symbols", Words: "words", Amount: "amounts"}


def kind_of(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """What numbers of this shape and type are taken for: pictures have three axes, ids are single integers."""
    if len(shape) == IMAGE_RANK:
        return "images"
    return "ids" if shape == () and dtype.kind in "iu" else "vectors"


def part_kind(part: Part) -> str:
    """The name under which encoders of such a part are found."""
    return (part.kind or "vectors") if isinstance(part, InputSpec) else _KINDS[type(part)]


def parts_of(observation: Any) -> tuple[Part, ...]:
    """The parts of an environment's observation, in the order of the tree's leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(observation)
    if not leaves:
        raise ValueError(f"observation: expected at least one part, got {observation!r}.")
    return tuple(_part(f"observation{jax.tree_util.keystr(place)}", leaf) for place, leaf in leaves)


def _part(name: str, leaf: Any) -> Part:
    if isinstance(leaf, Symbols):
        return _checked_symbols(name, leaf)
    if isinstance(leaf, Words):
        return _checked_words(name, leaf)
    if isinstance(leaf, Amount):
        return leaf
    shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
    kind = kind_of(shape, dtype)
    if kind == "ids":
        raise ValueError(
            f"{name}: a single integer ({dtype}) of unknown range. If it names things, declare "
            "Symbols((), (how many,)); if it counts, give it as a float or declare Amount()."
        )
    if kind == "images" and dtype.kind in "iu" and dtype != np.uint8:
        raise ValueError(
            f"{name}: integers ({dtype}) of shape {shape} are no picture, which has bytes or floats. Declare "
            "Symbols(shape, sizes) if they name things, or give them as floats."
        )
    return ByteNumbers(shape) if kind == "vectors" and dtype == np.uint8 else InputSpec(shape, kind=kind)


def _checked_symbols(name: str, part: Symbols) -> Symbols:
    numbers = part.shape[-1] if part.shape else 1
    if len(part.sizes) != numbers or min(part.sizes, default=0) < 1:
        raise ValueError(
            f"{name}: Symbols of shape {part.shape} need {numbers} sizes of at least 1, one for each number of the "
            f"last axis; got {part.sizes}."
        )
    return part


def _checked_words(name: str, part: Words) -> Words:
    if part.length < 1 or part.buckets < SMALLEST_VOCABULARY:
        raise ValueError(
            f"{name}: Words need a length of at least 1 and {SMALLEST_VOCABULARY} buckets or more (0 is no word); got "
            f"length {part.length} and {part.buckets} buckets."
        )
    return part
