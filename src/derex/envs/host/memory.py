"""Memory that workers and their parent share: a row for each stream, laid out as the environment's spec says.

It is a file without a name, which its processes hold open and nobody else finds: when the last of them is gone,
however it went, the memory is free.

HostSteps of a group of streams, in arrays that whoever waits for them owns.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, Shaped

from derex.types import ActionSpec, Box, EnvironmentSpec, MultiDiscrete

ALIGNMENT = 64  # bytes: a cache line, and what JAX asks of arrays that it takes over without a copy


class RowLayout(NamedTuple):
    """What a row holds; plain data, for another process."""

    observation: tuple[tuple[tuple[int, ...], str], ...]
    """shape and dtype of each part, in the order of the tree's leaves"""
    action: tuple[tuple[int, ...], str]
    streams: int


class SharedRows(NamedTuple):
    """The arrays, one row for each stream; who writes what is said of each."""

    observation: tuple[Shaped[np.ndarray, "n ..."], ...]
    """worker; parts in the order of the tree's leaves"""
    reward: Float32[np.ndarray, " n"]
    """worker"""
    terminated: Bool[np.ndarray, " n"]
    """worker"""
    truncated: Bool[np.ndarray, " n"]
    """worker"""
    first: Bool[np.ndarray, " n"]
    """worker"""
    action: Shaped[np.ndarray, "n *action"]
    """parent"""
    skip: Bool[np.ndarray, " n"]
    """parent: this stream is not to be stepped now"""
    elapsed: Int32[np.ndarray, " n"]
    """parent, then set to 0 by the worker: where the time limit's counter of the next episode starts"""
    episode: Int64[np.ndarray, " n"]
    """worker: how many episodes were begun, before the environment is asked to begin"""

    def some(self, rows: slice) -> SharedRows:
        """A few of them; the same memory."""
        parts = tuple(part[rows] for part in self.observation)
        return SharedRows(parts, *(array[rows] for array in self[1:]))  # type: ignore[arg-type]


def make_row_layout(spec: EnvironmentSpec, streams: int) -> RowLayout:
    """For so many streams of an environment."""
    leaves = jax.tree.leaves(spec.observation)
    parts = tuple((tuple(leaf.shape), np.dtype(leaf.dtype).str) for leaf in leaves)
    return RowLayout(parts, action_layout(spec.action), streams)


def action_layout(action: ActionSpec) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of an action."""
    if isinstance(action, Box):
        return (action.size,), np.dtype(np.float32).str
    return (len(action.sizes),) if isinstance(action, MultiDiscrete) else (), np.dtype(np.int32).str


def _fields(layout: RowLayout) -> list[tuple[tuple[int, ...], Any]]:
    """Of all arrays, the parts of the observation first."""
    n = layout.streams
    flags: list[tuple[tuple[int, ...], Any]] = [((n,), np.bool_)]
    return [
        *(((n, *shape), dtype) for shape, dtype in layout.observation),
        ((n,), np.float32),
        *(3 * flags),
        ((n, *layout.action[0]), layout.action[1]),
        *flags,
        ((n,), np.int32),
        ((n,), np.int64),
    ]


class SharedMemory:
    """The file and its arrays."""

    def __init__(self, layout: RowLayout, file: int | None = None):
        """Made anew, all zeros; or, with a `file` from another process, the same memory again."""
        offsets, size = [], 0
        for shape, dtype in _fields(layout):
            offsets.append(size)
            size += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        self.layout = layout
        self.file = _new_file(size) if file is None else file
        try:
            self._map = mmap.mmap(self.file, size)
        except BaseException:
            os.close(self.file)
            raise
        arrays = [
            np.frombuffer(self._map, dtype, int(np.prod(shape)), offset).reshape(shape)
            for offset, (shape, dtype) in zip(offsets, _fields(layout), strict=True)
        ]
        parts = len(layout.observation)
        self.rows = SharedRows(tuple(arrays[:parts]), *arrays[parts:])

    def close(self) -> None:
        """Gives the file back; the memory itself goes with the last array that is held."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _new_file(size: int) -> int:
    """An open file without a name, in memory where the system has that."""
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
    """A step of a group of streams, in arrays that are filled; with leading axes, several. See `TimeStep`."""

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
        """Those of one place of the first axis; views."""
        parts = tuple(part[t] for part in self.observation)
        return HostSteps(parts, self.reward[t], self.discount[t], self.truncated[t], self.first[t])


def allocate_steps(spec: EnvironmentSpec, *axes: int) -> HostSteps:
    """Arrays to fill, with these axes in front."""
    parts = tuple(np.empty((*axes, *leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(spec.observation))
    numbers = (np.empty(axes, np.float32) for _ in range(2))
    return HostSteps(parts, *numbers, *(np.empty(axes, bool) for _ in range(2)))
