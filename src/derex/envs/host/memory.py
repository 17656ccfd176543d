"""Arrays of steps of many streams: memory shared between workers and their parent, and copies that the parent owns.

Shared memory is an unnamed file that only these processes hold open: it is freed when the last of them has ended,
however it ended. Letters in shapes: n streams.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, Shaped

from derex.envs.interface import action_struct
from derex.types import EnvironmentSpec

ALIGNMENT = 64  # bytes: a cache line, and what JAX needs to use an array without a copy


class RowLayout(NamedTuple):
    """Shapes and dtypes of a row; can be pickled."""

    observation: tuple[tuple[tuple[int, ...], str], ...]
    """shape and dtype of each part, in the order of the tree's leaves"""
    action: tuple[tuple[int, ...], str]
    streams: int

    def arrays(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of each array of `SharedRows`, the parts of the observation first."""
        flag, others = ((), "?"), [((), "i4"), ((), "i8")]
        rows = [*self.observation, ((), "f4"), flag, flag, flag, self.action, flag, *others]
        return [((self.streams, *shape), dtype) for shape, dtype in rows]


class SharedRows(NamedTuple):
    """The shared arrays, one row for each stream. Workers write all but `action` and `skip`."""

    observation: tuple[Shaped[np.ndarray, "n ..."], ...]
    """parts in the order of the tree's leaves"""
    reward: Float32[np.ndarray, " n"]
    terminated: Bool[np.ndarray, " n"]
    truncated: Bool[np.ndarray, " n"]
    first: Bool[np.ndarray, " n"]
    action: Shaped[np.ndarray, "n *action"]
    """written by the parent"""
    skip: Bool[np.ndarray, " n"]
    """written by the parent: do not step this stream now"""
    elapsed: Int32[np.ndarray, " n"]
    """initial step count of the next episode; written by the parent, reset to 0 by the worker"""
    episode: Int64[np.ndarray, " n"]
    """episodes begun; incremented before the environment is called"""

    def select(self, rows: slice) -> SharedRows:
        """Some of the rows; the same memory."""
        return jax.tree.map(lambda array: array[rows], self)


def make_row_layout(spec: EnvironmentSpec, streams: int) -> RowLayout:
    """The layout for `streams` streams of an environment."""
    parts, action = jax.tree.leaves(spec.observation), action_struct(spec)
    observation, (last,) = (
        tuple((tuple(leaf.shape), np.dtype(leaf.dtype).str) for leaf in leaves)
        for leaves in (parts, [action])
    )
    return RowLayout(observation, last, streams)


class SharedMemory:
    """An unnamed file and the arrays in it."""

    def __init__(self, layout: RowLayout, file: int | None = None):
        """Creates the memory, all zeros; or maps the existing memory behind the descriptor `file`."""
        arrays, offsets, size = layout.arrays(), [], 0
        for shape, dtype in arrays:
            offsets.append(size)
            size += -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        self.layout = layout
        self.file = _create_file(size) if file is None else file
        try:
            memory = mmap.mmap(self.file, size)
        except BaseException:
            os.close(self.file)
            raise
        views = [
            np.frombuffer(memory, dtype, math.prod(shape), offset).reshape(shape)
            for offset, (shape, dtype) in zip(offsets, arrays, strict=True)
        ]
        parts = len(layout.observation)
        self.rows = SharedRows(tuple(views[:parts]), *views[parts:])

    def close(self) -> None:
        """Closes the file; the memory is freed with the last array that refers to it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _create_file(size: int) -> int:
    """Opens an unnamed file, in memory where the system supports it."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("derex-streams", os.MFD_CLOEXEC)
    else:
        file, path = tempfile.mkstemp(prefix="derex-streams-")
        os.unlink(path)
    try:
        os.ftruncate(file, size)
    except BaseException:
        os.close(file)
        raise
    return file


class HostSteps(NamedTuple):
    """One step of a group of streams, as arrays to fill; with leading axes, several. See `TimeStep`."""

    observation: tuple[Shaped[Any, "*n ..."], ...]
    """parts in the order of the tree's leaves"""
    reward: Float32[Any, "*n"]
    discount: Float32[Any, "*n"]
    truncated: Bool[Any, "*n"]
    first: Bool[Any, "*n"]

    @property
    def last(self) -> Bool[Any, "*n"]:
        """Whether the episode ends here."""
        return (self.discount == 0) | self.truncated

    def at(self, t: int) -> HostSteps:
        """Views of the arrays at one index of the first axis."""
        parts = tuple(part[t] for part in self.observation)  # called at every step: faster than jax.tree.map
        return HostSteps(parts, self.reward[t], self.discount[t], self.truncated[t], self.first[t])


def allocate_steps(spec: EnvironmentSpec, *axes: int) -> HostSteps:
    """Allocates arrays with the given leading axes."""
    parts = tuple(np.empty((*axes, *leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(spec.observation))
    return HostSteps(parts, *(np.empty(axes, dtype) for dtype in (np.float32, np.float32, bool, bool)))
