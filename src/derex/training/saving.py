"""Saving checkpoints in the background: training goes on while one is written, and waits if the next is due before.

A checkpoint is written beside its place and moved there when whole. Whatever goes wrong, those before it stay.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path

from derex.training.checkpoints import (
    Snapshot,
    checkpoint_path,
    flush,
    list_steps,
    read_score,
    write_checkpoint,
)
from derex.training.folder import CHECKPOINTS, FullDiskError, add_event

SPARE = 1 << 20  # bytes that have to be left besides the checkpoint
OURS = re.compile(r"\d+|\d+\.damaged|\.\d+(\.damaged)?\.(partial|removed)")
SETTLING_SECONDS = 5.0  # at most, after a write that failed


class SavingError(OSError):
    """A checkpoint could not be written."""


class Saver:
    """Writes the checkpoints of a run, one at a time."""

    def __init__(self, folder: Path, keep: int, last: int | None = None):
        """`last` is the step of a checkpoint that is there already."""
        self._folder, self._keep, self._last = folder, keep, last
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Begins to write it, once the one before is written; the one that was saved last is not saved again."""
        self.wait()
        if snapshot.step == self._last:
            return
        (self._folder / CHECKPOINTS).mkdir(exist_ok=True)
        self._check_room(snapshot)
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="derex-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until all is written; raises what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, snapshot: Snapshot) -> None:
        partial = self._folder / CHECKPOINTS / f".{snapshot.step}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            write_checkpoint(partial, snapshot)
            place = checkpoint_path(self._folder, snapshot.step)
            shutil.rmtree(place, ignore_errors=True)  # only what was found damaged can be there
            os.replace(partial, place)
            flush(place.parent)
            self._last = snapshot.step
        except Exception as error:  # orbax and tensorstore have many
            _remove_while_written(partial)
            self._error = self._explained(error, snapshot)
            return
        try:
            prune(self._folder, self._keep)
        except OSError as error:  # the checkpoint is good all the same, and the next one tries again
            with suppress(OSError):
                add_event(self._folder, "old checkpoint not removed", problem=str(error), step=snapshot.step)

    def _explained(self, error: Exception, snapshot: Snapshot) -> Exception:
        if _is_full(error) or free_bytes(self._folder) < SPARE:
            return self._full(snapshot)
        return SavingError(
            f"--out: the checkpoint of step {snapshot.step} could not be written: {error}. {self._stands()}"
        )

    def _check_room(self, snapshot: Snapshot) -> None:
        if free_bytes(self._folder) < snapshot.size + SPARE:
            raise self._full(snapshot)

    def _full(self, snapshot: Snapshot) -> FullDiskError:
        free = shutil.disk_usage(self._folder).free
        return FullDiskError(
            f"--out: the disk of {self._folder} is full: the checkpoint of step {snapshot.step} takes up to "
            f"{megabytes(snapshot.size + SPARE)}, there are {megabytes(free)}. {self._stands()} Make room and give "
            "the same command again."
        )

    def _stands(self) -> str:
        return "There is none before it." if self._last is None else f"That of step {self._last} is good."


def free_bytes(folder: Path) -> int | float:
    """Bytes that are free on the folder's disk; ∞ where the system knows of none, as some that are not disks say."""
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total else math.inf


def prune(folder: Path, keep: int) -> None:
    """Leaves the last `keep` checkpoints and the best; remains of ours go too, and what is somebody else's stays."""
    steps = list_steps(folder)
    kept = set(steps[-keep:])
    if steps:
        kept.add(max(steps, key=lambda step: (read_score(folder, step), step)))
    for path in (folder / CHECKPOINTS).iterdir():
        if is_checkpoint_folder(path) and path.name not in {str(step) for step in kept}:
            _remove(path)


def is_checkpoint_folder(path: Path) -> bool:
    """Whether a run made it: a checkpoint, or what is left of one. Ours are folders, and no links to any."""
    return OURS.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def _remove_while_written(path: Path) -> None:
    """Takes away what a failed write left; its other arrays may still be on their way to the disk for a moment."""
    deadline = time.monotonic() + SETTLING_SECONDS
    quiet = 0
    while quiet < 3 and time.monotonic() < deadline:
        quiet = 0 if path.exists() else quiet + 1
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(0.05)


def _remove(path: Path) -> None:
    """Takes a checkpoint away; it is none from the first moment on."""
    hidden = path.with_name(f".{path.name.strip('.')}.removed")
    if path != hidden:
        shutil.rmtree(hidden, ignore_errors=True)
        os.replace(path, hidden)
    shutil.rmtree(hidden)


def _is_full(error: Exception) -> bool:
    """Whether it says so, in the words of the system or of tensorstore."""
    return any(words in str(error) for words in ("No space left", "Disk quota exceeded", "ENOSPC"))


def megabytes(size: int | float) -> str:
    """As a person reads it."""
    return f"{size / 1e6:,.1f} MB"
