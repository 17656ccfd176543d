"""Checks and specifications of trajectories, and storage of repeated observations.

Shapes: B streams, T steps.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from derex.estimators import validation as check
from derex.estimators.data import find_distinct_rows
from derex.networks import InputSpec
from derex.networks.encoders import InputKind
from derex.networks.histories import count_steps_left
from derex.networks.inputs import infer_kind
from derex.types import MAX_ACTIONS, NO_ACTION, Indexed, Trajectories, stack_observations

MAX_ID_TABLE = 2**20


class StreamSpec(NamedTuple):
    """The structure, shapes and types of one step of the streams."""

    outline: Any  # of the observation's pytree, see `outline`
    parts: tuple[InputSpec, ...]  # in the order of its leaves
    actions: InputKind  # "ids" or "vectors"
    choices: int  # how many actions there are, or numbers in each

    def observation(self, leaves: list[Any]) -> Any:
        """Makes an observation of this structure."""
        return jax.tree.unflatten(jax.tree.structure(_make_tree(self.outline)), leaves)

    @property
    def places(self) -> list[str]:
        """The path of each part in the observation, in Python's notation."""
        leaves = jax.tree_util.tree_leaves_with_path(_make_tree(self.outline))
        return [jax.tree_util.keystr(place) for place, _ in leaves]


def outline(tree: Any) -> Any:
    """Describes the structure of a pytree as JSON; 0 stands for an array."""
    if isinstance(tree, dict) and all(isinstance(key, str) for key in tree):
        return {"dict": {key: outline(value) for key, value in tree.items()}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [outline(value) for value in tree]}
    if hasattr(tree, "shape"):
        return 0
    expected = "arrays in dicts (with names as keys), lists and tuples"
    raise TypeError(f"X.observation: expected {expected}; got {type(tree).__name__}.")


def _make_tree(outlined: Any) -> Any:
    """Makes a tree of that structure."""
    if outlined == 0:
        return 0
    ((kind, inside),) = outlined.items()
    if kind == "dict":
        return {key: _make_tree(value) for key, value in inside.items()}
    return {"list": list, "tuple": tuple}[kind](_make_tree(value) for value in inside)


def _format_outline(outlined: Any) -> str:
    """Formats the structure for error messages."""
    return str(jax.tree.map(lambda _: "array", _make_tree(outlined))).replace("'array'", "array")


def _field(name: str, field: str) -> str:
    """Names a field in errors: `X.observation`, or `observation` where fields are arguments."""
    return f"{name}.{field}" if name else field


def check_trajectories(X: Any, name: str = "X", fitted: StreamSpec | None = None) -> Trajectories:
    """Checks and converts to NumPy arrays of consistent shapes with finite values; memory maps are not copied.

    Previous actions at the start of an episode are ignored, whatever they are.

    Args:
        X: the trajectories.
        name: of the argument, for errors.
        fitted: what the steps must be like, if a model has been fitted.
    """
    if not isinstance(X, Trajectories):
        raise TypeError(
            f"{name}: expected derex.types.Trajectories, got {type(X).__name__}. Make them from a list of episodes: "
            "Trajectories.from_episodes(observations, actions)."
        )
    observed, acted, starts, mask = (_field(name, field) for field in Trajectories._fields)
    first, valid = np.asarray(X.first), np.asarray(X.valid)
    for field, flags in ((starts, first), (mask, valid)):
        if flags.dtype != bool:
            raise TypeError(f"{field}: expected booleans, got {flags.dtype}. Convert: {field}.astype(bool).")
    if first.shape != valid.shape or first.ndim != 2 or not first.size:
        came = f"{first.shape} and {valid.shape}"
        raise ValueError(f"{starts} and {mask}: expected shape (streams, steps) for both; got {came}.")
    if not valid[:, 0].all() or (valid[:, 1:] & ~valid[:, :-1]).any():
        raise ValueError(f"{mask}: each stream has at least one step, and its padding comes last.")
    action = np.asarray(check.convert_rows(acted, X.previous_action))
    if action.shape[:2] != first.shape:
        raise ValueError(f"{acted}: expected shape {first.shape} or more axes, got {action.shape}.")
    action = _check_actions(acted, action, valid & ~first)
    checked = Trajectories(_check_observation(observed, X.observation, valid), action, first, valid)
    if fitted is not None:
        _check_like_fitted(checked, fitted, name)
    return checked


def _check_actions(name: str, action: np.ndarray, taken: Bool[np.ndarray, "B T"]) -> np.ndarray:
    """Checks the actions that were taken, and sets all others to none."""
    if action.dtype.kind in "iu":
        if action.ndim != 2:
            raise ValueError(f"{name}: numbered actions have shape (streams, steps), got {action.shape}.")
        some = action[taken]
        if some.size and not NO_ACTION <= some.min() <= some.max() < MAX_ACTIONS:
            expected = f"numbers from 0 (none: {NO_ACTION}) to less than {MAX_ACTIONS}"
            raise ValueError(f"{name}: expected {expected}, got {some.min()} to {some.max()}.")
        return np.where(taken, action.astype(np.int32), NO_ACTION)
    if action.dtype.kind != "f":
        raise TypeError(f"{name}: expected integers or floats, got {action.dtype}.")
    vectors = np.where(taken[..., None], action.reshape(*taken.shape, -1), 0.0)
    check.check_finite(name, vectors)
    return vectors.astype(np.float32)


def _check_observation(name: str, observation: Any, valid: Bool[np.ndarray, "B T"]) -> Any:
    """Checks the observations and converts their leaves to NumPy; padding is set to zeros."""
    indexed = isinstance(observation, Indexed)
    places, structure = jax.tree_util.tree_flatten_with_path(observation.values if indexed else observation)
    if not places:
        raise ValueError(f"{name}: expected at least one array, got {observation!r}.")
    names = [f"{name}{jax.tree_util.keystr(place)}" for place, _ in places]
    arrays = []
    for part, (_, leaf) in zip(names, places, strict=True):
        array = check.check_numeric(part, check.convert_rows(part, leaf))
        if array.ndim == 0 or not array.size:
            raise ValueError(f"{part}: expected one entry for each step, got shape {array.shape}.")
        arrays.append(array.astype(np.float32) if array.dtype == bool else array)
    expected = arrays[0].shape[:1] if indexed else valid.shape
    for i, (part, array) in enumerate(zip(names, arrays, strict=True)):
        if array.shape[: len(expected)] != expected:
            raise ValueError(f"{part}: expected {expected} as its first axes, got {array.shape}.")
        if not indexed and np.any(array[~valid]):
            arrays[i] = array = np.array(array)  # the user's own array is not written to
            array[~valid] = 0
        if array.dtype.kind == "f":
            check.check_finite(part, array)
        elif array.dtype.itemsize >= 4:
            check.check_32_bits(part, array)
    values = jax.tree.unflatten(structure, arrays)
    if not indexed:
        return values
    index = np.asarray(observation.index)
    if index.shape != valid.shape or index.dtype.kind not in "iu":
        came = f"{index.dtype} {index.shape}"
        raise ValueError(f"{name}.index: expected integers of shape {valid.shape}, got {came}.")
    if not 0 <= index[valid].min() <= index[valid].max() < len(arrays[0]):
        raise ValueError(
            f"{name}.index: expected numbers from 0 to {len(arrays[0]) - 1}: its values' places."
        )
    return Indexed(values, np.where(valid, index, 0).astype(np.int32))


def make_stream_spec(
    X: Trajectories, n_actions: int | None, n_ids: int | None = None, name: str = "X"
) -> StreamSpec:
    """Makes the specification of checked trajectories; more actions and ids than they show may be declared."""
    values, axes = (X.observation.values, 1) if isinstance(X.observation, Indexed) else (X.observation, 2)
    shape, observed = outline(values), _field(name, "observation")
    parts = tuple(
        _make_part_spec(f"{observed}{jax.tree_util.keystr(place)}", leaf, axes, n_ids)
        for place, leaf in jax.tree_util.tree_leaves_with_path(values)
    )
    if X.previous_action.dtype.kind != "i":
        return StreamSpec(shape, parts, "vectors", X.previous_action.shape[-1])
    largest = int(X.previous_action.max())
    if n_actions is not None and largest >= n_actions:
        acted = _field(name, "previous_action")
        raise ValueError(f"n_actions: got {n_actions}, but {acted} has action {largest}.")
    return StreamSpec(shape, parts, "ids", max(largest + 1, 1) if n_actions is None else n_actions)


def _make_part_spec(name: str, leaf: np.ndarray, axes: int, n_ids: int | None) -> InputSpec:
    shape, kind = leaf.shape[axes:], infer_kind(leaf.shape[axes:], leaf.dtype)
    dtype = check.device_dtype(leaf.dtype, None if kind == "vectors" else kind)
    if kind != "ids":
        return InputSpec(shape, 0, kind, dtype)
    least, largest = map(int, check.min_max(leaf))
    if least < 0 or largest >= MAX_ID_TABLE:
        expected = f"ids must run from 0 to less than {MAX_ID_TABLE}, got {least} to {largest}"
        raise ValueError(f"{name}: {expected}. Renumber them, or pass numbers as floats.")
    if n_ids is not None and largest >= n_ids:
        raise ValueError(f"n_ids: got {n_ids}, but {name} has id {largest}.")
    return InputSpec(shape, largest + 1 if n_ids is None else n_ids, kind, dtype)


def _check_like_fitted(X: Trajectories, spec: StreamSpec, name: str) -> None:
    """Checks that steps look like those of the training data, with ids and actions that the model knows."""
    got = make_stream_spec(X, None, name=name)
    check_same_kind(got, spec, name, "as in fit")
    observed, acted = _field(name, "observation"), _field(name, "previous_action")
    counts = [
        (f"{observed}{place}: id", now.n_ids, then.n_ids, "n_ids")
        for now, then, place in zip(got.parts, spec.parts, spec.places, strict=True)
    ]
    if spec.actions == "ids":
        counts.append((f"{acted}: action", got.choices, spec.choices, "n_actions"))
    for what, now, then, parameter in counts:
        if now > then:
            fix = f"Fit on data that show it, or with {parameter}={now} or more."
            raise ValueError(f"{what} {now - 1} is new to the model; training showed 0..{then - 1}. {fix}")


def check_same_kind(now: StreamSpec, then: StreamSpec, name: str, like: str) -> None:
    """Checks that steps have the structure, shapes and types that they should have."""
    observed = _field(name, "observation")
    if now.outline != then.outline:
        expected, got = _format_outline(then.outline), _format_outline(now.outline)
        raise ValueError(f"{observed}: expected {expected}, {like}; got {got}.")
    for place, new, old in zip(then.places, now.parts, then.parts, strict=True):
        check.check_same_spec(f"{observed}{place}", new, old, like)
    expected, got = (
        "numbers (integers)" if spec.actions == "ids" else f"vectors of {spec.choices}"
        for spec in (then, now)
    )
    if expected != got:
        fix = " Number them, or if they are numbers: .astype(int)." if then.actions == "ids" else ""
        raise ValueError(f"{_field(name, 'previous_action')}: expected {expected}, {like}; got {got}.{fix}")


def make_step(
    observation: Any, previous_action: Any, first: Any, streams: int, spec: StreamSpec
) -> Trajectories:
    """Makes trajectories (n, 1) of one observation and previous action per stream, checked against the fit."""
    list_of_parts = isinstance(spec.outline, dict) and "list" in spec.outline
    if isinstance(observation, list) and not list_of_parts:
        observation = stack_observations("observation", observation) if observation else np.zeros(0)
    first = np.zeros(streams, bool) if first is None else np.asarray(first, bool)
    actions = _fill_actions(previous_action, streams, spec)
    steps = Trajectories(
        jax.tree.map(lambda leaf: _add_time_axis("observation", leaf, streams), observation),
        _add_time_axis("previous_action", actions, streams),
        _add_time_axis("first", first, streams),
        np.ones((streams, 1), bool),
    )
    return check_trajectories(steps, "", spec)


def _add_time_axis(name: str, values: Any, streams: int) -> np.ndarray:
    """Reshapes (n, …) to (n, 1, …)."""
    array = np.asarray(check.convert_rows(name, values))
    if array.ndim == 0 or len(array) != streams:
        came = f"a single {array.dtype}" if array.ndim == 0 else f"shape {array.shape}"
        one = f" The memory is of one stream: [{name}]." if streams == 1 else ""
        raise ValueError(f"{name}: expected one entry for each of {streams} streams, got {came}.{one}")
    return array[:, None]


def _fill_actions(given: Any, streams: int, spec: StreamSpec) -> Any:
    """Replaces every None by the number or vector that stands for no action."""
    if given is None:
        given = [None] * streams
    if not isinstance(given, list | tuple) or all(action is not None for action in given):
        return given
    if spec.actions == "ids":
        return [NO_ACTION if action is None else action for action in given]
    none = np.zeros(spec.choices, np.float32)
    return np.stack([none if action is None else np.ravel(action) for action in given])


def merge_specs(specs: list[StreamSpec], names: list[str]) -> StreamSpec:
    """Makes one specification with tables for the ids and actions of all; they must agree in everything else."""
    for spec, name in zip(specs, names, strict=True):
        check_same_kind(spec, specs[0], name, f"as in {names[0]}")
    columns = zip(*(spec.parts for spec in specs), strict=True)
    parts = tuple(column[0]._replace(n_ids=max(part.n_ids for part in column)) for column in columns)
    return specs[0]._replace(parts=parts, choices=max(spec.choices for spec in specs))


def deduplicate(X: Trajectories, most: int) -> Trajectories:
    """Stores each distinct observation once, if there are at most `most` of them."""
    leaves, structure = jax.tree.flatten(X.observation)
    # Several parts seldom recur together, and single numbers are small anyway.
    if isinstance(X.observation, Indexed) or len(leaves) > 1 or leaves[0].ndim < 3:
        return X
    rows = leaves[0].reshape(-1, *leaves[0].shape[2:])
    found = find_distinct_rows(rows, most)
    if found is None:
        return X
    values = structure.unflatten([rows[found.first]])
    return X._replace(observation=Indexed(values, found.inverse.reshape(X.shape)))


def deduplicate_together(sets: list[Trajectories], most: int) -> list[Trajectories]:
    """Deduplicates sets that one program reads: all of them or none, padded to as many stored observations."""
    stored = [deduplicate(X, most) for X in sets]
    if not all(isinstance(X.observation, Indexed) for X in stored):
        return sets
    longest = max(len(jax.tree.leaves(X.observation.values)[0]) for X in stored)

    def pad(leaf: np.ndarray) -> np.ndarray:
        missing = longest - len(leaf)
        return np.concatenate([leaf, np.repeat(leaf[:1], missing, axis=0)]) if missing else leaf

    return [
        X._replace(observation=X.observation._replace(values=jax.tree.map(pad, X.observation.values)))
        for X in stored
    ]


def sample_observations(X: Trajectories, most: int, rng: np.random.Generator) -> Any:
    """Draws at most `most` observations of valid steps, as rows."""
    steps = np.flatnonzero(X.valid.ravel())
    chosen = np.unravel_index(np.sort(rng.choice(steps, min(most, len(steps)), replace=False)), X.shape)
    if isinstance(X.observation, Indexed):
        return jax.tree.map(lambda leaf: leaf[X.observation.index[chosen]], X.observation.values)
    return jax.tree.map(lambda leaf: np.asarray(leaf[chosen]), X.observation)


def compute_fingerprint(X: Trajectories) -> int:
    """Computes a checksum of everything in the trajectories."""
    code = 0
    for leaf in jax.tree.leaves(X):
        code = zlib.crc32(str((leaf.shape, leaf.dtype)).encode(), code)
        for block in np.array_split(leaf, max(1, leaf.nbytes >> 26)):
            code = zlib.crc32(np.ascontiguousarray(block).tobytes(), code)
    return code


def find_useful_streams(X: Trajectories, needs: int, k: int, name: str = "X") -> Int[np.ndarray, " n"]:
    """Finds the streams with histories followed by `needs` steps; there must be enough such histories."""
    left = np.asarray(count_steps_left(jnp.asarray(X.first), jnp.asarray(X.valid)))
    found, wanted = int((left >= needs).sum()), 2 * k + 2
    if found < wanted:
        longest = int(left.max())
        shorter = [n for n in range(1, min(needs, longest + 1)) if (left >= n).sum() >= wanted]
        fixes = [f"choose tests <= {shorter[-1]}"] if shorter else []
        fixes += ["collect more or longer trajectories"]
        fixes += [f"choose k <= {found // 2 - 1}"] if found >= 4 else []
        followed = "another step" if needs == 1 else f"{needs} or more steps"
        raise ValueError(
            f"{name}: {found} histories are followed by {followed} of their episode, expected at least {wanted} for "
            f"k = {k}. The longest episode has {longest + 1} steps. To fix it: {', or '.join(fixes)}."
        )
    return np.flatnonzero((left >= needs).any(axis=1)).astype(np.int32)
