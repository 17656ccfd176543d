"""A training run: compiled iterations, and between them metrics, checkpoints and requests to stop.

train(TrainConfig(...))     starts a run, or resumes it from its last intact checkpoint
restore_run("runs/a")       the state of a run, for use in Python
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from derex.compilation import enable_compilation_cache
from derex.envs.host import WorkerFailed
from derex.progress import ProgressBar
from derex.report.runs import read_lines
from derex.report.statistics import final_score
from derex.training import checkpoints, preflight
from derex.training import folder as files
from derex.training.checkpoints import Saver, Snapshot, find_checkpoint
from derex.training.config import TrainConfig
from derex.training.folder import METRICS, load_config, plain_options
from derex.training.learner import Training, TrainState, check_streams, data_mesh, make_training, placed
from derex.training.logging import TrainingBar, TrainingProgress, check_loggers, make_loggers
from derex.training.metrics import VisitRecorder, check_skipped_updates, make_lines, read_sums
from derex.training.preflight import RunPlan, Stopped, StopRequest

PIECE_SECONDS = 1.0  # of iterations between two looks at progress, signals and clocks


@dataclass(frozen=True)
class TrainResult:
    """The result of a run."""

    out: Path
    """its folder"""
    final: tuple[dict[str, Any], ...]
    """the last line of metrics of each seed"""
    scores: dict[str, dict[int, float]]
    """return, and success where it is defined, of each seed: means over the last 2 % of the steps"""
    compile_seconds: float
    seconds: float
    """of all parts of the run, without compilation"""
    advancing_seconds: float
    """of them in the compiled loop, since the run was last resumed; the rest is logging and saving"""
    finished_before: bool = False
    """whether there was nothing left to do"""


class RestoredRun(NamedTuple):
    """A run restored from a checkpoint."""

    config: TrainConfig
    training: Training
    state: TrainState
    """of all seeds, on the available devices"""
    step: int
    problems: tuple[str, ...]
    """of damaged checkpoints that would have been chosen before this one"""


def restore_run(
    folder: str | Path, checkpoint: str | int = "latest", method: str | None = None, env: str | None = None
) -> RestoredRun:
    """Restores a run from its folder; writes nothing.

    Args:
        folder: of the run.
        checkpoint: "latest"; "best", by success or return; or a step. If the latest or the best is damaged, the next
            one is used, and `problems` says so.
        method: of the run, if it is your own, `package.module:Class`: code is only imported when you name it.
        env: of the run, if its name contains a module, for the same reason.

    Raises:
        CheckpointError: no checkpoint is intact, none has that step, or its options are not those of config.json.
        ValueError: the folder holds no run.
    """
    folder = Path(folder)
    config = load_config(folder, method, env)
    found = find_checkpoint(folder, checkpoint)
    checkpoints.check_options(found, plain_options(config))
    training = make_training(config)
    state = checkpoints.load_state(found, training, config)
    return RestoredRun(config, training, state, found.step, found.problems)


def train(config: TrainConfig, progress: TrainingProgress | None = None) -> TrainResult:
    """Trains all seeds in parallel and writes metrics, config, checkpoints and visits to `config.out`.

    If `config.out` already contains this run, training resumes from its last intact checkpoint, until `config.steps`
    in total are done.

    Args:
        config: the options of the run.
        progress: receives the progress; None: nothing is shown.

    Raises:
        Stopped: by SIGTERM or Ctrl-C, after saving.
        DivergedError: too many updates in a row had non-finite values.
        WorkerFailed: a worker had to be restarted too often; the state is saved.
        OSError: the folder cannot be used, contains another run, its disk is full, or memory is too small.
    """
    enable_compilation_cache()
    if config.deterministic:
        preflight.require_determinism()
    if progress is None:
        progress = TrainingBar(ProgressBar("", enabled=False), int(config.steps))
    with preflight.explain_out_of_memory():
        return _train(config, progress)


def _train(config: TrainConfig, progress: TrainingProgress) -> TrainResult:
    """Checks everything, the cheap things first, before anything is written; then runs."""
    files.check_folder(config.out)
    check_loggers(config.loggers)
    check_streams(config.streams, data_mesh())
    try:
        json.dumps(plain_options(config), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"config: an option cannot be written as JSON: {error}.") from error
    preflight.check_same_run(config)
    training = make_training(config)
    size = preflight.count_bytes(jax.eval_shape(lambda: training.init_seeds(config.all_seeds)))
    preflight.check_memory(size)
    if config.overwrite or not files.holds_run(config.out):
        preflight.check_disk(config.out, size)
    files.make_folder(config.out)
    with files.lock_folder(config.out):
        plan = preflight.plan_run(config)
        notify = getattr(progress, "noted", _print_note)
        for problem in plan.found.problems if plan.found else ():
            notify(f"damaged checkpoint: {problem}. The one before it is used.")
        if plan.finished:
            step = plan.done * plan.config.iteration_steps
            notify(f"already finished, at step {step}; for more, raise --steps")
            return _load_result(plan)
        if plan.missing:
            notify(f"{plan.missing}; training resumes without them")
        preflight.check_disk(config.out, size)
        preflight.prepare_folder(plan)
        with StopRequest() as stop, preflight.limit_blas_threads():
            return TrainingRun(plan, training, progress, notify, stop).run()


def _print_note(text: str) -> None:
    print(f"derex: {text}", file=sys.stderr, flush=True)


class TrainingRun:
    """The state of all seeds, and everything that is written while they train; `stop` is asked after every piece."""

    def __init__(
        self,
        plan: RunPlan,
        training: Training,
        progress: TrainingProgress,
        notify: Callable[[str], None],
        stop: StopRequest,
    ):
        self.config, self.progress, self.notify, self.stop = plan.config, progress, notify, stop
        self.found, self.training, self.mesh = plan.found, training, data_mesh()
        self.done, self.logged = plan.done, plan.progress.get("logged", 0)
        self.score = plan.found.manifest["score"] if plan.found else None
        self.compile_seconds = self.advancing_seconds = 0.0
        self._seconds_before = plan.progress.get("seconds", 0.0)
        self._interval_seconds = plan.progress.get("interval_seconds", 0.0)
        self._iteration_seconds = 0.0  # as last measured
        self.lines: list[dict[str, Any]] = []
        visits = checkpoints.load_arrays(plan.found)[checkpoints.VISITS_PART] if plan.found else None
        self.visits = VisitRecorder(self.config, training.streams.spec, visits)
        options = plain_options(self.config)
        self.loggers = make_loggers(self.config.loggers, self.config.out, options, plan.last_line)
        self.saver = Saver(self.config.out, self.config.keep, plan.found.step if plan.found else None)
        self.loop = training.open_loop(self.config, self._record_worker_event)

    def _start(self) -> None:
        """Initialises or loads the state, saves it, and compiles."""
        start = time.perf_counter()
        getattr(self.progress, "compiling", lambda: None)()
        if self.found is None:
            self._place(self.training.init_seeds(self.config.all_seeds))
        else:
            self.state = checkpoints.load_state(self.found, self.training, self.config)
            self.notify(f"resumes from step {self.found.step}")
        self._skipped_before = np.array(self.state.skips.most)
        self._began = self._saved = time.perf_counter()
        if self.found is None:
            self.saver.save(self._snapshot())  # while the loop compiles
        self._step(0)  # compiles for any number of iterations
        read_sums(self.training, self.state)
        self.saver.wait()
        self._began = self._saved = time.perf_counter()
        self.compile_seconds = self._began - start
        self.progress.compiled(self.compile_seconds)
        self.visits.write()

    @property
    def seconds(self) -> float:
        """Of the whole run, without compilation."""
        return self._seconds_before + time.perf_counter() - self._began

    @property
    def step(self) -> int:
        """Environment steps of each seed."""
        return self.done * self.config.iteration_steps

    def run(self) -> TrainResult:
        """Trains to the end; every file is complete whenever it stops."""
        try:
            self._start()
            while self.done < self.config.iterations and not self.stop.asked:
                self._advance()
                if self.done % self.config.log_interval == 0:
                    self._log()
                    self.logged, self._interval_seconds = self.done, 0.0
                if time.perf_counter() - self._saved >= self.config.save_every:
                    self._save()
            return self._stop() if self.done < self.config.iterations else self._finish()
        except WorkerFailed:
            self._save()
            self.saver.wait()
            raise
        except BaseException as error:
            for tidy in (self.visits.write, self.saver.wait):
                with suppress(OSError):  # the first error is the one to report
                    tidy()
            if isinstance(error, OSError) and files.is_disk_full(error):
                raise files.full_disk_error(self.config.out) from error
            raise
        finally:
            self.loop.close()
            self.loggers.close()

    def _stop(self) -> TrainResult:
        self._save()
        self.saver.wait()
        files.add_event(self.config.out, "stopped", by=self.stop.asked, step=self.step)
        raise Stopped(
            f"stopped by {self.stop.asked} at step {self.step}, and saved. To resume, run the same command, or: derex "
            f"train --resume {self.config.out}",
            self.stop.asked,
        )

    def _finish(self) -> TrainResult:
        # Before the line of an incomplete interval, which more steps would complete.
        snapshot = self._snapshot()
        if self.logged < self.done:
            self._log()
        self.visits.write()
        self.visits.draw()
        self.saver.save(snapshot)
        self.saver.wait()
        scores = compute_scores(files.read_metrics(self.config.out))
        seconds = self.compile_seconds, self.seconds, self.advancing_seconds
        return TrainResult(self.config.out, tuple(self.lines), scores, *seconds)

    def _advance(self) -> None:
        """Iterates for about `PIECE_SECONDS`, at most to the next line."""
        fitting = int(PIECE_SECONDS / self._iteration_seconds) if self._iteration_seconds else 1
        fitting = min(fitting, self.loop.longest or fitting)
        piece = min(max(fitting, 1), self.config.next_line(self.done) - self.done)
        start = time.perf_counter()
        self._step(piece)
        elapsed = time.perf_counter() - start
        self.done += piece
        self._iteration_seconds = elapsed / piece
        self._interval_seconds += elapsed
        self.advancing_seconds += elapsed
        limits = self.config.all_seeds, self.config.max_skipped, self._skipped_before
        check_skipped_updates(self.state.skips, self.step, *limits)
        rate = self.config.iteration_steps * self.config.seeds / self._iteration_seconds
        self.progress.advanced(self.step, rate)

    def _log(self) -> None:
        """Writes a line for each seed, of the sums since the last."""
        steps = (self.done - self.logged) * self.config.iteration_steps * self.config.seeds
        times = {"steps_per_second": steps / self._interval_seconds, "seconds": self.seconds}
        sums = read_sums(self.training, self.state)
        spec, seeds = self.training.streams.spec, self.config.all_seeds
        self.lines = make_lines(sums, spec, self.step, seeds, times | self.loop.numbers())
        files.append_lines(self.config.out / METRICS, self.lines)
        self.loggers.log(self.lines)
        self.visits.record(self.step, sums)
        self.score = _compute_score(self.lines, self.score)
        self.progress.logged(self.lines)

    def _save(self) -> None:
        self.saver.save(self._snapshot())
        self._saved = time.perf_counter()

    def _snapshot(self) -> Snapshot:
        progress = {"iterations": self.done, "logged": self.logged, "seconds": self.seconds}
        progress |= {"interval_seconds": self._interval_seconds}
        state, dtypes = checkpoints.copy_arrays(self.state)
        options = plain_options(self.config)
        return Snapshot(self.step, state, dtypes, self.visits.arrays(), progress, self.score, options)

    def _step(self, iterations: int) -> None:
        reset_metrics = self.logged == self.done  # the sums so far are written
        more = self.done + iterations < self.config.iterations
        self._place(self.loop.advance(self.state, iterations, reset_metrics, more))
        jax.block_until_ready(self.state)

    def _record_worker_event(self, event: str, **details: Any) -> None:
        files.add_event(self.config.out, event, step=self.step, **details)
        self.notify(f"{event}: worker {details['worker']} {details['why']}")

    def _place(self, state: Any) -> None:
        """Keeps the state on the devices that `advance` was compiled for."""
        self.state = placed(self.training, state, self.mesh)


def compute_scores(lines: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Computes the final score of each seed, for return and, where it is defined, success."""
    names = [name for name in ("return", "success") if any(line[name] is not None for line in lines)]
    return {name: final_score(lines, name) for name in names}


def _compute_score(lines: list[dict[str, Any]], before: float | None) -> float | None:
    """Mean success of the seeds that have one, else mean return; `before` if no episode ended."""
    for name in ("success", "return"):
        values = [line[name] for line in lines if line[name] is not None]
        if values:
            return float(np.mean(values))
    return before


def _load_result(plan: RunPlan) -> TrainResult:
    """The result of a run that was finished before."""
    path = plan.config.out / METRICS
    lines, damaged = read_lines(path)
    if damaged or not lines or not all({"return", "success"} <= line.keys() for line in lines):
        raise ValueError(f"--out: {path} of a finished run is damaged. Repair it, or use --overwrite.")
    final = [line for line in lines if line["step"] == lines[-1]["step"]]
    seconds = plan.progress.get("seconds", 0.0)
    return TrainResult(plan.config.out, tuple(final), compute_scores(lines), 0.0, seconds, 0.0, True)
