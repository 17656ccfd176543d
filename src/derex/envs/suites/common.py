"""Helpers of the adapters: late imports, names with options, observations and actions by kind, pictures, words."""

from __future__ import annotations

import importlib
import os
import string
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, Int32, PRNGKeyArray, Shaped, UInt8, UInt32

from derex._text import hint, install_command
from derex.types import ActionSpec, Box, Discrete, MultiDiscrete, Symbols, Words


class NotInstalled(ImportError, ValueError):
    """An environment needs a package that is not installed; an ImportError and a ValueError."""


class Unreadable(TypeError, ValueError):
    """A task has spaces or specs that derex's agents cannot use."""


class ClosingOnce:
    """Closes the environment in `_env` once; later calls do nothing."""

    _env: Any

    def close(self) -> None:
        """Closes the environment."""
        env, self._env = self._env, None
        if env is not None:
            env.close()


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


def import_user_module(name: str) -> Any:
    """Imports a module as `python file.py` does, which searches the working folder; worker processes inherit it."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)


def load_user_function(suite: str, name: str) -> Callable[..., Any]:
    """The function or class that `suite:package.module:name` stands for."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"name: expected '{suite}:package.module:name', got '{suite}:{name}'.")
    known: list[str] = []
    try:
        holder = import_user_module(module)
        known = [each for each, value in vars(holder).items() if callable(value) and not each.startswith("_")]
        found = getattr(holder, function)
        if not callable(found):
            raise AttributeError(f"{function!r} is neither a function nor a class")
        return found
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"name: '{suite}:{name}' could not be imported: {error}.{hint(function, known)}"
        ) from error


def check_name(suite: str, name: str, known: Iterable[str]) -> None:
    """Raises if the suite has no environment of that name; the error suggests the most similar one."""
    known = list(known)
    if name not in known:
        near = hint(name, known, prefix=f"{suite}:")
        raise ValueError(f"name: {suite} has no {name!r}.{near} `derex envs {suite}` lists all {len(known)}.")


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


CARRIED = "carried"
"""option of grid worlds: the carried object is shown at the agent's position, as in MiniGrid"""


def split_options(
    suite: str, name: str, known: Iterable[str], options: tuple[str, ...]
) -> tuple[str, list[str]]:
    """One of the known names and the options behind it, each after a +."""
    base, *asked = name.split("+")
    check_name(suite, base, known)
    wrong = [option for option in asked if option not in options]
    if wrong:
        expected = ", ".join(f"+{option}" for option in options)
        raise ValueError(
            f"name: '{suite}:{name}' asks for {wrong[0]!r} after a +; expected some of {expected}."
        )
    return base, asked


# --- states of JAX suites --------------------------------------------------------------------------------------------


def with_carried(view: UInt8[Array, "h w m"], thing: UInt8[Array, " m"], there: Any) -> UInt8[Array, "h w m"]:
    """The view with the carried object, if any, at the agent's position: the middle of the last row."""
    height, width, _ = view.shape
    return jnp.where(there, view.at[height - 1, width // 2].set(thing), view)


JaxStep = tuple[Any, Any, Float32[Array, ""], Bool[Array, ""]]
"""state, observation, reward and whether the episode has terminated"""


def plain_key(key: PRNGKeyArray) -> UInt32[Array, "..."]:
    """The key as an integer array: suites keep keys in their states, and checkpoints hold only arrays."""
    return jax.random.key_data(key)


def cast_like(tree: Any, like: Any) -> Any:
    """Casts the leaves to the dtypes of `like`, without weak types: `step` returns the types of `reset`."""
    return jax.tree.map(lambda leaf, spec: jnp.asarray(leaf, spec.dtype), tree, like)


# --- observations and actions ----------------------------------------------------------------------------------------


UNBOUNDED = 10.0
"""where a task sets no bound, its actions are kept within [-10, 10], or within 20 of the bound that there is"""
_AS_GOOD_AS_INFINITE = 1e6
GREY_RANK = 2


class ObservationReader(NamedTuple):
    """The spec of an observation, and how it is read."""

    spec: Any
    read: Callable[[Any], Any]
    """converts the package's observation to derex's"""


class ActionWriter(NamedTuple):
    """The spec of an action, and how it is written."""

    spec: ActionSpec
    write: Callable[[Any], Any]
    """converts derex's action to the package's; invalid ones raise"""


def read_parts(parts: Mapping[str, ObservationReader] | Sequence[ObservationReader]) -> ObservationReader:
    """A reader for a dict, or a tuple, with a reader for each part."""
    if isinstance(parts, Mapping):
        return ObservationReader(
            {name: part.spec for name, part in parts.items()},
            lambda seen: {name: part.read(seen[name]) for name, part in parts.items()},
        )
    return ObservationReader(
        tuple(part.spec for part in parts),
        lambda seen: tuple(part.read(each) for part, each in zip(parts, seen, strict=True)),
    )


def read_symbols(sizes: Any, start: Any = 0) -> ObservationReader:
    """A reader for categorical integers; the i-th is one of sizes[i] from start[i] on."""
    sizes, start = np.ravel(sizes), np.ravel(start)
    spec = Symbols((len(sizes),), tuple(int(size) for size in sizes), np.int32)
    return ObservationReader(spec, lambda seen: (np.asarray(seen).ravel() - start).astype(np.int32))


def read_numbers(shape: Sequence[int], dtype: Any, name: str) -> ObservationReader:
    """A reader for arrays: pictures stay uint8, grey ones get one channel; all other numbers become float32."""
    kept = np.dtype(np.uint8 if np.dtype(dtype) == np.uint8 else np.float32)
    shape = tuple(int(side) for side in shape)
    ours = (*shape, 1) if kept == np.uint8 and len(shape) == GREY_RANK else shape
    size = int(np.prod(ours))

    def read(seen: Any) -> np.ndarray:
        array = np.asarray(seen)
        if array.size != size or array.dtype.kind not in "fiub":
            raise ValueError(
                f"observation: {name!r} came as {array.dtype} of shape {array.shape}, its spec says {dtype} of shape "
                f"{shape}."
            )
        return array.astype(kept).reshape(ours)

    return ObservationReader(jax.ShapeDtypeStruct(ours, kept), read)


def choice(action: Shaped[Any, "*any"], n: int) -> int:
    """Checks one of n choices and returns it as an int."""
    array = np.asarray(action)
    if array.shape != () or array.dtype.kind not in "iu" or not 0 <= array < n:
        raise ValueError(
            f"action: expected one integer from 0 to {n - 1}, got {array.dtype} of shape {array.shape}: {array}."
        )
    return int(array)


def write_choice(n: Any, dtype: Any, start: Any = 0) -> ActionWriter:
    """A writer for one of n integers from `start` on; a numpy scalar, which can be the key of a dict."""
    n, start, scalar = int(n), int(start), np.dtype(dtype).type
    return ActionWriter(Discrete(n), lambda action: scalar(choice(action, n) + start))


def write_choices(sizes: Any, dtype: Any, start: Any = 0) -> ActionWriter:
    """A writer for several choices, in the shape of `sizes`; the i-th is one of sizes[i] integers from start[i] on."""
    shape, sizes = np.shape(sizes), tuple(int(size) for size in np.ravel(sizes))

    def write(action: Any) -> Int[np.ndarray, "..."]:
        array = np.asarray(action)
        right = array.shape == (len(sizes),) and array.dtype.kind in "iu"
        if not right or np.any(array < 0) or np.any(array >= np.asarray(sizes)):
            raise ValueError(
                f"action: expected {len(sizes)} integers from 0 to less than {sizes}, got {array.dtype} of shape "
                f"{array.shape}: {array}."
            )
        return (array.astype(np.int64).reshape(shape) + start).astype(dtype)

    return ActionWriter(MultiDiscrete(sizes), write)


def write_numbers(low: Shaped[Any, "*shape"], high: Shaped[Any, "*shape"], dtype: Any) -> ActionWriter:
    """A writer for numbers in the shape of the bounds: actions in [-1, 1] are scaled to them, and clipped outside.

    Integers are rounded. Missing bounds are replaced by finite ones, which depend on `UNBOUNDED`.
    """
    below, above = (np.asarray(bound, np.float64).ravel() for bound in (low, high))
    if np.any(np.isnan(below) | np.isnan(above)) or np.any(below > above):
        raise ValueError(f"bounds: expected low <= high in each part of an action, got {below} and {above}.")
    open_low, open_high = below <= -_AS_GOOD_AS_INFINITE, above >= _AS_GOOD_AS_INFINITE
    bottom, top = np.minimum(above - 2 * UNBOUNDED, -UNBOUNDED), np.maximum(below + 2 * UNBOUNDED, UNBOUNDED)
    bottom = np.where(open_low, np.where(open_high, -UNBOUNDED, bottom), below)
    top = np.where(open_high, np.where(open_low, UNBOUNDED, top), above)

    def write(action: Any) -> Shaped[np.ndarray, "*shape"]:
        array = np.asarray(action)
        if array.shape != bottom.shape or array.dtype.kind not in "fiu" or not np.all(np.isfinite(array)):
            raise ValueError(
                f"action: expected {len(bottom)} finite numbers in [-1, 1], got {array.dtype} of shape "
                f"{array.shape}: {array}."
            )
        share = (np.clip(array.astype(np.float64), -1.0, 1.0) + 1.0) / 2.0
        scaled = (bottom + share * (top - bottom)).reshape(np.shape(low))
        scaled = np.rint(scaled) if np.dtype(dtype).kind in "iu" else scaled
        return np.clip(scaled.astype(dtype), low, high)  # casting may round past a bound by the last bit

    return ActionWriter(Box(len(bottom), -1.0, 1.0), write)


# --- pictures --------------------------------------------------------------------------------------------------------


LONGER_SIDE = 480  # pixels of an enlarged picture, about


def enlarge(picture: Any) -> UInt8[np.ndarray, "H W 3"]:
    """A small picture, enlarged by repeating pixels."""
    picture = np.asarray(picture, np.uint8)
    times = max(1, LONGER_SIDE // max(picture.shape[:2]))
    return np.repeat(np.repeat(picture, times, axis=0), times, axis=1)


MOST_IN_16_BITS = 256  # 8-bit numbers whose sum, with the rounding term of their mean, fits into 16 bits


def resize(
    picture: UInt8[np.ndarray, "H W C"], height: int, width: int
) -> UInt8[np.ndarray, "{height} {width} C"]:
    """Resizes by the mean over each new pixel's area, sampled at least once in every old pixel.

    Called at every step of a game. Gathering whole rows is many times faster than gathering pixels of three bytes, so
    columns are gathered as rows of the transpose; sums use as few bits as they need.
    """
    H, W, C = picture.shape
    rows, columns = _sample(H, height, 1), _sample(W, width, C)
    count = len(rows) * len(columns)
    dtype = np.uint16 if count <= MOST_IN_16_BITS else np.uint32
    tall = _sum_lines(picture.reshape(H, -1), rows, dtype)
    whole = _sum_lines(np.ascontiguousarray(tall.T), columns, dtype)
    whole += count // 2
    whole //= count
    return np.ascontiguousarray(whole.astype(np.uint8).T).reshape(height, width, C)


def _sum_lines(lines: Shaped[np.ndarray, "n m"], places: tuple[np.ndarray, ...], dtype: Any) -> np.ndarray:
    """For every i, the sum of the lines at the i-th entry of each array in `places`."""
    total = lines.take(places[0], axis=0).astype(dtype, copy=False)
    for place in places[1:]:
        total += lines.take(place, axis=0)
    return total


@lru_cache(maxsize=64)
def _sample(old: int, new: int, channels: int) -> tuple[Int[np.ndarray, " _"], ...]:
    """For each sample within a new pixel, the index of the old pixel it falls into, for all pixels and channels."""
    samples = -(-old // new)
    pixels = [
        ((np.arange(new) + (sample + 0.5) / samples) * old / new).astype(np.intp) for sample in range(samples)
    ]
    return tuple((pixel[:, None] * channels + np.arange(channels)).reshape(-1) for pixel in pixels)


# --- words -----------------------------------------------------------------------------------------------------------


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
