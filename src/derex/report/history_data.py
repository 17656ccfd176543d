"""Records of the figures of the partially observed four rooms, kept in .npz files.

Shapes: m histories, k features, n states, T time steps, F distinct frames.
"""

from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from derex.report.data import GridMap, check_states, checked_array, set_array, set_field
from derex.report.files import read_npz, write_npz

_Record = TypeVar("_Record")


@dataclass(frozen=True, eq=False)
class HistoryCloud:
    """The representations of many histories, and the true state that each ends in.

    Attributes:
        title: label in figures, e.g. "p = 0.3".
        map: the map.
        state: (m,) the true state, hidden from the agent, at the end of each history.
        representation: (m, k) features of each history, k >= 2.
    """

    title: str
    map: GridMap
    state: np.ndarray
    representation: np.ndarray

    def __post_init__(self) -> None:
        set_field(self, "state", _integers("state", self.state, self.map.n, "a state of the map"))
        set_array(self, "representation", 2)
        m, k = self.representation.shape
        if k < 2:
            raise ValueError(f"representation: expected shape (m, k) with k >= 2, got k = {k}.")
        if len(self.state) != m:
            raise ValueError(f"state: expected one for each of the {m} histories, got {len(self.state)}.")
        broken = np.flatnonzero(~np.all(np.isfinite(self.representation), axis=1))
        if len(broken):
            raise ValueError(
                f"representation: history {broken[0]} has NaN or infinite features, as have {len(broken)} of "
                f"{m}; leave them out."
            )

    @property
    def k(self) -> int:
        """Number of features."""
        return self.representation.shape[1]

    def limits(self) -> np.ndarray:
        """Computes the (k, 2) ends of an axis for each feature, with a margin; far outliers may lie beyond.

        An end is the extreme value, at most a quarter of the span of the middle 99 % away from it.
        """
        low, high = np.percentile(self.representation, (0.5, 99.5), axis=0)
        span = high - low
        low = np.maximum(self.representation.min(axis=0), low - span / 4)
        high = np.minimum(self.representation.max(axis=0), high + span / 4)
        margin = np.where(high > low, 0.04 * (high - low), 0.5)
        return np.stack([low - margin, high + margin], axis=1)


@dataclass(frozen=True, eq=False)
class StateBonus:
    """The mean bonus of the histories that end in each state.

    Attributes:
        label: label in figures, e.g. "p = 0.3".
        bonus: (n,) mean bonus; NaN where no history ends.
        spearman: rank correlation of the bonus with 1/d over visited states; NaN if undefined.
    """

    label: str
    bonus: np.ndarray
    spearman: float

    def __post_init__(self) -> None:
        set_array(self, "bonus", 1)
        set_field(self, "spearman", float(self.spearman))
        if abs(self.spearman) > 1 + 1e-9:
            raise ValueError(f"spearman: expected a correlation in [-1, 1] or NaN, got {self.spearman}.")


@dataclass(frozen=True, eq=False)
class BonusMaps:
    """Several bonuses on one map, and how often its states were visited.

    Attributes:
        map: the map.
        d: (n,) visitation of the states, frequencies or counts.
        bonuses: the bonuses.
    """

    map: GridMap
    d: np.ndarray
    bonuses: tuple[StateBonus, ...]

    def __post_init__(self) -> None:
        set_field(self, "bonuses", tuple(self.bonuses))
        check_states(self, "bonuses")


@dataclass(frozen=True, eq=False)
class BeliefTrack:
    """One episode: what the agent saw, its true states, and beliefs about them.

    Attributes:
        title: label in figures, e.g. "p = 0.3".
        map: the map.
        frames: (F, height, width, 3) uint8 distinct frames.
        frame: (T,) which of `frames` was seen at each step.
        state: (T,) the true state at each step.
        beliefs: pairs of a label and (T, n) probabilities of the states at each step.
    """

    title: str
    map: GridMap
    frames: np.ndarray
    frame: np.ndarray
    state: np.ndarray
    beliefs: tuple[tuple[str, np.ndarray], ...]

    def __post_init__(self) -> None:
        frames = np.asarray(self.frames)
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or 0 in frames.shape:
            raise ValueError(
                f"frames: expected uint8 (F, height, width, 3), F >= 1; got {frames.dtype} {frames.shape}."
            )
        set_array(self, "frames", 4, np.uint8)
        set_field(self, "frame", _integers("frame", self.frame, len(frames), "an index into `frames`"))
        set_field(self, "state", _integers("state", self.state, self.map.n, "a state of the map"))
        if len(self.state) != self.steps:
            raise ValueError(f"state: expected {self.steps} steps as in frame, got {len(self.state)}.")
        shape = (self.steps, self.map.n)
        set_field(self, "beliefs", tuple((str(label), _belief(label, p, shape)) for label, p in self.beliefs))
        labels = [label for label, _ in self.beliefs]
        if not labels or len(set(labels)) != len(labels):
            raise ValueError(f"beliefs: expected at least one and labels that differ, got labels {labels}.")

    @property
    def steps(self) -> int:
        """Number of time steps T."""
        return len(self.frame)


_KINDS = {kind.__name__: kind for kind in (GridMap, HistoryCloud, StateBonus, BonusMaps, BeliefTrack)}


def save_record(path: str | Path, record: Any) -> Path:
    """Writes a record to an .npz file: arrays, and the rest as one JSON text; no pickle.

    Args:
        path: file to write, e.g. ``cloud.npz``.
        record: a HistoryCloud, StateBonus, BonusMaps, BeliefTrack or GridMap.
    """
    if _KINDS.get(type(record).__name__) is not type(record):
        raise TypeError(f"record: expected one of {', '.join(_KINDS)}, got {type(record).__name__}.")
    arrays: dict[str, np.ndarray] = {}
    return write_npz(path, _pack(record, arrays), arrays)


def load_record(path: str | Path, kind: type[_Record]) -> _Record:
    """Reads what `save_record` wrote. Nothing is unpickled, so loading an untrusted file runs no code.

    Args:
        path: the file.
        kind: the type of record expected, e.g. `HistoryCloud`.
    """
    header, arrays = read_npz(path, "save_record")
    if header.get("record") != kind.__name__ or kind.__name__ not in _KINDS:
        raise ValueError(f"path: {path} contains {header.get('record')!r}, expected {kind.__name__!r}.")
    return _unpack(header, arrays)


def same_map(name: str, maps: list[GridMap]) -> GridMap:
    """Returns the map that all records share; refuses none, and maps that differ."""
    if not maps:
        raise ValueError(f"{name}: expected at least one, got none.")
    for grid in maps[1:]:
        if grid.rows != maps[0].rows or not np.array_equal(grid.positions, maps[0].positions):
            raise ValueError(
                f"{name}: expected records of one map, got {maps[0].name!r} and {grid.name!r} that differ; "
                "make a figure for each."
            )
    return maps[0]


def _pack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Converts to plain JSON values; arrays are put into `arrays` and replaced by their names there."""
    if isinstance(value, np.ndarray):
        name = f"array{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if is_dataclass(value):
        own = {field.name: _pack(getattr(value, field.name), arrays) for field in fields(value)}
        return {"record": type(value).__name__, "fields": own}
    return [_pack(item, arrays) for item in value] if isinstance(value, tuple) else value


def _unpack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return tuple(_unpack(item, arrays) for item in value)
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    return _KINDS[value["record"]](**{name: _unpack(own, arrays) for name, own in value["fields"].items()})


def _integers(name: str, values: Any, end: int, meaning: str) -> np.ndarray:
    """Returns a read-only (m,) array, m >= 1, of integers in [0, end)."""
    given = np.asarray(values)
    if given.dtype.kind not in "iu" or given.size == 0:
        raise ValueError(
            f"{name}: expected integers, at least one; got {given.dtype} of shape {given.shape}."
        )
    array = checked_array(name, given, 1, np.int64)
    outside = array[(array < 0) | (array >= end)]
    if len(outside):
        raise ValueError(f"{name}: expected {meaning}, 0 to {end - 1}; got {outside[0]}.")
    return array


def _belief(label: str, probabilities: Any, shape: tuple[int, int]) -> np.ndarray:
    array = checked_array(f"beliefs: {label!r}", probabilities, 2, np.float32)
    if array.shape != shape:
        raise ValueError(f"beliefs: {label!r} has shape {array.shape}, expected (T, n) = {shape}.")
    sums = array.sum(axis=1, dtype=np.float64)
    wrong = np.flatnonzero(~((np.abs(sums - 1) < 1e-3) & np.all(array >= 0, axis=1)))
    if len(wrong):
        raise ValueError(
            f"beliefs: {label!r} at step {wrong[0]} sums to {sums[wrong[0]]:.4g} with smallest value "
            f"{array[wrong[0]].min():.4g}, expected probabilities that sum to 1. Apply a softmax to logits."
        )
    return array
