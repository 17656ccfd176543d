"""How often numbered states were seen while an agent trained: a record, bounded however long the run, and its file.

Letters in shapes: I intervals, N seeds, n states.

The map of visits over time, and the mean bonus beside it, as a PNG file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from derex.progress import short_count
from derex.report import panels as palette
from derex.report.data import GridMap
from derex.report.figures import figure_title, new_figure, save
from derex.report.files import read_npz, write_npz
from derex.report.panels import TICK_SIZE, draw_map, heading

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


def _joined(
    first: tuple[int, np.ndarray, np.ndarray], second: tuple[int, np.ndarray, np.ndarray]
) -> tuple[int, np.ndarray, np.ndarray]:
    return second[0], first[1] + second[1], first[2] + second[2]


PARTS = 5
FLAT = 3.0  # maps wider than this, for their height, are stacked

_LEFT, _TOP, _BOTTOM, _GAP = 0.25, 0.72, 0.45, 0.25  # inches
_WORDS = {"visits": ("rare", "log scale", "often"), "mean bonus": ("low", "each part scaled", "high")}


def visitation_figure(visits: Visits, path: str | Path, parts: int = PARTS) -> Path:
    """Writes where an agent was in each part of its training, all seeds together, and the mean bonus there.

    Parts go from left to right, or from top to bottom where the map is flat. Visits share one logarithmic scale, each
    part's bonuses are scaled to [0, 1] by themselves; hatched states were not seen. States at one place are added up.

    Args:
        visits: the record; its states must have positions.
        path: file to write.
        parts: how many parts of equal length the run is cut into, at most.
    """
    if len(visits.positions) == 0 or len(visits.steps) == 0:
        raise ValueError("visits: expected states with positions and at least one interval.")
    merged = visits.merged(parts)
    grid, place = _map_of(visits)
    counts, bonuses = (
        np.stack([np.bincount(place, sums, grid.n) for sums in part.sum(axis=1)])
        for part in (merged.counts, merged.bonuses)
    )
    means = np.where(counts > 0, bonuses / np.maximum(counts, 1), np.nan)
    rows = [(_on_log_scale(counts), palette.VISITATION_STOPS, "visits")]
    if np.nanmin(means) < np.nanmax(means):
        scaled = np.stack([palette.normalise(part) for part in means])
        rows.append((scaled, palette.BONUS_STOPS, "mean bonus"))

    figure, axes = _panels(grid, len(merged.steps), len(rows))
    for (values, stops, name), panels in zip(rows, axes, strict=True):
        for number, ax in enumerate(panels):
            image = draw_map(ax, grid, values[number], stops)
            span = f"to step {short_count(merged.steps[number])}"
            heading(ax, f"{name} {span}" if number == 0 else span)
        _bar(figure, panels[-1] if _is_flat(grid) else panels[0], image, name)
    seeds = f"{len(visits.seeds)} seeds together" if len(visits.seeds) > 1 else f"seed {visits.seeds[0]}"
    figure_title(figure, f"{visits.name}, {seeds}", left=_LEFT)
    return save(figure, path)


def _map_of(visits: Visits) -> tuple[GridMap, np.ndarray]:
    """The map on which states are drawn, and the cell of each state."""
    cells, place = np.unique(visits.positions, axis=0, return_inverse=True)
    cells = cells - cells.min(axis=0)
    height, width = cells.max(axis=0) + 1
    drawn = np.full((height, width), "#")
    drawn[cells[:, 0], cells[:, 1]] = "."
    return GridMap(visits.name, tuple("".join(row) for row in drawn), cells), place.reshape(-1)


def _on_log_scale(counts: np.ndarray) -> np.ndarray:
    """Each part's share of visits, on one logarithmic scale in [0, 1]; NaN where there were none."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return palette.normalise(np.where(share > 0, np.log(np.where(share > 0, share, 1.0)), np.nan))


def _is_flat(grid: GridMap) -> bool:
    height, width = grid.shape
    return width > FLAT * height


def _panels(grid: GridMap, parts: int, kinds: int) -> tuple[Figure, list[list[Axes]]]:
    """Axes in the map's proportions, for each kind one for each part."""
    height, width = grid.shape
    flat = _is_flat(grid)
    across, down = (kinds, parts) if flat else (parts, kinds)
    w = float(np.clip(0.16 * width, 3.0, 6.0)) if flat else 2.1
    h = max(w * height / width, 0.3)
    row_gap = 0.36 if flat else 0.72
    size = (
        2 * _LEFT + across * w + (across - 1) * _GAP,
        _TOP + down * h + (down - 1) * row_gap + _BOTTOM,
    )
    figure = new_figure(*size, layout=None)

    def at(column: int, row: int) -> Axes:
        x, y = _LEFT + column * (w + _GAP), size[1] - _TOP - h - row * (h + row_gap)
        return figure.add_axes((x / size[0], y / size[1], w / size[0], h / size[1]))

    places = [[(kind, part) if flat else (part, kind) for part in range(parts)] for kind in range(kinds)]
    return figure, [[at(*place) for place in row] for row in places]


def _bar(figure: Figure, ax: Axes, image: AxesImage, name: str) -> None:
    """A thin colour bar below a panel."""
    height = figure.get_size_inches()[1]
    box = ax.get_position()
    bar_axes = figure.add_axes((box.x0, box.y0 - 0.16 / height, box.width, 0.07 / height))
    bar = figure.colorbar(image, cax=bar_axes, orientation="horizontal", ticks=[0, 0.5, 1])
    bar.outline.set_visible(False)
    bar_axes.set_xticklabels(_WORDS[name])
    bar_axes.tick_params(labelsize=TICK_SIZE, length=0, pad=2, labelcolor=palette.MUTED)
    low, _, high = bar_axes.get_xticklabels()
    low.set_horizontalalignment("left")
    high.set_horizontalalignment("right")
