"""Progress of long work on stderr: a live bar on a terminal or in a notebook, else a plain line every 30 seconds.

with ProgressBar("derex reproduce pomdp", tasks=12) as bar:
    bar.start("p = 0, seed 1")           # the first of twelve fits
    bar.update(100, 2_000, "loss 0.1")   # how far it is
    bar.finish("accuracy 0.93")          # a line that stays
"""

from __future__ import annotations

import time
from typing import Any, SupportsFloat

LINE_SECONDS = 30.0  # between plain lines


class ProgressBar:
    """A bar over tasks, such as the fits of a study, and over the steps of the current task.

    Args:
        title: shown in front of the bar and of every line.
        tasks: number of tasks; 1 for a single fit or run.
        enabled: if False, nothing is shown.
    """

    def __init__(self, title: str, tasks: int = 1, *, enabled: bool = True):
        self._title, self._tasks, self._enabled = title, tasks, enabled
        self._finished = 0
        self.label = ""
        """the current task"""
        self._first: tuple[int, float] | None = None  # steps and time at the first update of the task
        self._last_line = time.monotonic()

    def __enter__(self) -> ProgressBar:
        if self._enabled:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._console = Console(stderr=True)
            self._live = self._console.is_terminal or self._console.is_jupyter
            self._bar: Any = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[count]}"),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[status]}"),
                console=self._console,
                disable=not self._live,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._tasks, count="", status="")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._enabled:
            self._bar.stop()

    def start(self, label: str = "") -> None:
        """Starts the next task."""
        self.label, self._first = label, None
        self._last_line = time.monotonic()
        self.show("compiling")

    def announce(self, status: str) -> None:
        """Shows the status behind the bar; of a single task also as a plain line, where there is no live bar."""
        self.show(status)
        if self._enabled and not self._live and self._tasks == 1:
            self.print(self._labelled(status))

    def update(
        self, done: int, total: int, news: str = "", *, rate: float | int | None = None, copies: int = 1
    ) -> None:
        """Shows how far the current task is.

        Args:
            done: steps done.
            total: steps of the task.
            news: latest numbers.
            rate: steps per second of all copies together; None: measured since the first update of the task, so
                that compilation is left out.
            copies: how often each step is taken, such as the number of seeds.
        """
        now = time.monotonic()
        if rate is None:
            first, since = self._first = self._first or (done, now)
            rate = copies * (done - first) / max(now - since, 1e-9)
        count = f"{short_count(done)}/{short_count(total)}"
        left = f", {max(total - done, 0) * copies / rate:.0f} s left" if rate else ""
        speed = f"{short_count(rate)} steps/s" if rate else ""
        line = "  ".join(filter(None, (", ".join(filter(None, (count, speed))) + left, news)))
        if self._tasks == 1:  # the bar itself has the count and the time left
            self.show("  ".join(filter(None, (speed, news))), done / max(total, 1), count)
        else:
            self.show(line, done / max(total, 1))
        if self._enabled and not self._live and now - self._last_line > LINE_SECONDS:
            self.print(self._labelled(line))
            self._last_line = now

    def finish(self, result: str = "") -> None:
        """Ends the current task and prints its result, if any; without a result the task was not needed."""
        self._finished += 1
        if result:
            count = f"{self._finished}/{self._tasks}  " if self._tasks > 1 else ""
            self.print(count + self._labelled(result))
        self.label = ""
        self.show("")

    def show(self, status: str, fraction: float | int = 0.0, count: str | None = None) -> None:
        """Sets the text behind the bar, and which fraction of the current task is done."""
        if self._enabled:
            done = self._finished + min(fraction, 1.0) if self._finished < self._tasks else self._tasks
            count = (f"{self._finished}/{self._tasks}" if self._tasks > 1 else "") if count is None else count
            self._bar.update(self._task, completed=done, count=count, status=self._labelled(status))

    def print(self, text: str) -> None:
        """Prints a line above the bar."""
        if self._enabled:
            self._console.print(f"{self._title}  {text}", highlight=False, soft_wrap=True, markup=False)

    def _labelled(self, text: str) -> str:
        return ": ".join(filter(None, (self.label, text)))


def short_count(number: SupportsFloat) -> str:
    """Formats a number with three digits and a unit: 950, 12.3k, 4.5M, 2B."""
    number = float(number)
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{suffix}"
    return f"{number:.3g}"
