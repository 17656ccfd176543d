"""Loggers of metrics besides metrics.jsonl, TensorBoard and Weights & Biases (both extras), and progress on a bar."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from derex._text import hint, install_command
from derex.progress import ProgressBar
from derex.report.files import write_atomically

Lines = list[dict[str, Any]]

MAX_LIST_ITEMS = 16  # of a list, such as the spectrum, that are logged


class Loggers:
    """Any number of loggers as one: of each `log(lines)` and `close()` are called."""

    def __init__(self, members: Sequence[Any] = ()):
        self._members = tuple(members)

    def log(self, lines: Lines) -> None:
        """Logs the lines of an interval, one per seed."""
        for member in self._members:
            member.log(lines)

    def close(self) -> None:
        """Closes all loggers."""
        for member in self._members:
            member.close()


class TensorBoard:
    """Writes event files to DIR/tensorboard, a folder for each seed, so that TensorBoard overlays the seeds."""

    def __init__(self, folder: Path, options: dict[str, Any], step: int):
        # Events that an earlier process wrote after the step from which the run resumes are purged.
        self._folder, self._purge_step = folder / "tensorboard", step + 1 if step else 0
        self._writers: dict[int, Any] = {}

    def log(self, lines: Lines) -> None:
        make = _import("tensorboard").SummaryWriter
        for line in lines:
            seed = line["seed"]
            if seed not in self._writers:
                folder = str(self._folder / f"seed-{seed}")
                self._writers[seed] = make(logdir=folder, purge_step=self._purge_step)
            for name, value in flatten_line(line):
                self._writers[seed].add_scalar(name, value, line["step"])
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class WeightsAndBiases:
    """Logs to a W&B run in DIR/wandb; offline unless WANDB_MODE is set, for a later `wandb sync`."""

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
        numbers = {
            f"seed-{line['seed']}/{name}": value for line in lines for name, value in flatten_line(line)
        }
        if lines:
            self._run.log(numbers, step=lines[0]["step"])

    def close(self) -> None:
        self._run.finish()


LOGGERS: dict[str, tuple[Callable[[Path, dict[str, Any], int], Any], str]] = {
    "tensorboard": (TensorBoard, "tensorboardX"),
    "wandb": (WeightsAndBiases, "wandb"),
}
"""what makes a logger from folder, options and step; and its library"""


def check_loggers(names: Sequence[str]) -> None:
    """Refuses unknown loggers, and those whose library is not installed."""
    for name in names:
        if name not in LOGGERS:
            raise ValueError(
                f"loggers: there is no {name!r}.{hint(name, LOGGERS)} There are: {', '.join(LOGGERS)}."
            )
        _import(name)


def make_loggers(names: Sequence[str], folder: str | Path, config: dict[str, Any], step: int = 0) -> Loggers:
    """Makes the loggers of a run from its options, as in config.json; `step`: from which it resumes, 0 if it starts."""
    check_loggers(names)
    return Loggers([LOGGERS[name][0](Path(folder), config, step) for name in dict.fromkeys(names)])


def flatten_line(line: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields the finite numbers of a line by name: of lists the first items, of dicts as tasks/catch/return."""
    for name, value in line.items():
        if isinstance(value, list):
            value = {f"{place:02d}": part for place, part in enumerate(value[:MAX_LIST_ITEMS])}
        if isinstance(value, dict):
            yield from flatten_line(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and math.isfinite(value) and name not in ("step", "seed"):
            yield prefix + name, float(value)


def _import(name: str) -> Any:
    """Imports the library of a logger."""
    _, library = LOGGERS[name]
    try:
        return import_module(library)
    except ImportError as error:
        raise ValueError(
            f"loggers: {name} needs {library}, which is not installed: {install_command(name)}"
        ) from error


def _wandb_id(folder: Path, step: int) -> str:
    """The W&B id of a run: the same when it resumes, a new one when it starts."""
    path = folder / "wandb" / "derex-run-id"
    if step and path.exists():
        return path.read_text(encoding="utf-8").strip()
    identity = uuid.uuid4().hex[:12]
    write_atomically(path, identity.encode())
    return identity


@runtime_checkable
class TrainingProgress(Protocol):
    """Receives the progress of a training run.

    Two methods are optional: `compiling()` is called before compilation starts; `noted(text)` receives messages.
    """

    def compiled(self, seconds: float) -> None:
        """Compilation took this long; training starts."""
        ...

    def advanced(self, step: int, rate: float) -> None:
        """Every seed has reached this step; `rate` is environment steps per second over all seeds."""
        ...

    def logged(self, lines: Lines) -> None:
        """A log interval ended, with one line of metrics per seed."""
        ...


class TrainingBar:
    """Shows a run of `seeds` × `steps` on an entered bar: steps, their rate, time left, the last line of metrics."""

    def __init__(self, bar: ProgressBar, steps: int, seeds: int = 1):
        self._bar, self._steps, self._seeds = bar, steps, seeds
        self._news = ""

    def compiling(self) -> None:
        self._bar.announce("compiling, usually 10 to 60 s, less if the program is cached")

    def compiled(self, seconds: float) -> None:
        self._bar.show(f"compiled in {seconds:.0f} s")

    def advanced(self, step: int, rate: float) -> None:
        self._bar.update(step, self._steps, self._news, rate=rate, copies=self._seeds)

    def logged(self, lines: Lines) -> None:
        self._news = summarise_lines(lines)

    def noted(self, text: str) -> None:
        self._bar.print(text)


def summarise_lines(lines: Lines) -> str:
    """Return, success and bonus of an interval, means over the seeds that have them, and the range of diag Σ̃."""
    names = ("return", "success", "bonus")
    found = {name: [line[name] for line in lines if line.get(name) is not None] for name in names}
    news = [f"{name} {sum(values) / len(values):.3g}" for name, values in found.items() if values]
    sigmas = [sigma for line in lines for sigma in line.get("spectrum", ())]
    return "  ".join([*news, f"Σ̃ {min(sigmas):.2f}–{max(sigmas):.2f}"] if sigmas else news)
