"""A training run: compiled pieces of the loop, and between them a look at the sums, a line for each seed, a file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from derex.envs.registry import make
from derex.envs.wrappers import make_streams
from derex.report.visits import VisitLog, save_visits
from derex.training.config import TrainConfig
from derex.training.folder import (
    METRICS,
    VISITS,
    VISITS_PICTURE,
    append_lines,
    claim_folder,
    write_config,
)
from derex.training.loop import Training
from derex.training.mesh import check_streams, data_mesh, placed
from derex.training.metrics import Reading, lines_of, read
from derex.training.progress import Progress

PIECE_SECONDS = 1.0  # between two signs of life; Ctrl-C waits as long
VISITS_SECONDS = 60.0  # between two writes of the visits


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    out: Path
    """its folder"""
    final: tuple[dict[str, Any], ...]
    """the last line of metrics of each seed"""
    compile_seconds: float
    seconds: float
    """without compilation"""


class Interval(NamedTuple):
    """One log interval of all seeds."""

    step: int
    """environment steps of each seed at its end"""
    times: dict[str, float]
    """`steps_per_second` of all seeds together, while advancing, and `seconds` since compilation"""
    reading: Reading


def train(config: TrainConfig, progress: Progress | None = None) -> TrainResult:
    """Train all seeds side by side; writes metrics, config and visits into `config.out` as it goes.

    Args:
        config: what to do.
        progress: who is told how far it is; None: nobody.
    """
    config = config.resolved()
    training = make_training(config)
    mesh = data_mesh()
    check_streams(config.streams, mesh)
    claim_folder(config.out, config.overwrite)
    write_config(config.out, config)
    watcher = _Nobody() if progress is None else progress

    spec, lines = training.streams.spec, []
    visits = _VisitFile(config, training) if spec.n_states else None
    run = _Run(training, config, mesh, watcher)
    try:
        for interval in run.intervals():
            lines = lines_of(interval.reading, spec, interval.step, config.all_seeds, interval.times)
            append_lines(config.out / METRICS, lines)
            if visits is not None:
                visits.add(interval)
            watcher.logged(lines)
    finally:
        if visits is not None:
            visits.write()
    if visits is not None:
        visits.draw()
    return TrainResult(config.out, tuple(lines), run.compile_seconds, run.seconds)


def make_training(config: TrainConfig) -> Training:
    """Environment, agent and representation of the config."""
    config = config.resolved()
    streams = make_streams(make(config.env), config.streams)
    return Training(streams, config.representation.build(), config.agent)


class _Run:
    """The state of all seeds on their way from interval to interval."""

    def __init__(self, training: Training, config: TrainConfig, mesh: Mesh, progress: Progress):
        self.training, self.config, self.mesh, self.progress = training, config, mesh, progress
        self.compile_seconds = self.seconds = 0.0
        self._done = 0  # iterations
        self._pace = 0.0  # seconds an iteration, as last measured

    def intervals(self) -> Iterator[Interval]:
        """Trains, and stops at the end of each interval with its sums."""
        self._begin()
        began = time.perf_counter()
        for end in self.config.log_iterations():
            iterations = end - self._done
            spent = self._advance_to(end)
            self.seconds = time.perf_counter() - began
            rate = iterations * self.config.iteration_steps * self.config.seeds / spent
            times = {"steps_per_second": rate, "seconds": self.seconds}
            yield Interval(end * self.config.iteration_steps, times, read(self.training, self.state))
            self._place(self.training.clear(self.state))

    def _begin(self) -> None:
        """Compiles; no iteration at all is enough for it, since their number is not compiled in."""
        start = time.perf_counter()
        self._place(self.training.begin_seeds(self.config.all_seeds))
        self._step(0)
        self.compile_seconds = time.perf_counter() - start
        self.progress.compiled(self.compile_seconds)

    def _advance_to(self, end: int) -> float:
        """Iterates, in pieces of about `PIECE_SECONDS`; the seconds that it took."""
        spent = 0.0
        while self._done < end:
            fitting = int(PIECE_SECONDS / self._pace) if self._pace else 1
            piece = min(max(fitting, 1), end - self._done)
            start = time.perf_counter()
            self._step(piece)
            elapsed = time.perf_counter() - start
            spent += elapsed
            self._done += piece
            self._pace = elapsed / piece
            steps = self.config.iteration_steps
            self.progress.advanced(self._done * steps, steps * self.config.seeds / self._pace)
        return spent

    def _step(self, iterations: int) -> None:
        self._place(self.training.advance(self.state, iterations))
        jax.block_until_ready(self.state)

    def _place(self, state: Any) -> None:
        """Always where `advance` was compiled for."""
        self.state = placed(self.training, state, self.mesh)


class _VisitFile:
    """visitation.npz, written now and then, and its picture."""

    def __init__(self, config: TrainConfig, training: Training):
        spec = training.streams.spec
        self._folder = config.out
        self._log = VisitLog(config.env, config.all_seeds, spec.n_states, spec.positions)
        self._written = time.monotonic()

    def add(self, interval: Interval) -> None:
        self._log.add(interval.step, interval.reading.visits, interval.reading.bonuses)
        if time.monotonic() - self._written > VISITS_SECONDS:
            self.write()

    def write(self) -> None:
        save_visits(self._log.visits(), self._folder / VISITS)
        self._written = time.monotonic()

    def draw(self) -> None:
        """The picture, where states have places."""
        from derex.report.visitation import visitation_figure

        visits = self._log.visits()
        if len(visits.positions):
            visitation_figure(visits, self._folder / VISITS_PICTURE)


class _Nobody:
    """Is told everything and says nothing."""

    def compiled(self, seconds: float) -> None: ...

    def advanced(self, step: int, rate: float) -> None: ...

    def logged(self, lines: list[dict[str, Any]]) -> None: ...
