"""visitation.npz of a run, written now and then; it goes on where a checkpoint left it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from derex.report.visits import VisitLog, save_visits
from derex.training.config import TrainConfig
from derex.training.folder import VISITS, VISITS_PICTURE
from derex.training.metrics import Reading
from derex.types import EnvironmentSpec

VISITS_SECONDS = 60.0  # between two writes


class VisitFile:
    """The record of visits and its files; where states have no numbers, nothing."""

    def __init__(
        self, config: TrainConfig, spec: EnvironmentSpec, saved: dict[str, np.ndarray] | None = None
    ):
        """`saved` is what `arrays` gave."""
        self._folder: Path = config.out
        self._log: ContinuedLog | None = None
        if spec.n_states:
            self._log = ContinuedLog(config.env, config.all_seeds, spec.n_states, spec.positions)
            self._log.go_on_from(saved or {})
        self._written = time.monotonic()

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps of it."""
        return {} if self._log is None else self._log.arrays()

    def add(self, step: int, reading: Reading) -> None:
        """One more interval, which ended at `step`."""
        if self._log is None:
            return
        self._log.add(step, reading.visits, reading.bonuses)
        if time.monotonic() - self._written > VISITS_SECONDS:
            self.write()

    def write(self) -> None:
        """The file."""
        if self._log is not None:
            save_visits(self._log.visits(), self._folder / VISITS)
            self._written = time.monotonic()

    def draw(self) -> None:
        """The picture, where states have places."""
        if self._log is None:
            return
        from derex.report.visitation import visitation_figure

        visits = self._log.visits()
        if len(visits.positions):
            visitation_figure(visits, self._folder / VISITS_PICTURE)


class ContinuedLog(VisitLog):
    """A log that can be put into arrays, whole, and taken out again."""

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it; copies."""
        visits = self.visits()
        widths = np.array([self._width, self._in_last])
        return {"steps": visits.steps, "counts": visits.counts, "bonuses": visits.bonuses, "widths": widths}

    def go_on_from(self, arrays: dict[str, Any]) -> None:
        """As it was when `arrays` was called."""
        if arrays:
            rows = zip(arrays["steps"], arrays["counts"], arrays["bonuses"], strict=True)
            self._rows = [(int(step), counts, bonuses) for step, counts, bonuses in rows]
            self._width, self._in_last = (int(width) for width in arrays["widths"])
