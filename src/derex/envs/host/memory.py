"""Arrays of steps of many streams: memory shared between workers and their parent, and copies that the parent owns.

Shared memory is an unnamed file that only these processes hold open: it is freed when the last of them has ended,
however it ended. Letters in shapes: n streams.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, Shaped

from derex.envs.interface import action_struct
from derex.types import EnvironmentSpec, TimeStep

ALIGNMENT = 64  # bytes: a cache line, and what JAX needs to use an array without a copy


class SharedRows(NamedTuple):
    """The shared arrays, one row for each stream. Workers write all but `action` and `skip`."""

    observation: tuple[Shaped[Any, "n ..."], ...]
    """parts in the order of the tree's leaves"""
    reward: Float32[Any, " n"]
    terminated: Bool[Any, " n"]
    truncated: Bool[Any, " n"]
    first: Bool[Any, " n"]
    action: Shaped[Any, "n *action"]
    """written by the parent"""
    skip: Bool[Any, " n"]
    """written by the parent: do not step this stream now"""
    elapsed: Int32[Any, " n"]
    """initial step count of the next episode; written by the parent, reset to 0 by the worker"""
    episode: Int64[Any, " n"]
    """episodes begun; incremented before the environment is called"""


def make_row_layout(spec: EnvironmentSpec, streams: int) -> SharedRows:
    """Shapes and dtypes of the arrays for `streams` streams of an environment; can be pickled."""

    def rows(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct((streams, *shape), dtype)

    parts = tuple(rows(leaf.dtype, *leaf.shape) for leaf in jax.tree.leaves(spec.observation))
    flag, action = rows(bool), action_struct(spec)
    actions = rows(action.dtype, *action.shape)
    return SharedRows(
        parts, rows(np.float32), flag, flag, flag, actions, flag, rows(np.int32), rows(np.int64)
    )


class SharedMemory:
    """An unnamed file and the arrays in it."""

    def __init__(self, layout: SharedRows, file: int | None = None):
        """Creates the memory, all zeros; or maps the existing memory behind the descriptor `file`."""
        leaves, structure = jax.tree.flatten(layout)
        sizes = [math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves]
        *starts, size = accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0)
        self.layout, self.file = layout, open_unnamed_file("derex-streams-") if file is None else file
        try:
            if file is None:
                os.ftruncate(self.file, size)
            memory = mmap.mmap(self.file, size)
        except BaseException:
            os.close(self.file)
            raise
        views = [
            np.frombuffer(memory, leaf.dtype, math.prod(leaf.shape), start).reshape(leaf.shape)
            for leaf, start in zip(leaves, starts, strict=True)
        ]
        self.rows: SharedRows = jax.tree.unflatten(structure, views)

    def close(self) -> None:
        """Closes the file; the memory is freed with the last array that refers to it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def open_unnamed_file(prefix: str) -> int:
    """Opens an unnamed file, in memory where the system supports it; returns its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(prefix, os.MFD_CLOEXEC)
    file, path = tempfile.mkstemp(prefix=prefix)
    os.unlink(path)
    return file


class HostSteps(TimeStep):
    """`TimeStep` of a group of streams, as numpy arrays to fill; with leading axes, several steps.

    The observation is a tuple of its parts, in the order of the tree's leaves.
    """

    __slots__ = ()

    def at(self, t: int) -> HostSteps:
        """Views of the arrays at one index of the first axis."""
        parts = tuple(part[t] for part in self.observation)  # called at every step: faster than jax.tree.map
        return HostSteps(parts, self.reward[t], self.discount[t], self.truncated[t], self.first[t])


def allocate_steps(spec: EnvironmentSpec, *axes: int) -> HostSteps:
    """Allocates arrays with the given leading axes."""
    parts = tuple(np.empty((*axes, *leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(spec.observation))
    return HostSteps(parts, *(np.empty(axes, dtype) for dtype in (np.float32, np.float32, bool, bool)))
