"""Progress of a study: which fit of how many, time left, and what the last one reached."""

from __future__ import annotations

import time
from typing import Any

LINE_SECONDS = 30.0  # between lines within a fit, where there is no terminal


class StudyProgress:
    """A bar over the fits of a study; plain lines where there is no terminal."""

    def __init__(self, title: str, total: int):
        self._title, self._total, self._done = title, total, 0
        self._bar: Any = None
        self._label = ""

    def __enter__(self) -> StudyProgress:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[status]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bar.start()
        self._task = self._bar.add_task(self._title, total=self._total, status="sampling transitions")
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def start(self, label: str) -> None:
        """A fit begins."""
        self._label, self._spoken = label, time.monotonic()
        self._counted: tuple[int, float] | None = None  # from where, and since when, this run counts updates
        self._bar.update(self._task, status=label)

    def within(self, done: int, steps: int, news: str) -> None:
        """How far it is: updates done of how many, their rate, the time left, and what training says."""
        now = time.monotonic()
        text = f"{self._label}: update {done}/{steps}, "
        if self._counted is None:  # until now: compiling, and what an earlier run had done
            self._counted = done, now
        elif done > self._counted[0]:
            rate = (done - self._counted[0]) / max(now - self._counted[1], 1e-9)
            text += f"{rate:.1f}/s, {(steps - done) / rate:.0f} s left, "
        self._bar.update(self._task, status=text + news)
        if not self._console.is_terminal and now - self._spoken > LINE_SECONDS:
            self._console.print(f"{self._title}  {text}{news}", highlight=False, soft_wrap=True)
            self._spoken = now

    def finish(self, result: str) -> None:
        """It ended, with this result."""
        self._done += 1
        line = f"{self._title}  {self._done}/{self._total}  {self._label}: {result}"
        self._console.print(line, highlight=False, soft_wrap=True)
        self._bar.update(self._task, completed=self._done)

    def skip(self) -> None:
        """It was not needed."""
        self._done += 1
        self._bar.update(self._task, completed=self._done)
