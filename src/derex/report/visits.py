"""Counts of visits to numbered states during training, kept bounded however long the run is, and their file.

Shapes: I intervals, N seeds, n states.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from derex.report.files import read_npz, write_npz

MOST_INTERVALS = 200
MOST_NUMBERS = 10_000_000  # in all counts of a record


@dataclass(frozen=True, eq=False)
class Visits:
    """Visits and sums of bonuses of each state, by interval of training.

    Attributes:
        name: name of the environment.
        seeds: seeds of the run.
        steps: (I,) environment steps of each seed at the end of each interval.
        counts: (I, N, n) number of visits to each state in it.
        bonuses: (I, N, n) sum of the bonuses given there.
        positions: (n, 2) row and column at which each state is drawn, possibly shared; (0, 2) if states have none.
    """

    name: str
    seeds: tuple[int, ...]
    steps: np.ndarray
    counts: np.ndarray
    bonuses: np.ndarray
    positions: np.ndarray

    def __post_init__(self) -> None:
        intervals, seeds = len(self.steps), len(self.seeds)
        shape = self.counts.shape
        if shape[:2] != (intervals, seeds) or self.bonuses.shape != shape:
            raise ValueError(
                f"counts and bonuses: expected shape ({intervals}, {seeds}, n), got {shape} and {self.bonuses.shape}."
            )

    def merged(self, parts: int) -> Visits:
        """Merges intervals into at most `parts` parts of nearly equal numbers of intervals."""
        parts = min(parts, len(self.steps))
        ends = np.array([len(self.steps) * part // parts for part in range(1, parts + 1)], dtype=int)
        starts = np.append(0, ends[:-1])
        counts, bonuses = (np.add.reduceat(sums, starts, axis=0) for sums in (self.counts, self.bonuses))
        return Visits(self.name, self.seeds, self.steps[ends - 1], counts, bonuses, self.positions)


class VisitLog:
    """Collects the intervals of a run; whenever there are `most`, each pair of neighbours is merged."""

    def __init__(self, name: str, seeds: tuple[int, ...], n: int, positions: np.ndarray | None):
        self._name, self._seeds, self._n = name, seeds, n
        self._positions = np.zeros((0, 2), np.int32) if positions is None else positions
        self.most = max(2, min(MOST_INTERVALS, MOST_NUMBERS // (len(seeds) * n)) // 2 * 2)
        self._width, self._in_last = 1, 1  # intervals merged in each row, and in the last row so far
        self._rows: list[tuple[int, np.ndarray, np.ndarray]] = []

    def add(self, step: int, counts: np.ndarray, bonuses: np.ndarray) -> None:
        """Adds an interval that ended at `step`, with its (N, n) counts and sums of bonuses."""
        row = step, np.rint(counts).astype(np.int64), bonuses.astype(np.float64)
        if self._in_last < self._width:
            self._rows[-1] = _joined(self._rows[-1], row)
            self._in_last += 1
            return
        if len(self._rows) == self.most:
            pairs = zip(self._rows[::2], self._rows[1::2], strict=True)
            self._rows = [_joined(first, second) for first, second in pairs]
            self._width *= 2
        self._rows.append(row)
        self._in_last = 1

    def visits(self) -> Visits:
        """Returns the record so far."""
        shape = (0, len(self._seeds), self._n)
        steps, counts, bonuses = zip(*self._rows, strict=True) if self._rows else ((), (), ())
        return Visits(
            self._name,
            self._seeds,
            np.asarray(steps, np.int64),
            np.stack(counts) if counts else np.zeros(shape, np.int64),
            np.stack(bonuses) if bonuses else np.zeros(shape),
            self._positions,
        )


def save_visits(visits: Visits, path: str | Path) -> Path:
    """Writes the record to an .npz file, atomically."""
    arrays = {name: getattr(visits, name) for name in ("steps", "counts", "bonuses", "positions")}
    arrays["bonuses"] = visits.bonuses.astype(np.float32)
    return write_npz(path, {"name": visits.name, "seeds": list(visits.seeds)}, arrays)


def load_visits(path: str | Path) -> Visits:
    """Reads the record that `save_visits` wrote."""
    header, arrays = read_npz(path, "save_visits")
    return Visits(header["name"], tuple(header["seeds"]), **arrays)


def _joined(
    first: tuple[int, np.ndarray, np.ndarray], second: tuple[int, np.ndarray, np.ndarray]
) -> tuple[int, np.ndarray, np.ndarray]:
    return second[0], first[1] + second[1], first[2] + second[2]
