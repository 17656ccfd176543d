"""Trajectories as the user gives them: checked, described, and with repeated observations stored once.

Shapes: B streams, T steps.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int

from derex.estimators import validation as check
from derex.estimators.sources import distinct_rows
from derex.networks import InputSpec
from derex.networks.encoders import InputKind
from derex.networks.observations import kind_of
from derex.types import NO_ACTION, Indexed, Trajectories

LARGEST_TABLE_OF_IDS = 2**20


class StreamSpec(NamedTuple):
    """What steps of the streams look like."""

    outline: Any  # of the observation's pytree, see `outline`
    parts: tuple[InputSpec, ...]  # in the order of its leaves
    actions: InputKind  # "ids" or "vectors"
    choices: int  # how many actions there are, or numbers in each

    def observation(self, leaves: list[Any]) -> Any:
        """An observation of this structure."""
        return jax.tree.unflatten(jax.tree.structure(_drawn(self.outline)), leaves)


def outline(tree: Any) -> Any:
    """The structure of a pytree in words that JSON knows; 0 stands for an array."""
    if isinstance(tree, dict) and all(isinstance(key, str) for key in tree):
        return {"dict": {key: outline(value) for key, value in tree.items()}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [outline(value) for value in tree]}
    if hasattr(tree, "shape"):
        return 0
    raise TypeError(
        f"X.observation: expected arrays in dicts (with names as keys), lists and tuples; got {type(tree).__name__}."
    )


def _drawn(outlined: Any) -> Any:
    """A tree of that structure."""
    if outlined == 0:
        return 0
    ((kind, inside),) = outlined.items()
    if kind == "dict":
        return {key: _drawn(value) for key, value in inside.items()}
    return (list if kind == "list" else tuple)(_drawn(value) for value in inside)


def check_trajectories(X: Any, name: str = "X") -> Trajectories:
    """NumPy arrays of consistent shapes with finite values; memory maps are not copied."""
    if not isinstance(X, Trajectories):
        raise TypeError(
            f"{name}: expected derex.types.Trajectories, got {type(X).__name__}. Make them from a list of episodes: "
            "Trajectories.from_episodes(observations, actions)."
        )
    first, valid = (_flags(f"{name}.{field}", getattr(X, field)) for field in ("first", "valid"))
    if first.shape != valid.shape or first.ndim != 2 or not first.size:
        raise ValueError(
            f"{name}.first and {name}.valid: expected shape (streams, steps) for both; got {first.shape} and "
            f"{valid.shape}."
        )
    if not valid[:, 0].all() or (valid[:, 1:] & ~valid[:, :-1]).any():
        raise ValueError(f"{name}.valid: each stream has at least one step, and its padding comes last.")
    action = np.asarray(X.previous_action)
    if action.shape[:2] != first.shape:
        raise ValueError(
            f"{name}.previous_action: expected shape {first.shape} or {(*first.shape, '…')}, got {action.shape}."
        )
    action = _actions(f"{name}.previous_action", action, valid)
    return Trajectories(_observation(f"{name}.observation", X.observation, valid), action, first, valid)


def _flags(name: str, values: Any) -> Bool[np.ndarray, "..."]:
    array = np.asarray(values)
    if array.dtype != bool:
        raise TypeError(f"{name}: expected booleans, got {array.dtype}. Convert them: {name}.astype(bool).")
    return array


def _actions(name: str, action: np.ndarray, valid: np.ndarray) -> np.ndarray:
    if action.dtype.kind in "iu":
        if action.ndim != 2:
            raise ValueError(f"{name}: numbered actions have shape (streams, steps), got {action.shape}.")
        least, largest = action[valid].min(), action[valid].max()
        if least < NO_ACTION or largest >= LARGEST_TABLE_OF_IDS:
            raise ValueError(
                f"{name}: actions are numbered from 0 (none: {NO_ACTION}) to less than {LARGEST_TABLE_OF_IDS}, got "
                f"{least} to {largest}."
            )
        return np.where(valid, action.astype(np.int32), NO_ACTION)
    if action.dtype.kind != "f":
        raise TypeError(f"{name}: expected integers or floats, got {action.dtype}.")
    vectors = np.where(valid[..., None], action.reshape(*valid.shape, -1), 0.0)
    check.check_finite(name, vectors)
    return vectors.astype(np.float32)


def _observation(name: str, observation: Any, valid: np.ndarray) -> Any:
    """The observations with NumPy leaves; padding is set to what is surely harmless."""
    indexed = isinstance(observation, Indexed)
    values = observation.values if indexed else observation
    leaves, structure = jax.tree_util.tree_flatten_with_path(values)
    if not leaves:
        raise ValueError(f"{name}: expected at least one array, got {observation!r}.")
    axes = 1 if indexed else 2
    arrays = [_part(f"{name}{jax.tree_util.keystr(place)}", leaf) for place, leaf in leaves]
    for (place, _), array in zip(leaves, arrays, strict=True):
        expected = arrays[0].shape[:1] if indexed else valid.shape
        if array.shape[:axes] != expected:
            raise ValueError(
                f"{name}{jax.tree_util.keystr(place)}: expected {expected} as its first axes, got {array.shape}."
            )
    arrays = [
        _sound(f"{name}{jax.tree_util.keystr(place)}", array, None if indexed else valid)
        for (place, _), array in zip(leaves, arrays, strict=True)
    ]
    values = jax.tree.unflatten(structure, arrays)
    if not indexed:
        return values
    index = np.asarray(observation.index)
    if index.shape != valid.shape or index.dtype.kind not in "iu":
        raise ValueError(
            f"{name}.index: expected integers of shape {valid.shape}, got {index.dtype} {index.shape}."
        )
    if not 0 <= index[valid].min() <= index[valid].max() < len(arrays[0]):
        raise ValueError(
            f"{name}.index: expected numbers from 0 to {len(arrays[0]) - 1}, one for each of its values."
        )
    return Indexed(values, np.where(valid, index, 0).astype(np.int32))


def _part(name: str, leaf: Any) -> np.ndarray:
    array = check.in_numpy_types(leaf)
    array = array if isinstance(array, np.ndarray) else np.asarray(array)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: expected numbers, got an array of dtype {array.dtype}.")
    if array.ndim == 0 or not array.size:
        raise ValueError(f"{name}: expected one entry for each step, got shape {array.shape}.")
    return array.astype(np.float32) if array.dtype == bool else array


def _sound(name: str, array: np.ndarray, valid: Bool[np.ndarray, "B T"] | None) -> np.ndarray:
    """Finite values that 32 bits can hold; a padding of anything but zeros is replaced by them, in a copy."""
    if valid is not None and np.any(array[~valid]):
        array = np.array(array)
        array[~valid] = 0
    if array.dtype.kind == "f":
        check.check_finite(name, array)
    elif array.dtype.itemsize >= 4:
        check.check_integers(name, array)
    return array


def describe(X: Trajectories, n_actions: int | None) -> StreamSpec:
    """The specification of checked trajectories."""
    values, axes = (X.observation.values, 1) if isinstance(X.observation, Indexed) else (X.observation, 2)
    leaves = jax.tree.leaves(values)
    parts = tuple(_spec(leaf, axes) for leaf in leaves)
    numbered = X.previous_action.dtype.kind == "i"
    if not numbered:
        return StreamSpec(outline(values), parts, "vectors", X.previous_action.shape[-1])
    largest = int(X.previous_action.max())
    if n_actions is not None and largest >= n_actions:
        raise ValueError(f"n_actions: got {n_actions}, but X.previous_action has action {largest}.")
    return StreamSpec(outline(values), parts, "ids", max(largest + 1, 1) if n_actions is None else n_actions)


def _spec(leaf: np.ndarray, axes: int) -> InputSpec:
    shape, kind = leaf.shape[axes:], kind_of(leaf.shape[axes:], leaf.dtype)
    n_ids = 0
    if kind == "ids":
        least, largest = check.min_max(leaf)
        if least < 0 or largest >= LARGEST_TABLE_OF_IDS:
            raise ValueError(
                f"X.observation: ids must run from 0 to less than {LARGEST_TABLE_OF_IDS}, got {least} to {largest}. "
                "Renumber them, or pass numbers as floats."
            )
        n_ids = int(largest) + 1
    return InputSpec(shape, n_ids, kind, check.device_dtype(leaf.dtype, None if kind == "vectors" else kind))


def check_like_fitted(X: Trajectories, spec: StreamSpec) -> None:
    """Steps look like those of the training data."""
    got = describe(X, None)
    if got.outline != spec.outline:
        raise ValueError(
            f"X.observation: expected the structure {spec.outline}, as in fit; got {got.outline}."
        )
    for now, then in zip(got.parts, spec.parts, strict=True):
        if (now.shape, now.dtype) != (then.shape, then.dtype) or now.n_ids > then.n_ids:
            raise ValueError(f"X.observation: expected parts like {then}, as in fit; got {now}.")
    same_size = got.choices <= spec.choices if spec.actions == "ids" else got.choices == spec.choices
    if got.actions != spec.actions or not same_size:
        raise ValueError(
            f"X.previous_action: expected {spec.actions} with {spec.choices} choices, as in fit; got {got.actions} "
            f"with {got.choices}. If there are more actions than the training data shows, fit with n_actions=."
        )


def stored_once(X: Trajectories, most: int) -> Trajectories:
    """The same trajectories with each distinct observation stored once, if there are at most `most` of them."""
    if isinstance(X.observation, Indexed):
        return X
    leaves, structure = jax.tree.flatten(X.observation)
    if (
        len(leaves) > 1 or leaves[0].ndim < 3
    ):  # several parts seldom recur together; single numbers are small anyway
        return X
    found = distinct_rows(leaves[0].reshape(-1, *leaves[0].shape[2:]), most)
    if found is None:
        return X
    rows = leaves[0].reshape(-1, *leaves[0].shape[2:])[found.first]
    return X._replace(observation=Indexed(structure.unflatten([rows]), found.inverse.reshape(X.shape)))


def sample_observations(X: Trajectories, most: int, rng: np.random.Generator) -> Any:
    """Some observations of valid steps, as rows."""
    steps = np.flatnonzero(X.valid.ravel())
    chosen = np.sort(rng.choice(steps, min(most, len(steps)), replace=False))
    if isinstance(X.observation, Indexed):
        numbers = X.observation.index.ravel()[chosen]
        return jax.tree.map(lambda leaf: leaf[numbers], X.observation.values)
    streams, times = np.unravel_index(chosen, X.shape)
    return jax.tree.map(lambda leaf: np.asarray(leaf[streams, times]), X.observation)


def fingerprint(X: Trajectories) -> int:
    """A checksum of everything in the trajectories."""
    code = 0
    for leaf in jax.tree.leaves(X):
        code = zlib.crc32(str((leaf.shape, leaf.dtype)).encode(), code)
        for block in np.array_split(leaf, max(1, leaf.nbytes >> 26)):
            code = zlib.crc32(np.ascontiguousarray(block).tobytes(), code)
    return code


def streams_with(counted: Bool[np.ndarray, "B T"]) -> Int[np.ndarray, " n"]:
    """Numbers of the streams that have any history that counts."""
    return np.flatnonzero(counted.any(axis=1)).astype(np.int32)
