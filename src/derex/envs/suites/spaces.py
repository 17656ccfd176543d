"""Converts actions and observations between derex's specs and the spaces of other packages.

Shapes: A parts of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, Shaped

from derex.envs.suites import common as words
from derex.envs.suites.common import Unreadable
from derex.types import ActionSpec, Box, Discrete, MultiDiscrete, Symbols, Words

UNBOUNDED = 10.0
"""where a task sets no bound, its actions are kept within [-10, 10], or within 20 of the bound that there is"""
_AS_GOOD_AS_INFINITE = 1e6


def choice(action: Shaped[Any, "*any"], n: int) -> int:
    """Checks one of n choices and returns it as an int."""
    array = np.asarray(action)
    if array.shape != () or array.dtype.kind not in "iu" or not 0 <= array < n:
        raise ValueError(
            f"action: expected one integer from 0 to {n - 1}, got {array.dtype} of shape {array.shape}: {array}."
        )
    return int(array)


def choices(action: Shaped[Any, "*any"], sizes: tuple[int, ...]) -> Int[np.ndarray, " A"]:
    """Checks several choices; the i-th is one of sizes[i]."""
    array = np.asarray(action)
    right = array.shape == (len(sizes),) and array.dtype.kind in "iu"
    if not right or np.any(array < 0) or np.any(array >= np.asarray(sizes)):
        raise ValueError(
            f"action: expected {len(sizes)} integers from 0 to less than {sizes}, got {array.dtype} of shape "
            f"{array.shape}: {array}."
        )
    return array.astype(np.int64)


class Range(NamedTuple):
    """Bounds of a continuous action; agents act within [-1, 1] in every part."""

    low: Float[np.ndarray, " A"]
    high: Float[np.ndarray, " A"]

    @property
    def spec(self) -> Box:
        return Box(len(self.low), -1.0, 1.0)

    def scaled(self, action: Shaped[Any, "*any"]) -> Float[np.ndarray, " A"]:
        """Scales from [-1, 1] to the task's own bounds; values outside are clipped."""
        array = np.asarray(action)
        if array.shape != self.low.shape or array.dtype.kind not in "fiu" or not np.all(np.isfinite(array)):
            raise ValueError(
                f"action: expected {len(self.low)} finite numbers in [-1, 1], got {array.dtype} of shape "
                f"{array.shape}: {array}."
            )
        share = (np.clip(array.astype(np.float64), -1.0, 1.0) + 1.0) / 2.0
        return self.low + share * (self.high - self.low)


def make_range(low: Shaped[Any, "*shape"], high: Shaped[Any, "*shape"]) -> Range:
    """Flattens the bounds and replaces missing ones by finite ones."""
    low, high = (np.asarray(bound, np.float64).ravel() for bound in (low, high))
    if np.any(np.isnan(low) | np.isnan(high)) or np.any(low > high):
        raise ValueError(f"bounds: expected low <= high in each part of an action, got {low} and {high}.")
    open_low, open_high = low <= -_AS_GOOD_AS_INFINITE, high >= _AS_GOOD_AS_INFINITE
    bottom = np.where(
        open_low, np.where(open_high, -UNBOUNDED, np.minimum(high - 2 * UNBOUNDED, -UNBOUNDED)), low
    )
    top = np.where(open_high, np.where(open_low, UNBOUNDED, np.maximum(low + 2 * UNBOUNDED, UNBOUNDED)), high)
    return Range(bottom, top)


GREY_RANK = 2


class ObservationReader(NamedTuple):
    """The spec of an observation space, and how its observations are read."""

    spec: Any
    read: Callable[[Any], Any]
    """converts the package's observation to derex's"""


class ActionWriter(NamedTuple):
    """The spec of an action space, and how actions are written."""

    spec: ActionSpec
    write: Callable[[Any], Any]
    """converts derex's action to the package's; invalid ones raise"""


def observations(space: Any) -> ObservationReader:
    """How observations of the space are read; dicts and tuples stay what they are."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = {name: observations(part) for name, part in space.spaces.items()}
        return ObservationReader(
            {name: part.spec for name, part in parts.items()},
            lambda seen: {name: part.read(seen[name]) for name, part in parts.items()},
        )
    if isinstance(space, spaces.Tuple):
        several = [observations(part) for part in space.spaces]
        return ObservationReader(
            tuple(part.spec for part in several),
            lambda seen: tuple(part.read(each) for part, each in zip(several, seen, strict=True)),
        )
    if isinstance(space, spaces.Text):
        return _words()
    if isinstance(space, spaces.Discrete):
        return _symbols(np.asarray([space.n]), np.asarray([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return _symbols(space.nvec.ravel(), space.start.ravel())
    if isinstance(space, spaces.MultiBinary):
        return numbers(space.shape, np.float32)
    if isinstance(space, spaces.Box):
        return numbers(space.shape, space.dtype)
    raise Unreadable(
        f"observation_space: {type(space).__name__} cannot be read; expected Box, Discrete, MultiDiscrete, "
        "MultiBinary, Text, or a Dict or Tuple of them. Turn it into one with a gymnasium.ObservationWrapper."
    )


def numbers(shape: tuple[int, ...], dtype: Any) -> ObservationReader:
    """Pictures stay uint8, grey ones get one channel; all other numbers become float32."""
    kept = np.dtype(np.uint8 if np.dtype(dtype) == np.uint8 else np.float32)
    ours = (*shape, 1) if kept == np.uint8 and len(shape) == GREY_RANK else tuple(shape)
    return ObservationReader(
        jax.ShapeDtypeStruct(ours, kept), lambda seen: np.asarray(seen, kept).reshape(ours)
    )


def acts(space: Any) -> ActionWriter:
    """How actions of the space are written."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        n, start = int(space.n), int(space.start)
        return ActionWriter(Discrete(n), lambda action: np.int64(choice(action, n) + start))
    if isinstance(space, spaces.MultiBinary):
        twos = (2,) * int(np.prod(space.shape))
        return ActionWriter(
            MultiDiscrete(twos),
            lambda action: choices(action, twos).reshape(space.shape).astype(np.int8),
        )
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(size) for size in space.nvec.ravel())
        return ActionWriter(
            MultiDiscrete(sizes),
            lambda action: (choices(action, sizes).reshape(space.shape) + space.start).astype(space.dtype),
        )
    if isinstance(space, spaces.Box):
        return _box(space)
    raise Unreadable(
        f"action_space: {type(space).__name__} cannot be acted in; expected Discrete, MultiDiscrete, MultiBinary or "
        "Box. Turn it into one with a gymnasium.ActionWrapper."
    )


def _box(space: Any) -> ActionWriter:
    bounds = make_range(space.low, space.high)
    whole = np.dtype(space.dtype).kind in "iu"

    def write(action: Any) -> np.ndarray:
        scaled = bounds.scaled(action).reshape(space.shape)
        # casting may round past a bound by the last bit
        return np.clip((np.rint(scaled) if whole else scaled).astype(space.dtype), space.low, space.high)

    return ActionWriter(bounds.spec, write)


def _symbols(sizes: np.ndarray, start: np.ndarray) -> ObservationReader:
    spec = Symbols((len(sizes),), tuple(int(size) for size in sizes), np.int32)
    return ObservationReader(spec, lambda seen: (np.asarray(seen).ravel() - start).astype(np.int32))


def _words() -> ObservationReader:
    spec = Words()
    return ObservationReader(spec, lambda text: words.encode(text, spec))
