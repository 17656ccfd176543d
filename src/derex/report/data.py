"""Records that reports are made of: plain arrays and text, so figures can be drawn from files alone.

Each record checks its fields and keeps read-only copies of its arrays. Shapes: H rows and W columns of the map, n
states, k features, m histories, T steps of an episode, F distinct frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from derex.report.files import read_npz, write_npz

WALL = "#"


@dataclass(frozen=True, eq=False)
class GridMap:
    """A map of cells, some of which are states."""

    name: str  # label in figures
    rows: tuple[str, ...]  # one string for each row; ``#`` is wall
    positions: np.ndarray  # (n, 2) row and column of every state

    def __post_init__(self) -> None:
        set_field(self, "rows", tuple(str(row) for row in self.rows))
        set_array(self, "positions", 2, np.int64)
        widths = sorted({len(row) for row in self.rows})
        expect(len(widths) == 1, "rows", "rows of one width", f"widths {widths}")
        shape = self.positions.shape
        expect(shape[0] > 0 and shape[1] == 2, "positions", "shape (n, 2) with n >= 1", shape)
        outside = self.positions[np.any((self.positions < 0) | (self.positions >= self.shape), axis=1)]
        size = f"row and column, counted from 0, inside the {self.shape[0]} x {self.shape[1]} map"
        expect(not len(outside), "positions", size, outside[:1].tolist())
        in_wall = self.positions[self.walls[tuple(self.positions.T)]]
        expect(not len(in_wall), "positions", "cells that are not walls of `rows`", in_wall[:1].tolist())
        cells = len(np.unique(self.positions, axis=0))
        expect(cells == self.n, "positions", f"a cell for each of the {self.n} states", f"{cells} cells")

    @property
    def shape(self) -> tuple[int, int]:
        """(H, W)."""
        return len(self.rows), len(self.rows[0])

    @property
    def walls(self) -> np.ndarray:
        """(H, W) mask of the walls."""
        return np.array([[character == WALL for character in row] for row in self.rows])

    @property
    def n(self) -> int:
        """Number of states."""
        return len(self.positions)

    def edges(self) -> np.ndarray:
        """(m, 2) pairs of states in cells that share a side."""
        ids = np.full((self.shape[0] + 1, self.shape[1] + 1), -1)
        ids[tuple(self.positions.T)] = np.arange(self.n)
        sides = (ids[1:, :-1], ids[:-1, 1:])
        pairs = np.concatenate([np.stack([ids[:-1, :-1], other], axis=-1).reshape(-1, 2) for other in sides])
        return pairs[np.all(pairs >= 0, axis=1)]


@dataclass(frozen=True, eq=False)
class RepresentationView:
    """One decomposition of the experience: learnt, exact, or a control."""

    label: str  # label in figures
    representation: np.ndarray  # (n, k) features of every state
    singular_values: np.ndarray  # (k,) σ of the features, in their order
    bonus: np.ndarray  # (n,) exploration bonus; may be infinite where a state was never visited

    def __post_init__(self) -> None:
        set_array(self, "representation", 2)
        n, k = self.representation.shape
        expect(k >= 1, "representation", "shape (n, k) with k >= 1", (n, k))
        set_array(self, "singular_values")
        expect_each("singular_values", self.singular_values, k, "features")
        set_array(self, "bonus")
        expect_each("bonus", self.bonus, n, "states")

    @property
    def k(self) -> int:
        """Number of features."""
        return len(self.singular_values)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several decompositions of the same experience on the same map."""

    title: str  # heading of the figure
    map: GridMap
    d: np.ndarray  # (n,) visitation of the states, frequencies or counts
    views: tuple[RepresentationView, ...]  # the decompositions; figures of a single view show the first
    frame: np.ndarray | None = None  # optional (height, width, 3) uint8 example of what the agent sees

    def __post_init__(self) -> None:
        set_field(self, "views", tuple(self.views))
        set_array(self, "d")
        check_bonuses(self.map, self.d, "views", self.views)
        labels = [view.label for view in self.views]
        expect(len(set(labels)) == len(labels), "views", "labels that differ", labels)
        if self.frame is not None:
            _set_pictures(self, "frame", 3)

    def spearman(self, view: RepresentationView) -> float:
        """Computes the rank correlation of a view's bonus with 1/d over visited states; NaN if undefined."""
        visited = self.d > 0
        return spearman(view.bonus[visited], -self.d[visited])


@dataclass(frozen=True, eq=False)
class HistoryCloud:
    """The representations of many histories, and the true state that each ends in."""

    title: str  # label in figures, e.g. "p = 0.3"
    map: GridMap
    state: np.ndarray  # (m,) the true state, hidden from the agent, at the end of each history
    representation: np.ndarray  # (m, k) features of each history, k >= 2

    def __post_init__(self) -> None:
        set_array(self, "representation", 2)
        m, k = self.representation.shape
        expect(k >= 2, "representation", "shape (m, k) with k >= 2", (m, k))
        _set_indices(self, "state", self.map.n, "states of the map")
        expect_each("state", self.state, m, "histories")
        broken = np.flatnonzero(~np.all(np.isfinite(self.representation), axis=1))
        found = f"NaN or infinity in histories {broken[:5]}, {len(broken)} of {m}; leave them out"
        expect(not len(broken), "representation", "finite features", found)

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
    """The mean bonus of the histories that end in each state."""

    label: str  # label in figures, e.g. "p = 0.3"
    bonus: np.ndarray  # (n,) mean bonus; NaN where no history ends
    spearman: float  # rank correlation of the bonus with 1/d over visited states; NaN if undefined

    def __post_init__(self) -> None:
        set_array(self, "bonus")
        set_field(self, "spearman", float(self.spearman))
        beyond = abs(self.spearman) > 1 + 1e-9
        expect(not beyond, "spearman", "a correlation in [-1, 1] or NaN", self.spearman)


@dataclass(frozen=True, eq=False)
class BeliefTrack:
    """One episode: what the agent saw, its true states, and beliefs about them."""

    title: str  # label in figures, e.g. "p = 0.3"
    map: GridMap
    frames: np.ndarray  # (F, height, width, 3) uint8 distinct frames
    frame: np.ndarray  # (T,) which of `frames` was seen at each step
    state: np.ndarray  # (T,) the true state at each step
    beliefs: tuple[tuple[str, np.ndarray], ...]  # labels, and (T, n) probabilities of the states

    def __post_init__(self) -> None:
        _set_pictures(self, "frames", 4)
        _set_indices(self, "frame", len(self.frames), "indices into `frames`")
        _set_indices(self, "state", self.map.n, "states of the map")
        expect_each("state", self.state, self.steps, "steps of frame")
        set_field(self, "beliefs", tuple((str(label), self._belief(label, p)) for label, p in self.beliefs))
        labels = [label for label, _ in self.beliefs]
        different = 0 < len(labels) == len(set(labels))
        expect(different, "beliefs", "at least one, with labels that differ", labels)

    @property
    def steps(self) -> int:
        """Number of time steps T."""
        return len(self.frame)

    def _belief(self, label: str, probabilities: Any) -> np.ndarray:
        name, shape = f"beliefs: {label!r}", (self.steps, self.map.n)
        array = np.array(probabilities, np.float32)
        expect(array.shape == shape, name, f"shape (T, n) = {shape}", array.shape)
        array.flags.writeable = False
        sums = array.sum(axis=1, dtype=np.float64)
        wrong = np.flatnonzero(~((np.abs(sums - 1) < 1e-3) & np.all(array >= 0, axis=1)))
        found = f"sums {sums[wrong[:5]]} at steps {wrong[:5]}; apply a softmax to logits"
        expect(not len(wrong), name, "non-negative probabilities that sum to 1", found)
        return array


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Computes Spearman's rank correlation, ties sharing their mean rank; pairs with a NaN are left out.

    NaN if fewer than two pairs are left or either side is constant.
    """
    from scipy.stats import rankdata  # imported late: it takes longer than the rest of this package

    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    kept = ~(np.isnan(a) | np.isnan(b))
    first, second = rankdata(a[kept]), rankdata(b[kept])
    if any(len(ranks) < 2 or np.all(ranks == ranks[0]) for ranks in (first, second)):
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


_ARRAYS = ("representation", "singular_values", "bonus")


def save_comparison(path: str | Path, comparison: Comparison) -> Path:
    """Writes a comparison to an .npz file: arrays, and names as one JSON text; no pickle."""
    header = {
        "title": comparison.title,
        "map": {"name": comparison.map.name, "rows": comparison.map.rows},
        "views": [view.label for view in comparison.views],
    }
    arrays = {"positions": comparison.map.positions, "d": comparison.d}
    if comparison.frame is not None:
        arrays["frame"] = comparison.frame
    for number, view in enumerate(comparison.views):
        arrays |= {f"view{number}_{name}": getattr(view, name) for name in _ARRAYS}
    return write_npz(path, header, arrays)


def load_comparison(path: str | Path) -> Comparison:
    """Reads what `save_comparison` wrote. Nothing is unpickled, so loading an untrusted file runs no code."""
    header, arrays = read_npz(path, "save_comparison")
    views = [
        RepresentationView(label, *(arrays[f"view{number}_{name}"] for name in _ARRAYS))
        for number, label in enumerate(header["views"])
    ]
    grid = GridMap(header["map"]["name"], tuple(header["map"]["rows"]), arrays["positions"])
    return Comparison(header["title"], grid, arrays["d"], tuple(views), arrays.get("frame"))


def same_map(name: str, records: Sequence[HistoryCloud] | Sequence[BeliefTrack]) -> GridMap:
    """Returns the map that all records share; refuses none, and maps that differ."""
    expect(records, name, "at least one", "none")
    first = records[0].map
    for other in (record.map for record in records[1:]):
        same = other.rows == first.rows and np.array_equal(other.positions, first.positions)
        names = f"{first.name!r} and {other.name!r} that differ; make a figure for each"
        expect(same, name, "records of one map", names)
    return first


def check_bonuses(
    grid: GridMap, d: np.ndarray, name: str, parts: Sequence[RepresentationView] | Sequence[StateBonus]
) -> None:
    """Checks that `d` and the bonus of each of the parts, the argument `name`, fit the states of the map."""
    expect_each("d", d, grid.n, "states of the map")
    wrong = d[~(np.isfinite(d) & (d >= 0))]
    expect(not len(wrong), "d", "finite, non-negative frequencies", wrong[:5])
    expect(parts, name, "at least one", "none")
    for part in parts:
        expect_each(f"{name}: {part.label!r}", part.bonus, grid.n, "states of the map")


def expect(valid: Any, name: str, expected: str, got: Any) -> None:
    """Raises a ValueError that names the argument, what was expected and what was given, unless it is valid."""
    if not valid:
        raise ValueError(f"{name}: expected {expected}; got {got}.")


def expect_each(name: str, values: Any, count: int, things: str) -> None:
    """Checks that there is one value for each of so many things."""
    expect(len(values) == count, name, f"one value for each of the {count} {things}", len(values))


def set_field(record: Any, name: str, value: Any) -> None:
    """Sets a field of a frozen record, for its ``__post_init__``."""
    object.__setattr__(record, name, value)


def set_array(record: Any, name: str, ndim: int = 1, dtype: type = np.float64) -> None:
    """Replaces a field by a read-only copy; refuses another rank."""
    array = np.array(getattr(record, name), dtype=dtype)
    expect(array.ndim == ndim, name, f"an array of {ndim} dimensions", f"shape {array.shape}")
    array.flags.writeable = False
    set_field(record, name, array)


def _set_indices(record: Any, name: str, end: int, meaning: str) -> None:
    """Replaces a field by a read-only (m,) array, m >= 1, of integers in [0, end)."""
    given = np.asarray(getattr(record, name))
    numbers = given.dtype.kind in "iu" and given.size
    expect(numbers, name, "integers, at least one", f"{given.dtype} of shape {given.shape}")
    outside = given[(given < 0) | (given >= end)]
    expect(not len(outside), name, f"{meaning}, 0 to {end - 1}", outside[:1])
    set_array(record, name, 1, np.int64)


def _set_pictures(record: Any, name: str, ndim: int) -> None:
    """Replaces a field by a read-only copy of its RGB pictures."""
    given = np.asarray(getattr(record, name))
    valid = given.dtype == np.uint8 and given.ndim == ndim and given.shape[-1] == 3 and given.size
    shape = "(height, width, 3)" if ndim == 3 else "(F, height, width, 3), F >= 1"
    expect(valid, name, f"uint8 {shape}", f"{given.dtype} {given.shape}")
    set_array(record, name, ndim, np.uint8)
