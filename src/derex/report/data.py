"""Records that reports are made of: plain arrays and text, so figures can be drawn from files alone.

Shapes: H rows and W columns of the map, n states, k features, T points of a curve.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from derex.report.files import read_npz, write_npz

WALL = "#"

Cell: TypeAlias = str | int | float | np.integer | np.floating | None


@dataclass(frozen=True, eq=False)
class GridMap:
    """A map of cells, some of which are states.

    Attributes:
        name: label in figures.
        rows: one string for each row; ``#`` is wall.
        positions: (n, 2) row and column of every state.
    """

    name: str
    rows: tuple[str, ...]
    positions: np.ndarray

    def __post_init__(self) -> None:
        set_field(self, "rows", tuple(str(row) for row in self.rows))
        set_array(self, "positions", 2, np.int64)
        widths = sorted({len(row) for row in self.rows})
        if len(widths) != 1:
            raise ValueError(f"rows: expected rows of one width, got widths {widths}.")
        if self.positions.shape[1] != 2 or len(self.positions) == 0:
            raise ValueError(f"positions: expected shape (n, 2), n >= 1; got {self.positions.shape}.")
        outside = np.any((self.positions < 0) | (self.positions >= self.shape), axis=1)
        if outside.any():
            raise ValueError(
                f"positions: {self.positions[outside][0].tolist()} lies outside the {self.shape[0]} x "
                f"{self.shape[1]} map. Give (row, column) counted from 0."
            )
        on_wall = self.walls[self.positions[:, 0], self.positions[:, 1]]
        if on_wall.any():
            raise ValueError(f"positions: {self.positions[on_wall][0].tolist()} is a wall of `rows`.")
        if len(np.unique(self.positions, axis=0)) != len(self.positions):
            raise ValueError("positions: two states share a cell, expected one state for each.")

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

    def image(self, values: np.ndarray) -> np.ndarray:
        """(H, W) picture of one value for each state; NaN in cells that are not states."""
        picture = np.full(self.shape, np.nan)
        picture[self.positions[:, 0], self.positions[:, 1]] = values
        return picture

    def edges(self) -> np.ndarray:
        """(m, 2) pairs of states in cells that share a side."""
        ids = np.full((self.shape[0] + 1, self.shape[1] + 1), -1)
        ids[self.positions[:, 0], self.positions[:, 1]] = np.arange(self.n)
        sides = (ids[1:, :-1], ids[:-1, 1:])
        pairs = np.concatenate([np.stack([ids[:-1, :-1], other], axis=-1).reshape(-1, 2) for other in sides])
        return pairs[np.all(pairs >= 0, axis=1)]


@dataclass(frozen=True, eq=False)
class RepresentationView:
    """One decomposition of the experience: learnt, exact, or a control.

    Attributes:
        label: label in figures.
        representation: (n, k) features of every state.
        singular_values: (k,) σ of the features, in their order.
        bonus: (n,) exploration bonus; may be infinite where a state was never visited.
    """

    label: str
    representation: np.ndarray
    singular_values: np.ndarray
    bonus: np.ndarray

    def __post_init__(self) -> None:
        set_array(self, "representation", 2)
        set_array(self, "singular_values", 1)
        set_array(self, "bonus", 1)
        n, k = self.representation.shape
        if k == 0:
            raise ValueError("representation: expected shape (n, k) with k >= 1, got k = 0.")
        if len(self.singular_values) != k:
            raise ValueError(
                f"singular_values: expected one for each of the {k} features, got {len(self.singular_values)}."
            )
        if len(self.bonus) != n:
            raise ValueError(f"bonus: expected one value for each of the {n} states, got {len(self.bonus)}.")

    @property
    def k(self) -> int:
        """Number of features."""
        return len(self.singular_values)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several decompositions of the same experience on the same map.

    Attributes:
        title: heading of the figure.
        map: the map.
        d: (n,) visitation of the states, frequencies or counts.
        views: the decompositions; figures of a single view show the first.
        frame: optional (height, width, 3) uint8 example of what the agent sees.
    """

    title: str
    map: GridMap
    d: np.ndarray
    views: tuple[RepresentationView, ...]
    frame: np.ndarray | None = None

    def __post_init__(self) -> None:
        set_field(self, "views", tuple(self.views))
        check_states(self, "views")
        labels = [view.label for view in self.views]
        if len(set(labels)) != len(labels):
            raise ValueError(f"views: labels must differ, got {labels}.")
        if self.frame is not None:
            frame = np.asarray(self.frame)
            if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
                raise ValueError(
                    f"frame: expected uint8 (height, width, 3), got {frame.dtype} {frame.shape}."
                )
            set_array(self, "frame", 3, np.uint8)

    def view(self, label: str | None = None) -> RepresentationView:
        """Returns the view of that label; the first one for None."""
        if label is None:
            return self.views[0]
        for view in self.views:
            if view.label == label:
                return view
        raise ValueError(f"view: expected one of {[view.label for view in self.views]}, got {label!r}.")

    def spearman(self, view: RepresentationView) -> float:
        """Computes the rank correlation of a view's bonus with 1/d over visited states; NaN if undefined."""
        visited = self.d > 0
        return spearman(view.bonus[visited], -self.d[visited])


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve with an interval around it.

    Attributes:
        label: label in legends.
        x: (T,) horizontal positions.
        mean: (T,) values; NaN leaves a gap.
        low: (T,) lower end of the interval.
        high: (T,) upper end of the interval.
    """

    label: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __post_init__(self) -> None:
        for name in ("x", "mean", "low", "high"):
            set_array(self, name, 1)
            count = len(getattr(self, name))
            if count != len(self.x):
                raise ValueError(f"{name}: expected {len(self.x)} values as in x, got {count}.")


@dataclass(frozen=True, eq=False)
class Table:
    """A table of text and numbers; None and NaN are shown as a dash.

    Attributes:
        title: heading.
        columns: names of the columns.
        rows: cells, row by row.
        caption: a sentence below.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        set_field(self, "columns", tuple(self.columns))
        set_field(self, "rows", tuple(tuple(row) for row in self.rows))
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"rows: row {number} has {len(row)} cells, expected {len(self.columns)}, one for each column."
                )


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Computes Spearman's rank correlation, ties sharing their mean rank; pairs with a NaN are left out.

    NaN if fewer than two pairs are left or either side is constant.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    kept = ~(np.isnan(a) | np.isnan(b))
    first, second = _ranks(a[kept]), _ranks(b[kept])
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


def set_field(record: Any, name: str, value: Any) -> None:
    """Sets a field of a frozen record, for its ``__post_init__``."""
    object.__setattr__(record, name, value)


def set_array(record: Any, name: str, ndim: int, dtype: type = np.float64) -> None:
    """Replaces a field of a frozen record by a read-only copy; refuses another rank."""
    set_field(record, name, checked_array(name, getattr(record, name), ndim, dtype))


def checked_array(name: str, values: Any, ndim: int, dtype: type = np.float64) -> np.ndarray:
    """Returns a read-only copy of the values with the dtype; refuses another rank."""
    array = np.array(values, dtype=dtype)
    if array.ndim != ndim:
        raise ValueError(f"{name}: expected an array of {ndim} dimensions, got shape {array.shape}.")
    array.flags.writeable = False
    return array


def check_states(record: Any, parts: str) -> None:
    """Checks that `d` and the bonus of each of the `parts` have one valid entry for each state of the map."""
    set_array(record, "d", 1)
    n = record.map.n
    if len(record.d) != n:
        raise ValueError(f"d: expected one value for each of the {n} states, got {len(record.d)}.")
    if not (np.all(np.isfinite(record.d)) and np.all(record.d >= 0)):
        raise ValueError("d: expected finite, non-negative frequencies.")
    if not getattr(record, parts):
        raise ValueError(f"{parts}: expected at least one, got none.")
    for part in getattr(record, parts):
        if len(part.bonus) != n:
            raise ValueError(f"{parts}: {part.label!r} has {len(part.bonus)} states, the map has {n}.")


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
