"""Helpers of the adapters: late imports, options in names, dtypes, picture sizes, and words as stable hashes."""

import importlib
import os
import string
import sys
import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Int32, PRNGKeyArray, Shaped, UInt8, UInt32

from derex._text import hint, install_command
from derex.types import Words


class NotInstalled(ImportError, ValueError):
    """An environment needs a package that is not installed; an ImportError and a ValueError."""


def load(module: str, extra: str) -> Any:
    """Imports a package of an extra; if it is missing, the error says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise
        raise NotInstalled(
            f"{package} is not installed. Install it with: {install_command(extra)}"
        ) from error


class Unreadable(TypeError, ValueError):
    """A task has spaces or specs that derex's agents cannot use."""


def beside_user() -> None:
    """Adds the working folder to `sys.path`, as `python file.py` does; worker processes inherit it."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def unknown(suite: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for an unknown name of a suite, with the most similar one."""
    known = list(known)
    near = hint(name, known, prefix=f"{suite}:")
    return ValueError(f"name: {suite} has no {name!r}.{near} `derex envs {suite}` lists all {len(known)}.")


def split_number(suite: str, name: str, usual: int, allowed: Iterable[int]) -> tuple[str, int]:
    """`NAME@2` as ("NAME", 2), and `NAME` alone as ("NAME", usual)."""
    base, at, number = name.partition("@")
    if not at:
        return base, usual
    allowed = list(allowed)
    if not number.isdecimal() or int(number) not in allowed:
        choices = ", ".join(map(str, allowed))
        raise ValueError(f"name: '{suite}:{name}' has {number!r} after the @; expected one of {choices}.")
    return base, int(number)


LONGER_SIDE = 480  # pixels of an enlarged picture, about
CARRIED = "carried"
"""option of grid worlds: the carried object is shown at the agent's position, as in MiniGrid"""


def split_options(suite: str, name: str, options: tuple[str, ...]) -> tuple[str, list[str]]:
    """A name and the options behind it, each after a +."""
    base, *asked = name.split("+")
    wrong = [option for option in asked if option not in options]
    if wrong:
        expected = ", ".join(f"+{option}" for option in options)
        raise ValueError(
            f"name: '{suite}:{name}' asks for {wrong[0]!r} after a +; expected some of {expected}."
        )
    return base, asked


def with_carried(view: UInt8[Array, "h w m"], thing: UInt8[Array, " m"], there: Any) -> UInt8[Array, "h w m"]:
    """The view with the carried object, if any, at the agent's position: the middle of the last row."""
    height, width, _ = view.shape
    return jnp.where(there, view.at[height - 1, width // 2].set(thing), view)


def plain_key(key: PRNGKeyArray) -> UInt32[Array, "..."]:
    """The key as an integer array: suites keep keys in their states, and checkpoints hold only arrays."""
    return jax.random.key_data(key)


def settled(tree: Any, like: Any) -> Any:
    """Casts the leaves to the dtypes of `like`, without weak types, so that `step` returns the types of `reset`."""
    return jax.tree.map(lambda leaf, spec: jnp.asarray(leaf, spec.dtype), tree, like)


def enlarged(picture: Any) -> UInt8[np.ndarray, "H W 3"]:
    """A small picture, enlarged by repeating pixels."""
    picture = np.asarray(picture, np.uint8)
    times = max(1, LONGER_SIDE // max(picture.shape[:2]))
    return np.repeat(np.repeat(picture, times, axis=0), times, axis=1)


MOST_IN_16_BITS = 256  # 8-bit numbers whose sum, with the rounding term of their mean, fits into 16 bits


def resized(
    picture: UInt8[np.ndarray, "H W C"], height: int, width: int
) -> UInt8[np.ndarray, "{height} {width} C"]:
    """Resizes by the mean over each new pixel's area, sampled at least once in every old pixel.

    Called at every step of a game. Gathering whole rows is many times faster than gathering pixels of three bytes, so
    columns are gathered as rows of the transpose; sums use as few bits as they need.
    """
    H, W, C = picture.shape
    rows, columns = _places(H, height, 1), _places(W, width, C)
    count = len(rows) * len(columns)
    wide = np.uint16 if count <= MOST_IN_16_BITS else np.uint32
    tall = _sums(picture.reshape(H, -1), rows, wide)
    whole = _sums(np.ascontiguousarray(tall.T), columns, wide)
    whole += count // 2
    whole //= count
    return np.ascontiguousarray(whole.astype(np.uint8).T).reshape(height, width, C)


def _sums(lines: Shaped[np.ndarray, "n m"], places: tuple[np.ndarray, ...], wide: Any) -> np.ndarray:
    """For every i, the sum of the lines at the i-th entry of each array in `places`."""
    total = lines.take(places[0], axis=0).astype(wide, copy=False)
    for place in places[1:]:
        total += lines.take(place, axis=0)
    return total


@lru_cache(maxsize=64)
def _places(old: int, new: int, channels: int) -> tuple[Int[np.ndarray, " _"], ...]:
    """For each sample within a new pixel, the index of the old pixel it falls into, for all pixels and channels."""
    samples = -(-old // new)
    pixels = [
        ((np.arange(new) + (sample + 0.5) / samples) * old / new).astype(np.intp) for sample in range(samples)
    ]
    return tuple((pixel[:, None] * channels + np.arange(channels)).reshape(-1) for pixel in pixels)


SMALLEST_VOCABULARY = 2  # 0 (padding) and one bucket
PUNCTUATION = string.punctuation + "“”‘’«»…–—"


def words_of(text: str) -> list[str]:
    """Splits at whitespace, in lower case, without punctuation at either end; drops empty words."""
    bare = (word.strip(PUNCTUATION) for word in text.lower().split())
    return [word for word in bare if word]


def number_of(word: str, buckets: int) -> int:
    """Hashes a word to 1 … buckets − 1 (crc32, the same on every machine); words may collide."""
    return 1 + zlib.crc32(word.encode()) % (buckets - 1)


def encode(text: str | bytes, words: Words) -> Int32[np.ndarray, " length"]:
    """Encodes an instruction as `words` declares it: a number per word, cut at its length, padded with 0.

    Args:
        text: bytes are read as UTF-8, up to the first zero byte.
        words: from the environment's spec.
    """
    if not isinstance(text, str | bytes):
        raise TypeError(f"text: expected a string or bytes, got {type(text).__name__}.")
    if words.length < 1 or words.buckets < SMALLEST_VOCABULARY:
        raise ValueError(
            f"words: expected a length of at least 1 and {SMALLEST_VOCABULARY} buckets or more, got {words.length} "
            f"and {words.buckets}."
        )
    if isinstance(text, bytes):
        text = text.split(b"\0", 1)[0].decode(errors="replace")
    out = np.zeros(words.length, np.int32)
    numbers = [number_of(word, words.buckets) for word in words_of(text)[: words.length]]
    out[: len(numbers)] = numbers
    return out
