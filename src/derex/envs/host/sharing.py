"""Who runs what and where: streams shared out over workers, and workers over cores."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from jaxtyping import Int


def number_of_workers(wanted: int | None, streams: int) -> int:
    """As many as are wanted, or one for each core; at most one for each stream."""
    return min(wanted or len(_cores()) or os.cpu_count() or 1, streams)


def shared_out(groups: tuple[int, ...], workers: int) -> list[dict[int, Int[np.ndarray, " n"]]]:
    """The rows of each worker, by group: every group over as many workers as it can keep busy."""
    members: list[dict[int, Any]] = [{} for _ in range(workers)]
    begin = 0
    for group, size in enumerate(groups):
        parts = np.array_split(np.arange(begin, begin + size), min(workers, size))
        for place, rows in enumerate(parts):
            # Small groups follow each other around the workers.
            members[(place if size >= workers else begin + place) % workers][group] = rows
        begin += size
    return [each for each in members if each]


def cores_for(workers: int) -> list[int | None]:
    """A core for each worker to stay on, where every core gets equally many; else the system had better move them.

    An engine in a process of its own, such as ViZDoom's, and its worker wait for each other in turn. Moved about, they
    wake each other across cores many times a step, which costs a good part of a short one.
    """
    cores = _cores()
    even = bool(cores) and workers % len(cores) == 0
    return [cores[number % len(cores)] if even else None for number in range(workers)]


def _cores() -> list[int]:
    """Those that this process may use; none where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
