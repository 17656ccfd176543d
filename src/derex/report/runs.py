"""Files of the run folders of `derex train`, read without JAX: options, metrics, and visits to numbered states.

Runs may be finished, running, or cut short. Shapes: I intervals, N seeds, n states.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from derex.report.files import read_json, read_npz, write_npz

CONFIG, METRICS, COMMAND = "config.json", "metrics.jsonl", "train"
MOST_INTERVALS = 200  # of a record of visits
MOST_NUMBERS = 10_000_000  # in all its counts


@dataclass(frozen=True, eq=False)
class RunLog:
    """The options of one run and its metrics so far."""

    folder: Path  # the run's folder
    config: dict[str, Any]  # its resolved options
    lines: list[dict[str, Any]]  # of metrics.jsonl, as `read_lines` returns them
    damaged: int = 0  # number of lines that could not be read and were left out

    @property
    def env(self) -> str:
        """Name of the environment."""
        return str(self.config.get("env", "?"))

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.config.get("method", "?"))

    @property
    def form(self) -> str:
        """The method's form; empty if it has none."""
        return str(self.config.get("form", ""))

    @property
    def last_step(self) -> int:
        """The step of the last line."""
        return self.lines[-1]["step"]


def find_runs(paths: Sequence[Path]) -> list[RunLog]:
    """Finds the runs at or below the folders, each once; runs without a line of metrics are left out."""
    found: dict[Path, RunLog] = {}
    for path in paths:
        if not path.is_dir():
            raise ValueError(
                f"dirs: {path} is not a folder; give folders of derex train, or folders of them."
            )
        runs = {run.folder.resolve(): run for run in _search(path)}
        if not runs:
            raise ValueError(f"dirs: {path} contains no run of derex train.")
        found |= {place: run for place, run in runs.items() if place not in found}
    begun = [run for run in found.values() if run.lines]
    if not begun:
        raise ValueError(f"dirs: no run in {', '.join(map(str, paths))} has a line of metrics yet.")
    return begun


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Reads a metrics file, tolerating damage, as a plot of a running or killed run needs it.

    Where a step was written twice, by a run that resumed from an earlier checkpoint, the later line counts.

    Returns:
        The lines by step and seed, and the number of damaged ones that were left out.
    """
    lines, damaged = {}, 0
    for raw in split_lines(path):
        try:
            line = parse_line(raw)
            lines[int(line["step"]), int(line["seed"])] = line
        except (ValueError, TypeError):
            damaged += 1
    return [lines[place] for place in sorted(lines)], damaged


def split_lines(path: Path) -> list[bytes]:
    """Returns the complete lines of a file, without their ends; none if there is no file.

    What follows the last line end is left out: a running process may be writing it.
    """
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def parse_line(raw: bytes, required: Sequence[str] = ("step", "seed")) -> dict[str, Any]:
    """Parses one line of metrics; refuses what is not a JSON object or lacks one of the `required` keys."""
    line = json.loads(raw)
    if not isinstance(line, dict) or any(name not in line for name in required):
        text = raw[:80].decode(errors="replace")
        raise ValueError(f"expected {', '.join(required)} in the line, got {text}")
    return line


@dataclass(frozen=True, eq=False)
class Visits:
    """Visits and sums of bonuses of each state, by interval of training."""

    name: str  # of the environment
    seeds: tuple[int, ...]
    steps: np.ndarray  # (I,) environment steps of each seed at the end of each interval
    counts: np.ndarray  # (I, N, n) number of visits to each state in it
    bonuses: np.ndarray  # (I, N, n) sum of the bonuses given there
    positions: np.ndarray  # (n, 2) row and column of each state, possibly shared; (0, 2) if they have none

    def __post_init__(self) -> None:
        expected, shapes = (len(self.steps), len(self.seeds)), (self.counts.shape, self.bonuses.shape)
        if shapes[0][:2] != expected or shapes[0] != shapes[1]:
            raise ValueError(f"counts and bonuses: expected shape (*{expected}, n); got {shapes}.")

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
        self._rows: list[tuple[int, np.ndarray, np.ndarray]] = []  # step, counts, bonuses

    def add(self, step: int, counts: np.ndarray, bonuses: np.ndarray) -> None:
        """Adds an interval that ended at `step`, with its (N, n) counts and sums of bonuses."""
        counts, bonuses = np.rint(counts).astype(np.int64), bonuses.astype(np.float64)
        if self._in_last < self._width:
            _, earlier_counts, earlier_bonuses = self._rows[-1]
            self._rows[-1] = step, earlier_counts + counts, earlier_bonuses + bonuses
            self._in_last += 1
            return
        if len(self._rows) == self.most:
            half = self.visits().merged(self.most // 2)
            self._rows = list(zip(half.steps.tolist(), half.counts, half.bonuses, strict=True))
            self._width *= 2
        self._rows.append((step, counts, bonuses))
        self._in_last = 1

    def visits(self) -> Visits:
        """Returns the record so far."""
        steps, counts, bonuses = zip(*self._rows, strict=True) if self._rows else ((), (), ())
        shape = (len(steps), len(self._seeds), self._n)
        counts = np.array(counts, np.int64).reshape(shape)
        bonuses = np.array(bonuses, np.float64).reshape(shape)
        return Visits(self._name, self._seeds, np.array(steps, np.int64), counts, bonuses, self._positions)


def save_visits(visits: Visits, path: str | Path) -> Path:
    """Writes the record to an .npz file, atomically."""
    arrays = {name: getattr(visits, name) for name in ("steps", "counts", "bonuses", "positions")}
    arrays["bonuses"] = visits.bonuses.astype(np.float32)
    return write_npz(path, {"name": visits.name, "seeds": list(visits.seeds)}, arrays)


def load_visits(path: str | Path) -> Visits:
    """Reads the record that `save_visits` wrote."""
    header, arrays = read_npz(path, "save_visits")
    return Visits(header["name"], tuple(header["seeds"]), **arrays)


def _search(folder: Path) -> Iterator[RunLog]:
    """Yields the runs at or below the folder, in the order of their names; does not search inside runs."""
    for place, inside, _ in os.walk(folder):
        inside.sort()
        content = read_json(Path(place, CONFIG)) or {}
        if content.get("command") == COMMAND and isinstance(content.get("config"), dict):
            inside.clear()
            yield RunLog(Path(place), content["config"], *read_lines(Path(place, METRICS)))
