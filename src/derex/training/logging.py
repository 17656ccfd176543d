"""Where the lines of metrics go besides metrics.jsonl: TensorBoard, Weights & Biases. Both are extras.

loggers = make_loggers(("tensorboard",), folder, options, step)
loggers.log(lines)      # of a log interval, one line for each seed
loggers.close()

Progress on a terminal: a live bar, or now and then a plain line where there is no terminal.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from derex._text import hint, install_command
from derex.report.files import write_atomically
from derex.report.visits import short_steps

Lines = list[dict[str, Any]]

MOST_PARTS = 16  # of a list, such as the spectrum, that are logged


@runtime_checkable
class Logger(Protocol):
    """Somebody who is told every line."""

    def log(self, lines: Lines) -> None:
        """The lines of an interval, one for each seed."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


class Loggers:
    """Several of them as one; none is fine too."""

    def __init__(self, members: Sequence[Logger] = ()):
        self._members = tuple(members)

    def log(self, lines: Lines) -> None:
        for member in self._members:
            member.log(lines)

    def close(self) -> None:
        for member in self._members:
            member.close()


class TensorBoard:
    """Event files in DIR/tensorboard, a folder for each seed, so that TensorBoard draws them over each other."""

    def __init__(self, folder: Path, options: dict[str, Any], step: int):
        # What an earlier process wrote beyond the step from which the run goes on is to be forgotten.
        self._open: Callable[[int], Any] = lambda seed: _import("tensorboard").SummaryWriter(
            logdir=str(folder / "tensorboard" / f"seed-{seed}"), purge_step=step + 1 if step else 0
        )
        self._writers: dict[int, Any] = {}

    def log(self, lines: Lines) -> None:
        for line in lines:
            seed = line["seed"]
            if seed not in self._writers:
                self._writers[seed] = self._open(seed)
            for name, value in numbers_of(line):
                self._writers[seed].add_scalar(name, value, line["step"])
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class WeightsAndBiases:
    """A run of W&B in DIR/wandb; offline unless WANDB_MODE says otherwise, to be sent later by `wandb sync`."""

    def __init__(self, folder: Path, options: dict[str, Any], step: int):
        self._run = _import("wandb").init(
            project="derex",
            name=folder.name,
            id=_wandb_id(folder, step),
            resume="allow",
            dir=str(folder),
            config=options,
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def log(self, lines: Lines) -> None:
        numbers = {f"seed-{line['seed']}/{name}": value for line in lines for name, value in numbers_of(line)}
        if lines:
            self._run.log(numbers, step=lines[0]["step"])

    def close(self) -> None:
        self._run.finish()


class _Kind(NamedTuple):
    build: Callable[[Path, dict[str, Any], int], Logger]
    library: str


LOGGERS: dict[str, _Kind] = {
    "tensorboard": _Kind(TensorBoard, "tensorboardX"),
    "wandb": _Kind(WeightsAndBiases, "wandb"),
}


def check_loggers(names: Sequence[str]) -> None:
    """Refuses a logger that there is not, or whose library is not installed; before a run begins."""
    for name in names:
        if name not in LOGGERS:
            raise ValueError(
                f"loggers: there is no {name!r}.{hint(name, LOGGERS)} There are: {', '.join(LOGGERS)}."
            )
        _import(name)


def make_loggers(names: Sequence[str], folder: str | Path, config: dict[str, Any], step: int = 0) -> Loggers:
    """The loggers of these names, in a run's folder.

    Args:
        names: of `LOGGERS`; none is fine.
        folder: of the run.
        config: its resolved options, as config.json has them.
        step: from which the run goes on; 0: it begins.
    """
    check_loggers(names)
    return Loggers([LOGGERS[name].build(Path(folder), config, step) for name in dict.fromkeys(names)])


def numbers_of(line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a line by name, the first parts of a list one by one; what is None or NaN is left out.

    Those of a dict have its name in front: tasks/catch/return.
    """
    for name, value in line.items():
        if name not in ("step", "seed"):
            yield from _flattened(name, value)


def _flattened(name: str, value: Any) -> Iterator[tuple[str, float]]:
    parts: dict[str, Any] = value if isinstance(value, dict) else {}
    if isinstance(value, list):
        parts = {f"{place:02d}": part for place, part in enumerate(value[:MOST_PARTS])}
    for inner, part in parts.items():
        yield from _flattened(f"{name}/{inner}", part)
    if isinstance(value, int | float) and math.isfinite(value):
        yield name, float(value)


def _import(name: str) -> Any:
    """The library of a logger."""
    library = LOGGERS[name].library
    try:
        return import_module(library)
    except ImportError as error:
        raise ValueError(
            f"loggers: {name} needs {library}, which is not installed: {install_command(name)}"
        ) from error


def _wandb_id(folder: Path, step: int) -> str:
    """The same for a run that goes on, another for one that begins."""
    path = folder / "wandb" / "derex-run-id"
    if step and path.exists():
        return path.read_text(encoding="utf-8").strip()
    identity = uuid.uuid4().hex[:12]
    write_atomically(path, identity.encode())
    return identity


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
