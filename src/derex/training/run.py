"""SIGTERM and Ctrl-C: a run that is asked to stop does so after the update it is in, with a checkpoint.

A training run: compiled pieces of the loop; between them a look at the sums, lines of metrics, a checkpoint.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np

from derex.compilation import enable_compilation_cache
from derex.envs.host import WorkerFailed
from derex.progress import ProgressBar
from derex.report.runs import read_lines
from derex.report.statistics import final_score
from derex.training.checkpoints import VISITS_PART, Snapshot, copy_arrays, load_arrays, load_state
from derex.training.config import TrainConfig
from derex.training.factory import make_loop, make_training
from derex.training.folder import (
    METRICS,
    add_event,
    append_lines,
    check_folder,
    full_disk_error,
    holds_run,
    is_disk_full,
    lock_folder,
    make_folder,
    plain_options,
    read_metrics,
)
from derex.training.learner import Training, check_streams, data_mesh, placed
from derex.training.logging import TrainingBar, TrainingProgress, check_loggers, make_loggers
from derex.training.metrics import VisitRecorder, check_skipped_updates, make_lines, read
from derex.training.preflight import (
    RunPlan,
    check_disk,
    check_memory,
    count_bytes,
    explain_out_of_memory,
    limit_blas_threads,
    plan_run,
    prepare_folder,
    require_determinism,
)
from derex.training.saving import Saver


class Stopped(KeyboardInterrupt):
    """The run was stopped by a signal and has saved its state.

    Args:
        message: at which step it stopped, and how to resume it.
        signal_name: "SIGTERM" or "Ctrl-C".
    """

    def __init__(self, message: str, signal_name: str = "Ctrl-C"):
        super().__init__(message)
        self.exit_code = 0 if signal_name == "SIGTERM" else 130
        """of `derex train`: a scheduler's SIGTERM is no failure; after Ctrl-C, `train && eval` must not go on"""


class StopRequest:
    """While it is open, SIGTERM and the first Ctrl-C are noted; a second Ctrl-C interrupts as ever."""

    def __init__(self) -> None:
        self.asked = ""
        """what asked; empty: nothing"""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # others cannot have handlers
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)


PIECE_SECONDS = 1.0  # between two signs of life; Ctrl-C waits as long


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    out: Path
    """its folder"""
    final: tuple[dict[str, Any], ...]
    """the last line of metrics of each seed"""
    scores: dict[str, dict[int, float]]
    """return, and success where it is defined, of each seed: means over the last 2 % of the steps"""
    compile_seconds: float
    seconds: float
    """without compilation, of all parts of the run"""
    advancing_seconds: float
    """of them, in the compiled loop, since it was last resumed; the rest is looking, logging and saving"""
    finished_before: bool = False
    """whether there was nothing left to do"""


def train(config: TrainConfig, progress: TrainingProgress | None = None) -> TrainResult:
    """Train all seeds side by side; writes metrics, config, checkpoints and visits into `config.out` as it goes.

    A folder that holds this run already is gone on with: from its last good checkpoint, for as many steps as are
    asked for in all.

    Args:
        config: what to do.
        progress: who is told how far it is; None: nobody.

    Raises:
        Stopped: by SIGTERM or Ctrl-C, once all is saved.
        DivergedError: too many updates in a row had numbers that are not finite.
        WorkerFailed: a worker had to be started again too often; all is saved.
        OSError: the folder cannot be used, holds another run, its disk is full, or there is too little memory.
    """
    enable_compilation_cache()
    if config.deterministic:
        require_determinism()
    if progress is None:
        progress = TrainingBar(ProgressBar("", enabled=False), int(config.steps))
    with explain_out_of_memory():
        return _train(config, progress)


def _train(config: TrainConfig, progress: TrainingProgress) -> TrainResult:
    training, size = _rehearse(config)
    check_memory(size)
    check_loggers(config.loggers)
    check_streams(config.streams, data_mesh())
    check_folder(config.out)
    if config.overwrite or not holds_run(config.out):
        check_disk(config.out, size)
    make_folder(config.out)
    with lock_folder(config.out):
        plan = plan_run(config)
        say = _notifier(progress)
        for problem in plan.found.problems if plan.found else ():
            say(f"damaged checkpoint: {problem}. The one before it is used.")
        if plan.finished:
            say(f"finished already, at step {plan.done * plan.config.iteration_steps}; more steps: --steps")
            return _earlier_result(plan)
        if plan.missing:
            say(f"{plan.missing}; it goes on without them")
        check_disk(config.out, size)
        prepare_folder(plan)
        with StopRequest() as stop, limit_blas_threads():
            return _Run(plan, training, progress, say, stop).run()


def _rehearse(config: TrainConfig) -> tuple[Training, int]:
    """Builds the training and traces its initial state: mistakes are found before anything is written.

    Returns:
        The training, and the size of its state in bytes.
    """
    training = make_training(config)
    state = jax.eval_shape(lambda: training.init_seeds(config.all_seeds))
    try:
        json.dumps(plain_options(config), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"config: an option cannot be written down in JSON: {error}.") from error
    return training, count_bytes(state)


class _Run:
    """The state of all seeds on their way to the end of the run."""

    def __init__(
        self,
        plan: RunPlan,
        training: Training,
        progress: TrainingProgress,
        say: Callable[[str], None],
        stop: StopRequest,
    ):
        self.config, self.progress, self.say, self.stop = plan.config, progress, say, stop
        self.training = training
        self.loop = make_loop(self.training, self.config, self._note)
        self.mesh = data_mesh()
        self.saver = Saver(
            self.config.out, self.config.keep, int(plan.found.path.name) if plan.found else None
        )
        self.compile_seconds = self.advancing_seconds = 0.0
        self._pace = 0.0  # seconds an iteration, as last measured
        try:
            self._load(plan)
        except BaseException:
            self.loop.close()
            if hasattr(self, "loggers"):
                self.loggers.close()
            with suppress(OSError):  # what went wrong first is what is told
                self.saver.wait()
            raise

    def _load(self, plan: RunPlan) -> None:
        """The state and all else that the run has come to so far."""
        start = time.perf_counter()
        getattr(self.progress, "compiling", lambda: None)()
        saved: dict[str, Any] = {}
        visits = None
        if plan.found is None:
            self._place(self.training.init_seeds(self.config.all_seeds))
        else:
            saved = plan.found.manifest["progress"]
            visits = load_arrays(plan.found)[VISITS_PART]
            self.state = load_state(plan.found, self.training, self.config)
            self.say(f"goes on from step {plan.found.path.name}")
        self._skipped_before = np.array(self.state.skips.most)
        self.visits = VisitRecorder(self.config, self.training.streams.spec, visits)
        self.done, self.logged = saved.get("iterations", 0), saved.get("logged", 0)
        self._seconds_before, self._interval_seconds = (
            saved.get("seconds", 0.0),
            saved.get("interval_seconds", 0.0),
        )
        begun = self.logged * self.config.iteration_steps
        self.loggers = make_loggers(self.config.loggers, self.config.out, plain_options(self.config), begun)
        self.score: float | None = None if plan.found is None else plan.found.manifest["score"]
        self.lines: list[dict[str, Any]] = []
        self._began = self._saved = time.perf_counter()
        if plan.found is None:
            self.saver.save(self._snapshot())  # while the loop compiles
        self._compile(start)

    def _compile(self, start: float) -> None:
        """No iteration at all is enough, since their number is not compiled in; what reads lines is compiled too."""
        self._step(0)
        read(self.training, self.state)
        self.saver.wait()
        self._began = self._saved = time.perf_counter()
        self.compile_seconds = self._began - start
        self.progress.compiled(self.compile_seconds)

    @property
    def seconds(self) -> float:
        """Of the whole run, without compilation."""
        return self._seconds_before + time.perf_counter() - self._began

    @property
    def step(self) -> int:
        """Environment steps of each seed."""
        return self.done * self.config.iteration_steps

    def run(self) -> TrainResult:
        """Trains; every file is as it should be whenever it stops."""
        try:
            self.visits.write()
            while self.done < self.config.iterations and not self.stop.asked:
                self._advance()
                if self.done % self.config.log_interval == 0:
                    self._log()
                    self.logged, self._interval_seconds = self.done, 0.0
                if time.perf_counter() - self._saved >= self.config.save_every:
                    self._save()
            return self._stopped() if self.done < self.config.iterations else self._finished()
        except WorkerFailed:
            self._save()
            self.saver.wait()
            raise
        except BaseException as error:
            for tidy in (self.visits.write, self.saver.wait):
                with suppress(OSError):  # what went wrong first is what is told
                    tidy()
            if isinstance(error, OSError) and is_disk_full(error):
                raise full_disk_error(self.config.out) from error
            raise
        finally:
            self.loop.close()
            self.loggers.close()

    def _stopped(self) -> TrainResult:
        self._save()
        self.saver.wait()
        add_event(self.config.out, "stopped", by=self.stop.asked, step=self.step)
        raise Stopped(
            f"stopped by {self.stop.asked} at step {self.step}, and saved. The same command goes on from there, or: "
            f"derex train --resume {self.config.out}",
            self.stop.asked,
        )

    def _finished(self) -> TrainResult:
        snapshot = (
            self._snapshot()
        )  # without the line of an interval that is not whole: more steps would complete it
        if self.logged < self.done:
            self._log()
        self.visits.write()
        self.visits.draw()
        self.saver.save(snapshot)
        self.saver.wait()
        scores = compute_scores(read_metrics(self.config.out))
        times = self.compile_seconds, self.seconds, self.advancing_seconds
        return TrainResult(self.config.out, tuple(self.lines), scores, *times)

    def _advance(self) -> None:
        """Iterates for about `PIECE_SECONDS`, at most to the next line."""
        fitting = int(PIECE_SECONDS / self._pace) if self._pace else 1
        fitting = min(fitting, self.loop.longest or fitting)
        piece = min(max(fitting, 1), self.config.next_line(self.done) - self.done)
        start = time.perf_counter()
        self._step(piece)
        elapsed = time.perf_counter() - start
        self.done += piece
        self._pace = elapsed / piece
        self._interval_seconds += elapsed
        self.advancing_seconds += elapsed
        seeds, most = self.config.all_seeds, self.config.max_skipped
        check_skipped_updates(self.state.skips, self.step, seeds, most, self._skipped_before)
        self.progress.advanced(self.step, self.config.iteration_steps * self.config.seeds / self._pace)

    def _log(self) -> None:
        """A line for each seed, of what was added up since the last."""
        steps = (self.done - self.logged) * self.config.iteration_steps * self.config.seeds
        times = {"steps_per_second": steps / self._interval_seconds, "seconds": self.seconds}
        times |= self.loop.numbers()
        reading = read(self.training, self.state)
        spec = self.training.streams.spec
        self.lines = make_lines(reading, spec, self.step, self.config.all_seeds, times)
        append_lines(self.config.out / METRICS, self.lines)
        self.loggers.log(self.lines)
        self.visits.add(self.step, reading)
        self.score = _score(self.lines, self.score)
        self.progress.logged(self.lines)

    def _save(self) -> None:
        self.saver.save(self._snapshot())
        self._saved = time.perf_counter()

    def _snapshot(self) -> Snapshot:
        progress = {
            "iterations": self.done,
            "logged": self.logged,
            "seconds": self.seconds,
            "interval_seconds": self._interval_seconds,
        }
        state, dtypes = copy_arrays(self.state)
        options = plain_options(self.config)
        return Snapshot(self.step, state, dtypes, self.visits.arrays(), progress, self.score, options)

    def _step(self, iterations: int) -> None:
        reset_metrics = self.logged == self.done  # what was added up is written
        more = self.done + iterations < self.config.iterations
        self._place(self.loop.advance(self.state, iterations, reset_metrics, more))
        jax.block_until_ready(self.state)

    def _note(self, event: str, **details: Any) -> None:
        """Something that happened to a worker."""
        add_event(self.config.out, event, step=self.step, **details)
        self.say(f"{event}: worker {details['worker']} {details['why']}")

    def _place(self, state: Any) -> None:
        """Always where `advance` was compiled for."""
        self.state = placed(self.training, state, self.mesh)


def compute_scores(lines: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """The final score of each seed, for return and, where it is defined, success."""
    names = [name for name in ("return", "success") if any(line[name] is not None for line in lines)]
    return {name: final_score(lines, name) for name in names}


def _score(lines: list[dict[str, Any]], before: float | None) -> float | None:
    """Mean success of the seeds that have one, else mean return; as before where no episode ended."""
    for name in ("success", "return"):
        values = [line[name] for line in lines if line[name] is not None]
        if values:
            return float(np.mean(values))
    return before


def _earlier_result(plan: RunPlan) -> TrainResult:
    """What the run has come to already."""
    lines, damaged = read_lines(plan.config.out / METRICS)
    if damaged or not lines or not all({"return", "success"} <= line.keys() for line in lines):
        raise ValueError(
            f"--out: {plan.config.out / METRICS} has lines that are damaged, or none, of a run that is finished. Mend "
            "it, or begin again with --overwrite."
        )
    final = [line for line in lines if line["step"] == lines[-1]["step"]]
    seconds = plan.found.manifest["progress"]["seconds"] if plan.found else 0.0
    return TrainResult(plan.config.out, tuple(final), compute_scores(lines), 0.0, seconds, 0.0, True)


def _notifier(progress: TrainingProgress) -> Callable[[str], None]:
    """Where messages go: to `progress.noted`, else to stderr."""
    return getattr(progress, "noted", lambda text: print(f"derex: {text}", file=sys.stderr, flush=True))
