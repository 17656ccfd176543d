"""A progress bar for fits."""

from __future__ import annotations

import time
from typing import Any


class FitProgress:
    """Shows step, rate, time left, loss and off-diagonal; shows nothing when not enabled."""

    def __init__(self, steps: int, enabled: bool, label: str = "fit"):
        self._steps, self._enabled, self._label = steps, enabled, label
        self._bar: Any = None

    def __enter__(self) -> FitProgress:
        if self._enabled:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[status]}"),
            )
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._steps, status="compiling")
            self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, loss: float, trace: float, off_diagonal: float) -> None:
        """Say where training stands after `done` steps."""
        if self._bar is None:
            return
        rate = done / (time.perf_counter() - self._start)
        status = f"loss {loss:+.4f}  tr Σ̃ {trace:.3f}  off-diagonal {off_diagonal:.3f}  {rate:.0f}/s"
        self._bar.update(self._task, completed=done, status=status)
