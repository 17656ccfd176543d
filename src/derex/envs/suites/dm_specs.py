"""Specifications of dm_env as parts of ours, and what comes with them as arrays of those parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from derex.envs import words
from derex.envs.suites import actions
from derex.envs.suites.spaces import GREY_RANK, Acted, Seen
from derex.envs.suites.support import Unreadable
from derex.types import Discrete, MultiDiscrete, Symbols, Words


def observations(spec: Any) -> Seen:
    """How observations of the spec are read; dicts, lists and tuples stay what they are."""
    if isinstance(spec, Mapping):
        parts = {name: observations(part) for name, part in spec.items()}
        return Seen(
            {name: part.spec for name, part in parts.items()},
            lambda seen: {name: part.read(seen[name]) for name, part in parts.items()},
        )
    if isinstance(spec, list | tuple):
        several = [observations(part) for part in spec]
        return Seen(
            tuple(part.spec for part in several),
            lambda seen: tuple(part.read(each) for part, each in zip(several, seen, strict=True)),
        )
    return _part(spec)


def acts(spec: Any) -> Acted:
    """How actions of the spec are written: one choice, several, or real numbers."""
    from dm_env import specs

    if isinstance(spec, specs.DiscreteArray):
        n = int(spec.num_values)
        return Acted(Discrete(n), lambda action: np.asarray(actions.choice(action, n), spec.dtype))
    if isinstance(spec, specs.Array) and np.dtype(spec.dtype).kind == "f":
        bounds = actions.make_range(*_bounds(spec))
        return Acted(
            bounds.spec,
            lambda action: bounds.scaled(action).reshape(spec.shape).astype(spec.dtype),
        )
    if isinstance(spec, specs.BoundedArray) and np.dtype(spec.dtype).kind in "iu":
        low, high = (bound.astype(np.int64) for bound in _bounds(spec))
        sizes = tuple(int(size) for size in (high - low + 1).ravel())
        return Acted(
            MultiDiscrete(sizes),
            lambda action: (actions.choices(action, sizes).reshape(spec.shape) + low).astype(spec.dtype),
        )
    raise Unreadable(
        f"action_spec: {spec!r} cannot be acted in; expected a DiscreteArray, a BoundedArray of integers, or an Array "
        "of floats. Turn it into one with a wrapper."
    )


def _part(spec: Any) -> Seen:
    from dm_env import specs

    if isinstance(spec, specs.StringArray):
        return _text()
    if isinstance(spec, specs.DiscreteArray):
        symbols = Symbols((1,), (int(spec.num_values),), np.int32)
        return Seen(symbols, lambda seen: np.asarray(seen, np.int32).reshape(1))
    if isinstance(spec, specs.Array) and np.dtype(spec.dtype).kind in "fiub":
        return _numbers(spec)
    raise Unreadable(
        f"observation_spec: {spec!r} cannot be read; expected an Array of numbers, a DiscreteArray, a StringArray, or "
        "a dict or tuple of them."
    )


def _numbers(spec: Any) -> Seen:
    """Bytes stay bytes, grey pictures get a channel of one; all other numbers become float32."""
    kept = np.dtype(np.uint8 if np.dtype(spec.dtype) == np.uint8 else np.float32)
    shape = tuple(int(side) for side in spec.shape)
    ours = (*shape, 1) if kept == np.uint8 and len(shape) == GREY_RANK else shape

    def read(seen: Any) -> np.ndarray:
        array = np.asarray(seen)
        if array.size != int(np.prod(ours)) or array.dtype.kind not in "fiub":
            raise ValueError(
                f"observation: {spec.name!r} came as {array.dtype} of shape {array.shape}, its spec says {spec.dtype} "
                f"of shape {shape}."
            )
        return array.astype(kept).reshape(ours)

    return Seen(jax.ShapeDtypeStruct(ours, kept), read)


def _text() -> Seen:
    kind = Words()

    def read(seen: Any) -> np.ndarray:
        parts = [
            part.decode() if isinstance(part, bytes) else str(part)
            for part in np.asarray(seen).ravel().tolist()
        ]
        return words.encode(" ".join(parts), kind)

    return Seen(kind, read)


def _bounds(spec: Any) -> tuple[np.ndarray, np.ndarray]:
    """Low and high of each number, ∓∞ where there are none."""
    low, high = getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)
    return np.broadcast_to(np.asarray(low), spec.shape), np.broadcast_to(np.asarray(high), spec.shape)
