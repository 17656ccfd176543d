"""The same numbers to the last bit, run after run.

On a CPU a program gives them anyway. On a GPU sums can be taken in any order, and kernels are chosen by timing them:
XLA has a flag against both, which is read when JAX first looks for devices.

Threads of the linear algebra that JAX calls on a processor: one is quicker than several.

OpenBLAS shares out even small triangular systems, and its threads then spin for some 30 ms in case there are more. XLA
has threads of its own, which wait for the cores meanwhile: on two cores a training step of De-Rex takes a tenth
longer, and the step after every line of the log another tenth.

Whether a run fits into memory and onto its disk; asked before anything is written, or of an earlier run removed.

Whether a run begins, goes on from its checkpoint, or is finished; looked at before anything is touched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
from threadpoolctl import threadpool_limits

from derex.training.checkpoints import Checkpoint, checkpoint_path, find_checkpoint, list_steps
from derex.training.config import TrainConfig
from derex.training.folder import (
    CHECKPOINTS,
    METRICS,
    FullDiskError,
    add_event,
    check_folder,
    check_metrics,
    claim_folder,
    cut_metrics,
    describe_fixed_changes,
    describe_mismatch,
    differences,
    holds_run,
    load_config,
    plain_options,
    record_resume,
    remove_leftovers,
    write_config,
)
from derex.training.saving import SPARE, free_bytes, is_checkpoint_folder, megabytes

FLAG = "--xla_gpu_deterministic_ops=true"


def require_determinism() -> None:
    """Sets the flag, or raises where it is too late for it."""
    import jax
    from jax._src import xla_bridge  # there is no public way to ask whether devices have been looked for

    flags = os.environ.get("XLA_FLAGS", "").split()
    if FLAG in flags:
        return
    if not xla_bridge.backends_are_initialized():
        os.environ["XLA_FLAGS"] = " ".join([*flags, FLAG])
    elif jax.default_backend() == "gpu":
        raise ValueError(
            f"deterministic: JAX has been used in this process already; set XLA_FLAGS={FLAG} before Python starts, or "
            "use derex train --deterministic."
        )


def limit_blas_threads() -> AbstractContextManager[object]:
    """While it is entered, on a processor; an accelerator has no need of it."""
    return threadpool_limits(1, user_api="blas") if jax.default_backend() == "cpu" else nullcontext()


FEWER = "Lower --agent.width, --streams, --agent.unroll or --seeds"


class OutOfMemoryError(OSError):
    """There is not as much memory as a run takes."""


def count_bytes(shapes: Any) -> int:
    """Bytes of a tree of arrays, of which only the shapes need be known."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def check_memory(size: int) -> None:
    """Refuses a state of so many bytes where it cannot fit.

    What one update takes besides is only known when it is compiled; this is to stop what could not even begin, and
    would otherwise wait for ever, or be killed by the system.
    """
    device = jax.devices()[0]
    there = machine_memory()
    if device.platform == "cpu":
        _compare(
            2 * size, there, "this machine", ", once for training and once while it is copied to be saved"
        )
        return
    _compare(size, there, "this machine, where it is copied to be saved,", "")
    limit = (device.memory_stats() or {}).get("bytes_limit")
    _compare(size, limit and limit * jax.device_count(), f"{jax.device_count()} × {device.device_kind}", "")


def machine_memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def check_disk(folder: Path, size: int) -> None:
    """Refuses a folder whose disk has no room for one checkpoint of so many bytes; the folder need not be there yet.

    An earlier run in it counts as staying: it must not be gone when there turns out to be too little.
    """
    place = folder.absolute()
    there = next(path for path in (place, *place.parents) if path.is_dir())
    free = free_bytes(there)
    if free < size + SPARE:
        raise FullDiskError(
            f"--out: the disk of {folder} is full: a checkpoint takes up to {megabytes(size + SPARE)}, there are "
            f"{megabytes(free)}. Nothing was touched. Make room, or choose another folder."
        )


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Says in words a person can act on that memory ran out."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        first = (str(error).strip().splitlines() or ["no more memory"])[0]
        raise OutOfMemoryError(
            f"out of memory: {first} {FEWER}, or use a larger machine. Checkpoints from before are good."
        ) from error


def _compare(size: int, there: int | None, where: str, why: str) -> None:
    if there is not None and size > there:
        raise OutOfMemoryError(
            f"out of memory: networks, optimisers and environments of all seeds take {size:,} bytes{why}; {where} has "
            f"{there:,}. {FEWER}."
        )


class OtherRunError(FileExistsError):
    """The folder holds a run with other options."""


class RunPlan(NamedTuple):
    """What is to be done in a folder."""

    config: TrainConfig
    """resolved; what was left open is as the run had it"""
    found: Checkpoint | None
    """the checkpoint to go on from; None: begin"""
    changed: dict[str, Any]
    """options that are not as they were: [before, now]"""
    missing: str = ""
    """lines of metrics that should be there, in words"""

    @property
    def finished(self) -> bool:
        """Whether all that is asked for has been done."""
        return self.done >= self.config.iterations

    @property
    def done(self) -> int:
        """Iterations so far."""
        return 0 if self.found is None else self.found.manifest["progress"]["iterations"]


def plan_run(config: TrainConfig) -> RunPlan:
    """What `config` comes to in its folder; only reads.

    Raises:
        OtherRunError: it holds a run with other options.
        FileExistsError: it is somebody else's, or its run has no checkpoint to go on from.
        CheckpointError: no checkpoint of the run is good.
    """
    folder = config.out
    check_folder(folder)
    if config.overwrite or not holds_run(folder):
        return RunPlan(config.resolved(), None, {})
    earlier = load_config(folder, config.method, config.env)
    if config.log_every is None:
        config = replace(config, log_every=earlier.log_every)
    config = config.resolved()
    changed = differences(plain_options(earlier), plain_options(config))
    _refuse_other_options(folder, changed)
    if list_steps(folder):
        found = find_checkpoint(folder)
        _refuse_edited(folder, found, earlier)
        plan = RunPlan(config, found, changed)
        return plan if plan.finished else plan._replace(missing=_missing_lines(plan))
    metrics = folder / METRICS
    if metrics.exists() and metrics.stat().st_size:
        raise FileExistsError(
            f"--out: {folder} holds an earlier run without a checkpoint to go on from; choose another folder, or begin "
            "again with --overwrite."
        )
    return RunPlan(config, None, changed)  # it was stopped before its first step


def prepare_folder(plan: RunPlan) -> None:
    """Makes the folder what the plan wants it to be: new, or as it was at the checkpoint."""
    config, folder = plan.config, plan.config.out
    if plan.found is None:
        claim_folder(folder, overwrite=True)  # the plan has been refused where that must not be
        write_config(folder, config)
        return
    step = int(plan.found.path.name)
    for problem in plan.found.problems:
        add_event(folder, "damaged checkpoint", problem=problem, used=step)
    _set_aside_damaged(folder, step)
    remove_leftovers(folder)
    if plan.missing:
        add_event(folder, "missing metrics", problem=plan.missing)
    cut_metrics(folder, _last_line(plan.found, config))
    record_resume(folder, config, step, plan.changed)
    add_event(folder, "resumed", step=step)


def _missing_lines(plan: RunPlan) -> str:
    if plan.found is None:
        return ""
    return check_metrics(plan.config.out, _last_line(plan.found, plan.config), plan.config.all_seeds)


def _last_line(found: Checkpoint, config: TrainConfig) -> int:
    """The step of the last lines that were written before the checkpoint."""
    return found.manifest["progress"]["logged"] * config.iteration_steps


def _refuse_other_options(folder: Path, changed: dict[str, Any]) -> None:
    if each := describe_fixed_changes(changed):
        raise OtherRunError(
            f"--out: {folder} holds a run with other options: {each}. Give the same, choose another folder, or begin "
            "again with --overwrite."
        )


def _refuse_edited(folder: Path, found: Checkpoint, earlier: TrainConfig) -> None:
    """config.json has to say what the checkpoint was made with; somebody may have changed it."""
    if each := describe_mismatch(found.manifest["config"], plain_options(earlier)):
        raise OtherRunError(
            f"--out: config.json of {folder} is not what its checkpoint was made with: {each}. Put it back as it was, "
            "or begin again with --overwrite."
        )


def _set_aside_damaged(folder: Path, step: int) -> None:
    """Checkpoints later than the one that is used are damaged: they no longer count. Remains of writing go."""
    for later in list_steps(folder):
        if later > step:
            place = checkpoint_path(folder, later)
            aside = place.with_name(f"{later}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(place, aside)
    for remains in (folder / CHECKPOINTS).glob(".*"):
        if is_checkpoint_folder(remains):
            shutil.rmtree(remains, ignore_errors=True)
