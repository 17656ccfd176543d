"""Progress on a terminal: a live bar, or now and then a plain line where there is no terminal."""

from __future__ import annotations

import time
from typing import Any, Protocol, runtime_checkable

from derex.report.visits import short_steps

LINE_SECONDS = 30.0  # between plain lines


class LiveBar:
    """A bar with a status behind it, on stderr; where that is no terminal, lines at most every `LINE_SECONDS`."""

    def __init__(self, title: str, total: int, status: str):
        self._title, self._total, self._status = title, total, status
        self._spoken = time.monotonic()

    def __enter__(self) -> LiveBar:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._bar: Any = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[place]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[status]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bar.start()
        self._task = self._bar.add_task(self._title, total=self._total, status=self._status, place="")
        self.update(0)
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def update(self, done: int, status: str | None = None, place: str | None = None) -> None:
        """How much is done and what to say of it."""
        self._status = self._status if status is None else status
        place = f"{done}/{self._total}" if place is None else place
        self._bar.update(self._task, completed=done, status=self._status, place=place)

    def restart(self) -> None:
        """The next plain line is a whole wait away."""
        self._spoken = time.monotonic()

    def mention(self, text: str) -> None:
        """A plain line where there is no terminal, if the last one is long enough ago."""
        if not self._console.is_terminal and time.monotonic() - self._spoken > LINE_SECONDS:
            self.say(text)
            self.restart()

    def say(self, text: str) -> None:
        """A line above the bar, or a plain one."""
        self._console.print(f"{self._title}  {text}", highlight=False, soft_wrap=True, markup=False)


@runtime_checkable
class Progress(Protocol):
    """Who is told how far training is."""

    def compiled(self, seconds: float) -> None:
        """Compilation took so long; training begins."""
        ...

    def advanced(self, step: int, rate: float) -> None:
        """Each seed has come to this step, all of them together at so many steps a second."""
        ...

    def logged(self, lines: list[dict[str, Any]]) -> None:
        """An interval is over; its line for each seed."""
        ...


@runtime_checkable
class Noting(Protocol):
    """Who can be told other things too."""

    def noted(self, text: str) -> None:
        """Something that a person should know."""
        ...


class TrainProgress:
    """Steps, their rate, the time left, and what the last interval returned, on a live bar."""

    def __init__(self, title: str, steps: int, seeds: int):
        self._steps, self._seeds = steps, seeds
        self._bar = LiveBar(title, steps, "compiling")
        self._news = ""

    def __enter__(self) -> TrainProgress:
        self._bar.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.__exit__(*exception)

    def compiled(self, seconds: float) -> None:
        self._bar.update(0, f"compiled in {seconds:.0f} s")

    def advanced(self, step: int, rate: float) -> None:
        left = (self._steps - step) * self._seeds / max(rate, 1e-9)
        place = f"{short_steps(step)}/{short_steps(self._steps)}"
        self._bar.update(step, f"{short_steps(rate)} steps/s  {self._news}", place)
        self._bar.mention(f"{place}, {short_steps(rate)} steps/s, {left:.0f} s left  {self._news}")

    def logged(self, lines: list[dict[str, Any]]) -> None:
        self._news = news_of(lines)

    def noted(self, text: str) -> None:
        self._bar.say(text)


def news_of(lines: list[dict[str, Any]]) -> str:
    """Return, success and bonus of an interval, means over the seeds that have them, and the range of diag Σ̃."""
    names = ("return", "success", "bonus")
    found = {name: [line[name] for line in lines if line.get(name) is not None] for name in names}
    news = [f"{name} {sum(of) / len(of):.3g}" for name, of in found.items() if of]
    sigmas = [sigma for line in lines for sigma in line.get("spectrum", ())]
    return "  ".join([*news, f"Σ̃ {min(sigmas):.2f}–{max(sigmas):.2f}"] if sigmas else news)
