"""Before a run writes anything: does it fit the memory, the disk and the run in its folder? While it runs: signals,
threads, determinism.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
from threadpoolctl import threadpool_limits

from derex.training import folder as files
from derex.training.checkpoints import (
    SPARE_BYTES,
    Checkpoint,
    checkpoint_path,
    find_checkpoint,
    is_checkpoint_folder,
    list_steps,
)
from derex.training.config import TrainConfig
from derex.training.folder import CHECKPOINTS, METRICS, FullDiskError, megabytes, plain_options

DETERMINISM_FLAG = "--xla_gpu_deterministic_ops=true"
LESS_MEMORY = "Lower --agent.width, --streams, --agent.unroll or --seeds"


class OutOfMemoryError(OSError):
    """A run needs more memory than there is."""


class OtherRunError(FileExistsError):
    """The folder contains a run with other options."""


class Stopped(KeyboardInterrupt):
    """The run was stopped by a signal and has saved its state.

    Args:
        message: at which step it stopped, and how to resume it.
        signal_name: "SIGTERM" or "Ctrl-C".
    """

    def __init__(self, message: str, signal_name: str = "Ctrl-C"):
        super().__init__(message)
        self.exit_code = 0 if signal_name == "SIGTERM" else 130
        """of `derex train`: a scheduler's SIGTERM is not a failure; after Ctrl-C, `train && eval` must not go on"""


class StopRequest:
    """While it is entered, SIGTERM and the first Ctrl-C are recorded; a second Ctrl-C interrupts as usual."""

    def __init__(self) -> None:
        self.asked = ""
        """"SIGTERM" or "Ctrl-C"; empty if neither came"""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # others cannot set handlers
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores them
                    self._before[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.asked = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def require_determinism() -> None:
    """Makes runs on a GPU bit-equal; runs on a CPU always are.

    On a GPU sums can be taken in any order, and kernels are chosen by timing them. XLA has a flag against both, which
    it reads when JAX first looks for devices: later it is refused.
    """
    from jax._src import xla_bridge  # there is no public way to ask whether devices have been looked for

    flags = os.environ.get("XLA_FLAGS", "").split()
    if DETERMINISM_FLAG in flags:
        return
    if not xla_bridge.backends_are_initialized():
        os.environ["XLA_FLAGS"] = " ".join([*flags, DETERMINISM_FLAG])
    elif jax.default_backend() == "gpu":
        raise ValueError(
            f"deterministic: JAX has been used in this process already; set XLA_FLAGS={DETERMINISM_FLAG} before Python "
            "starts, or use derex train --deterministic."
        )


def limit_blas_threads() -> AbstractContextManager[object]:
    """While it is entered, the linear algebra that JAX calls on a CPU uses one thread.

    OpenBLAS shares out even small triangular systems, and its threads then spin for some 30 ms. The threads of XLA
    wait for the cores meanwhile: on two cores a training step of De-Rex takes a tenth longer, and the step after every
    line of the log another tenth.
    """
    return threadpool_limits(1, user_api="blas") if jax.default_backend() == "cpu" else nullcontext()


def count_bytes(shapes: Any) -> int:
    """Returns the bytes of a tree of arrays, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def check_memory(size: int) -> None:
    """Refuses a state of `size` bytes that cannot fit.

    What an update needs besides is only known once it is compiled. This stops runs that could not even start, and
    would otherwise hang or be killed by the system.
    """
    device, machine = jax.devices()[0], None
    with suppress(AttributeError, ValueError, OSError):  # a system that does not say
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device.platform == "cpu":
        needs = [(2 * size, ", with the copy that is saved", machine, "this machine")]
    else:
        limit, count = (device.memory_stats() or {}).get("bytes_limit"), jax.device_count()
        needs = [
            (size, "", machine, "this machine, where it is copied to be saved,"),
            (size, "", limit and limit * count, f"{count} × {device.device_kind}"),
        ]
    for needed, why, available, where in needs:
        if available is not None and needed > available:
            raise OutOfMemoryError(
                f"out of memory: networks, optimisers and environments of all seeds need {needed:,} bytes{why}; "
                f"{where} has {available:,}. {LESS_MEMORY}."
            )


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Turns JAX's error for exhausted memory into one line that says what to lower."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        first = (str(error).strip().splitlines() or ["no memory left"])[0]
        raise OutOfMemoryError(
            f"out of memory: {first} {LESS_MEMORY}, or use a larger machine. Earlier checkpoints are intact."
        ) from error


def check_disk(folder: Path, size: int) -> None:
    """Refuses a folder, which need not exist yet, whose disk has no space for a checkpoint of `size` bytes.

    The files of an earlier run in it are not counted as free: they must not be removed if the space is too small.
    """
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    free, needed = files.free_bytes(existing), size + SPARE_BYTES
    if free < needed:
        raise FullDiskError(
            f"--out: the disk of {folder} is full: a checkpoint needs up to {megabytes(needed)}, {megabytes(free)} are "
            "free. Nothing was changed. Free some space, or choose another folder."
        )


class RunPlan(NamedTuple):
    """What to do in the folder of a run."""

    config: TrainConfig
    """resolved; an open `log_every` is that of the earlier run"""
    found: Checkpoint | None
    """the checkpoint to resume from; None: start"""
    changed: dict[str, Any]
    """options that differ from the earlier run's: [before, now]"""
    missing: str = ""
    """which lines of metrics are missing, in words"""

    @property
    def progress(self) -> dict[str, Any]:
        """Iterations done and logged, and times, as the checkpoint has them; empty at the start."""
        return {} if self.found is None else self.found.manifest["progress"]

    @property
    def done(self) -> int:
        """Iterations so far."""
        return self.progress.get("iterations", 0)

    @property
    def finished(self) -> bool:
        """Whether all iterations are done."""
        return self.done >= self.config.iterations

    @property
    def last_line(self) -> int:
        """The step of the last lines of metrics before the checkpoint; 0 if there are none."""
        return self.progress.get("logged", 0) * self.config.iteration_steps


def check_same_run(config: TrainConfig) -> tuple[TrainConfig, dict[str, Any] | None]:
    """Refuses foreign files in the folder, and a run with other options; only reads.

    Returns:
        The resolved config, and the options of the earlier run; None if there is none, or it will be overwritten.
    """
    files.check_folder(config.out)
    if config.overwrite or not files.holds_run(config.out):
        return config.resolved(), None
    earlier = files.load_config(config.out, config.method, config.env)
    if config.log_every is None:
        config = replace(config, log_every=earlier.log_every)
    config, options = config.resolved(), plain_options(earlier)
    if fixed := files.describe_fixed_changes(files.differences(options, plain_options(config))):
        raise OtherRunError(
            f"--out: {config.out} contains a run with other options: {fixed}. Use the same options, another folder, or "
            "--overwrite."
        )
    return config, options


def plan_run(config: TrainConfig) -> RunPlan:
    """Decides whether a run starts, resumes, or is finished; only reads.

    Raises:
        OtherRunError: the folder contains a run with other options, or config.json was edited.
        FileExistsError: it contains foreign files, or its run has no checkpoint to resume from.
        CheckpointError: no checkpoint of the run is intact.
    """
    folder = config.out
    config, earlier = check_same_run(config)
    if earlier is None:
        return RunPlan(config, None, {})
    changed = files.differences(earlier, plain_options(config))
    if not list_steps(folder):
        metrics = folder / METRICS
        if metrics.exists() and metrics.stat().st_size:
            raise FileExistsError(
                f"--out: {folder} contains an earlier run without a checkpoint; choose another folder, or --overwrite."
            )
        return RunPlan(config, None, changed)  # it was stopped before its first step
    found = find_checkpoint(folder)
    if different := files.describe_mismatch(found.manifest["config"], earlier):
        raise OtherRunError(
            f"--out: config.json of {folder} does not match its checkpoint: {different}. Restore config.json, or start "
            "again with --overwrite."
        )
    plan = RunPlan(config, found, changed)
    if plan.finished:
        return plan
    return plan._replace(missing=files.check_metrics(folder, plan.last_line, config.all_seeds))


def prepare_folder(plan: RunPlan) -> None:
    """Makes the folder new, or what it was at the checkpoint. `plan_run` has refused what must not be overwritten."""
    folder = plan.config.out
    if plan.found is None:
        if files.holds_run(folder):
            files.remove_run(folder)
        files.write_config(folder, plan.config)
        return
    step = plan.found.step
    for problem in plan.found.problems:
        files.add_event(folder, "damaged checkpoint", problem=problem, used=step)
    for later in list_steps(folder):
        if later > step:  # damaged: it is set aside, and removed with the next save
            aside = folder / CHECKPOINTS / f"{later}.damaged"
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(checkpoint_path(folder, later), aside)
    for remains in (folder / CHECKPOINTS).glob(".*"):
        if is_checkpoint_folder(remains):
            shutil.rmtree(remains, ignore_errors=True)
    files.remove_leftovers(folder)
    if plan.missing:
        files.add_event(folder, "missing metrics", problem=plan.missing)
    files.cut_metrics(folder, plan.last_line)
    files.write_config(folder, plan.config, {"step": step, "changed": plan.changed})
    files.add_event(folder, "resumed", step=step)
