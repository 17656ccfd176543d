"""What several tasks show, as one: parts by name, each padded with zeros to the largest; zeros where a task has none.

Parts go by their path in the observation; one that is an array and nothing else is the part "observation". So an agent
of many tasks sees no more of them than their parts: nothing says which task it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import numpy as np

from derex.types import Amount, EnvironmentSpec, Symbols, Words

WHOLE = "observation"
"""the name of an observation without parts"""


class Layout(NamedTuple):
    """How observations of one task become those of all."""

    names: tuple[str, ...]
    """of the task's own parts, in the order of its tree's leaves"""
    parts: dict[str, Any]
    """all that are seen, as specs have them"""

    def padded(self, observation: Any, arrays: Any) -> dict[str, Any]:
        """One observation, with all parts; `arrays` is numpy or jax.numpy."""
        own = dict(zip(self.names, jax.tree.leaves(observation), strict=True))
        return {
            name: _padded(own[name], part, arrays) if name in own else arrays.zeros(part.shape, part.dtype)
            for name, part in self.parts.items()
        }

    def padded_rows(self, observation: Any, n: int) -> dict[str, np.ndarray]:
        """n observations at once, arrays (n, …) of numpy."""
        own = dict(zip(self.names, jax.tree.leaves(observation), strict=True))
        rows = {name: np.zeros((n, *part.shape), part.dtype) for name, part in self.parts.items()}
        for name, leaf in own.items():
            rows[name][tuple(slice(size) for size in leaf.shape)] = leaf
        return rows


def merged(name: str, specs: Sequence[EnvironmentSpec]) -> EnvironmentSpec:
    """The spec of all tasks as one; refuses those that cannot be.

    The horizon is the longest; each task keeps its own. Success has a threshold only where all have the same.
    """
    _check_actions(specs)
    thresholds = {spec.success_return for spec in specs}
    return EnvironmentSpec(
        name,
        merged_parts(specs),
        specs[0].action,
        max(spec.horizon for spec in specs),
        thresholds.pop() if len(thresholds) == 1 else None,
    )


def merged_parts(specs: Sequence[EnvironmentSpec]) -> dict[str, Any]:
    """All parts by name, as large as the largest."""
    parts: dict[str, tuple[str, Any]] = {}
    for spec in specs:
        for name, part in parts_of(spec).items():
            if name not in parts:
                parts[name] = spec.name, part
                continue
            owner, before = parts[name]
            joined = _joined(before, part)
            if joined is None:
                raise ValueError(
                    f"env: the part {name!r} is {_text(before)} in {owner} and {_text(part)} in {spec.name}; parts of "
                    "one name have to be of one kind. Tasks like these need agents of their own."
                )
            parts[name] = owner, joined
    return {name: part for name, (_, part) in parts.items()}


def parts_of(spec: EnvironmentSpec) -> dict[str, Any]:
    """The parts of an observation by their paths, "camera/left"."""
    leaves = jax.tree_util.tree_flatten_with_path(spec.observation)[0]
    return {"/".join(_word(step) for step in path) or WHOLE: part for path, part in leaves}


def fits(part: Any, into: Any) -> bool:
    """Whether a part, padded, can stand where another was."""
    return _joined(into, part) == into


def layout(spec: EnvironmentSpec, parts: dict[str, Any]) -> Layout:
    """Of one of the tasks that `parts` were merged from."""
    return Layout(tuple(parts_of(spec)), parts)


def _check_actions(specs: Sequence[EnvironmentSpec]) -> None:
    by_action: dict[Any, list[str]] = {}
    for spec in specs:
        by_action.setdefault(spec.action, []).append(spec.name)
    if len(by_action) > 1:
        each = "; ".join(f"{action} in {', '.join(names)}" for action, names in by_action.items())
        raise ValueError(f"env: one agent has one set of actions, these tasks have several: {each}.")


def _joined(one: Any, other: Any) -> Any:
    """The part that holds both; None where there is none."""
    if type(one) is not type(other) or len(one.shape) != len(other.shape):
        return None
    shape = tuple(map(max, one.shape, other.shape))
    if isinstance(one, Words):
        return Words(max(one.length, other.length), max(one.buckets, other.buckets), _wider(one, other))
    if isinstance(one, Symbols):
        sizes = tuple(max(pair) for pair in zip_longest(one.sizes, other.sizes, fillvalue=1))
        return Symbols(shape, sizes, _wider(one, other))
    # Bytes are read as fractions of 255 and bools as they are: as floats they would mean something else.
    kinds = {np.dtype(part.dtype) for part in (one, other)}
    if len(kinds) > 1 and any(kind.kind != "f" for kind in kinds):
        return None
    dtype = _wider(one, other)
    return Amount(shape, dtype) if isinstance(one, Amount) else jax.ShapeDtypeStruct(shape, dtype)


def _wider(one: Any, other: Any) -> Any:
    return one.dtype if one.dtype == other.dtype else np.result_type(one.dtype, other.dtype)


def _padded(leaf: Any, part: Any, arrays: Any) -> Any:
    """At the beginning of every axis: a picture is at the top left."""
    leaf = arrays.asarray(leaf, part.dtype)
    if leaf.shape == part.shape:
        return leaf
    return arrays.pad(leaf, [(0, large - small) for small, large in zip(leaf.shape, part.shape, strict=True)])


def _word(step: Any) -> str:
    return str(getattr(step, "key", getattr(step, "idx", getattr(step, "name", step))))


def _text(part: Any) -> str:
    kind = "an array" if isinstance(part, jax.ShapeDtypeStruct) else type(part).__name__
    return f"{kind} of {np.dtype(part.dtype)} {tuple(part.shape)}"
