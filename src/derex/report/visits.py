"""How often numbered states were seen while an agent trained: a record, bounded however long the run, and its file.

Letters in shapes: I intervals, N seeds, n states.
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
    """Counts and sums of bonuses, interval by interval.

    Attributes:
        name: of the environment.
        seeds: the seeds.
        steps: (I,) environment steps of each seed at the end of each interval.
        counts: (I, N, n) how often each state was seen in it.
        bonuses: (I, N, n) the sum of the bonuses that it got.
        positions: (n, 2) row and column at which each state is drawn, several perhaps at one; (0, 2) if nowhere.
    """

    name: str
    seeds: tuple[int, ...]
    steps: np.ndarray
    counts: np.ndarray
    bonuses: np.ndarray
    positions: np.ndarray

    def __post_init__(self) -> None:
        expected = (len(self.steps), len(self.seeds))
        if self.counts.shape[:2] != expected or self.counts.shape != self.bonuses.shape:
            raise ValueError(
                f"counts and bonuses: expected shape {expected} and states, got {self.counts.shape} and "
                f"{self.bonuses.shape}."
            )

    def merged(self, parts: int) -> Visits:
        """The same run in so many parts, or as many as there are, of as equal a number of intervals as it goes."""
        parts = min(parts, len(self.steps))
        ends = np.array([len(self.steps) * part // parts for part in range(1, parts + 1)], dtype=int)
        starts = np.append(0, ends[:-1])
        counts, bonuses = (np.add.reduceat(sums, starts, axis=0) for sums in (self.counts, self.bonuses))
        return Visits(self.name, self.seeds, self.steps[ends - 1], counts, bonuses, self.positions)


class VisitLog:
    """Gathers the intervals of a run; where there would be too many, neighbours become one, all of the same width."""

    def __init__(self, name: str, seeds: tuple[int, ...], n: int, positions: np.ndarray | None):
        self._name, self._seeds, self._n = name, seeds, n
        self._positions = np.zeros((0, 2), np.int32) if positions is None else positions
        self.most = max(2, min(MOST_INTERVALS, MOST_NUMBERS // (len(seeds) * n)) // 2 * 2)
        self._width, self._in_last = 1, 1  # intervals in a row, and in the last row
        self._rows: list[tuple[int, np.ndarray, np.ndarray]] = []

    def add(self, step: int, counts: np.ndarray, bonuses: np.ndarray) -> None:
        """One more interval, which ended at `step`, with its (N, n) counts and sums of bonuses."""
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
        """All of them so far."""
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
    """Writes the record as an .npz file, whole or not at all."""
    arrays = {name: getattr(visits, name) for name in ("steps", "counts", "bonuses", "positions")}
    arrays["bonuses"] = visits.bonuses.astype(np.float32)
    return write_npz(path, {"name": visits.name, "seeds": list(visits.seeds)}, arrays)


def load_visits(path: str | Path) -> Visits:
    """The record that `save_visits` wrote."""
    header, arrays = read_npz(path, "save_visits")
    return Visits(header["name"], tuple(header["seeds"]), **arrays)


def short_steps(steps: float | int | np.integer) -> str:
    """950, 12.3k, 4.5M."""
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if steps >= unit:
            return f"{steps / unit:.3g}{suffix}"
    return f"{steps:.3g}"


def _joined(
    first: tuple[int, np.ndarray, np.ndarray], second: tuple[int, np.ndarray, np.ndarray]
) -> tuple[int, np.ndarray, np.ndarray]:
    return second[0], first[1] + second[1], first[2] + second[2]
