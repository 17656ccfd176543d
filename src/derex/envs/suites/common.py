"""What the adapters of all host suites share: late imports, wrong names, options behind an @.

What the adapters of JAX suites share: options of names, plain keys, settled types, pictures of a size to look at.

Pictures at another size, with nothing but numpy.

Words as numbers: by a hash that never changes, so that an agent reads the same tomorrow and elsewhere.
"""

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
    """A name asks for a package that is not there: for who imports a missing package, for who is asked a wrong name."""


def load(module: str, extra: str) -> Any:
    """Imports a package of an extra; where it is missing the error says what installs it."""
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
    """A task has spaces or specs that no agent here can use."""


def beside_user() -> None:
    """Modules in the working folder are found, as `python file.py` would find them; workers inherit that."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def unknown(suite: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that a suite does not have, with the nearest that it has."""
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


LONGER_SIDE = 480  # of a picture, about
CARRIED = "carried"
"""an option of grid worlds: what the agent carries is seen in its own place, as in MiniGrid"""


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
    """The view with the thing, where there is one, in the agent's place: in the middle of the row nearest to it."""
    height, width, _ = view.shape
    return jnp.where(there, view.at[height - 1, width // 2].set(thing), view)


def plain_key(key: PRNGKeyArray) -> UInt32[Array, "..."]:
    """The key as numbers: suites put keys into their states, where only arrays can be saved."""
    return jax.random.key_data(key)


def settled(tree: Any, like: Any) -> Any:
    """The same values in the types of `like`, none of them weak: what a step returns has to be what a reset does."""
    return jax.tree.map(lambda leaf, spec: jnp.asarray(leaf, spec.dtype), tree, like)


def enlarged(picture: Any) -> UInt8[np.ndarray, "H W 3"]:
    """A small picture with each of its points repeated, so that people can see something."""
    picture = np.asarray(picture, np.uint8)
    times = max(1, LONGER_SIDE // max(picture.shape[:2]))
    return np.repeat(np.repeat(picture, times, axis=0), times, axis=1)


MOST_IN_16_BITS = 256  # numbers of 8 bits whose sum, with what it takes to round their mean, fits


def resized(
    picture: UInt8[np.ndarray, "H W C"], height: int, width: int
) -> UInt8[np.ndarray, "{height} {width} C"]:
    """The mean over each new pixel's area, sampled at least once in every old pixel.

    A game's every step comes through here. Whole lines are gathered many times faster than pixels of three bytes, so
    that the columns are gathered as lines too; sums have no more bits than they need.
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
    """Of the lines at the i-th of all places, for every i."""
    total = lines.take(places[0], axis=0).astype(wide, copy=False)
    for place in places[1:]:
        total += lines.take(place, axis=0)
    return total


@lru_cache(maxsize=64)
def _places(old: int, new: int, channels: int) -> tuple[Int[np.ndarray, " _"], ...]:
    """For each sample within a new pixel, the old pixel that it falls into, for all new ones and all their channels."""
    samples = -(-old // new)
    pixels = [
        ((np.arange(new) + (sample + 0.5) / samples) * old / new).astype(np.intp) for sample in range(samples)
    ]
    return tuple((pixel[:, None] * channels + np.arange(channels)).reshape(-1) for pixel in pixels)


SMALLEST_VOCABULARY = 2  # 0, which is no word, and one bucket
PUNCTUATION = string.punctuation + "“”‘’«»…–—"


def words_of(text: str) -> list[str]:
    """Parted at blanks, in lower case, without punctuation at either end; what is nothing else is left out."""
    bare = (word.strip(PUNCTUATION) for word in text.lower().split())
    return [word for word in bare if word]


def number_of(word: str, buckets: int) -> int:
    """A number from 1 to buckets − 1 (crc32); different words may share one."""
    return 1 + zlib.crc32(word.encode()) % (buckets - 1)


def encode(text: str | bytes, words: Words) -> Int32[np.ndarray, " length"]:
    """The instruction as `words` declares it: a number for each word, cut at its length, 0 after the last.

    Args:
        text: bytes are read as UTF-8, up to the first zero byte.
        words: what the environment's spec has.
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
