"""Progress of the study on a terminal: which run of how many, how far it is, and what the last interval gave."""

from __future__ import annotations

from typing import Any

from derex.report.visits import short_steps
from derex.training.progress import LiveBar, news_of


class RunsProgress:
    """A bar over the steps of all runs; to each run it is what is told how far training is."""

    def __init__(self, runs: int, steps: int, seeds: int):
        self._runs, self._steps, self._seeds, self._done = runs, steps, seeds, 0
        self._bar = LiveBar("derex reproduce exploration", runs * steps, "")
        self._label = self._news = ""

    def __enter__(self) -> RunsProgress:
        self._bar.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.__exit__(*exception)

    def start(self, label: str) -> None:
        """A run begins."""
        self._label, self._news = label, ""
        self._bar.restart()
        self._show(0, f"{label}: compiling")

    def compiled(self, seconds: float) -> None:
        self._show(0, f"{self._label}: compiled in {seconds:.0f} s")

    def advanced(self, step: int, rate: float) -> None:
        left = (self._steps - step) * self._seeds / max(rate, 1e-9)
        text = f"{self._label}: {short_steps(step)}/{short_steps(self._steps)}, {short_steps(rate)} steps/s"
        self._show(step, f"{text}  {self._news}")
        self._bar.mention(f"{text}, {max(left, 0.0):.0f} s left  {self._news}")

    def logged(self, lines: list[dict[str, Any]]) -> None:
        self._news = news_of(lines)

    def finish(self, result: str = "") -> None:
        """The run ended, with this result."""
        self._done += 1
        self._bar.say(f"{self._done}/{self._runs}  {self._label}: {result}")
        self._show(0)

    def skip(self) -> None:
        """It was not needed."""
        self._done += 1
        self._show(0)

    def _show(self, step: int, status: str | None = None) -> None:
        within = min(step, self._steps) if self._done < self._runs else 0
        self._bar.update(self._done * self._steps + within, status, f"{self._done}/{self._runs}")
