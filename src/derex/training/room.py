"""Whether a run fits into memory and onto its disk; asked before anything is written, or of an earlier run removed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from derex.training.folder import FullDiskError
from derex.training.saving import SPARE, free_on, megabytes

FEWER = "Lower --agent.width, --streams, --agent.unroll or --seeds"


class OutOfMemoryError(OSError):
    """There is not as much memory as a run takes."""


def size_of(shapes: Any) -> int:
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
    free = free_on(there)
    if free < size + SPARE:
        raise FullDiskError(
            f"--out: the disk of {folder} is full: a checkpoint takes up to {megabytes(size + SPARE)}, there are "
            f"{megabytes(free)}. Nothing was touched. Make room, or choose another folder."
        )


@contextmanager
def memory_named() -> Iterator[None]:
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
