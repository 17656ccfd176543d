"""What runs in a worker process: some streams of host environments, stepped on the parent's command.

A command is one byte, the number of a group; so is the answer, once all streams of that group are stepped. Errors are
answered with `FAILED` and the traceback. Workers use no accelerator: JAX, for JAX tasks among others, runs on the CPU.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Shaped

from derex.envs.host.memory import RowLayout, SharedMemory, SharedRows, make_row_layout
from derex.envs.interface import HostEnvironment
from derex.types import Box

Key = tuple[int, ...]


class StreamSetup(NamedTuple):
    """A stream of a worker; can be pickled."""

    source: bytes
    """a pickled function without arguments that makes the environment"""
    key: Key
    """seeds the episodes together with their number: identifies run, seed and stream"""
    row: int
    """of the shared memory"""
    group: int
    """streams of one group are stepped together"""


def pickle_source(source: Callable[[], HostEnvironment]) -> bytes:
    """Pickles the function that makes an environment; the worker has to be able to import it."""
    try:
        return pickle.dumps(source)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"source: {source!r} cannot be sent to another process: {error}. Use a function of a module, or a "
            "functools.partial of one."
        ) from error


def episode_seed(key: Key, episode: int) -> int:
    """The seed of an episode, in [0, 2³¹), a function of the run, the stream and the episode's number."""
    return int(np.random.SeedSequence((*key, episode)).generate_state(1)[0] >> 1)


class HostStream:
    """An endless stream of episodes with a time limit, written into shared rows: `AutoReset` for host environments."""

    def __init__(self, environment: HostEnvironment, key: Key, row: int, rows: SharedRows):
        """The first step will be the first of an episode."""
        self.environment, self.key, self.row, self.rows = environment, key, row, rows
        self._elapsed, self._last = 0, True
        self._structure = jax.tree.structure(environment.spec.observation)
        self._parts = [part[row, ...] for part in rows.observation]  # views, of scalars too
        expected = make_row_layout(environment.spec, 1).observation
        held = tuple((part.shape[1:], part.dtype.str) for part in rows.observation)
        if held != expected:
            raise ValueError(
                f"environment: {environment.spec.name} has observations of {expected} in the worker, and of "
                f"{held} in the parent. The same name has to give the same environment."
            )

    def step(self) -> None:
        """Takes the next step; after a last step it is the first of another episode, whatever the action."""
        if self._last:
            self._begin()
        else:
            self._act(np.array(self.rows.action[self.row]))

    def _begin(self) -> None:
        rows, row = self.rows, self.row
        number = int(rows.episode[row])
        rows.episode[row] = number + 1  # before anything can fail: an episode that crashes is not repeated
        self._elapsed = int(rows.elapsed[row])
        rows.elapsed[row] = 0
        self._write(self.environment.begin(episode_seed(self.key, number)))
        rows.reward[row], rows.first[row] = 0.0, True
        rows.terminated[row] = rows.truncated[row] = self._last = False

    def _act(self, action: Shaped[np.ndarray, "*action"]) -> None:
        spec, rows, row = self.environment.spec, self.rows, self.row
        if isinstance(spec.action, Box):
            action = np.clip(action, spec.action.low, spec.action.high)
        step = self.environment.act(action)
        self._elapsed += 1
        terminated = bool(step.terminated)
        truncated = not terminated and (bool(step.truncated) or self._elapsed >= spec.horizon)
        self._write(step.observation)
        rows.reward[row], rows.first[row] = step.reward, False
        rows.terminated[row], rows.truncated[row] = terminated, truncated
        self._last = terminated or truncated

    def _write(self, observation: Any) -> None:
        leaves, structure = jax.tree.flatten(observation)
        if structure != self._structure:
            raise ValueError(f"observation: expected the parts {self._structure}, got {structure}.")
        for part, leaf in zip(self._parts, leaves, strict=True):
            leaf = np.asarray(leaf)
            if leaf.shape != part.shape or leaf.dtype != part.dtype:
                raise ValueError(
                    f"observation: expected {part.dtype} of shape {part.shape} as in the spec of "
                    f"{self.environment.spec.name}, got {leaf.dtype} of shape {leaf.shape}."
                )
            part[...] = leaf


# --- the process -----------------------------------------------------------------------------------------------------

READY, FAILED = 254, 255  # answers that are not numbers of groups
_PDEATHSIG = 1  # of prctl(2)


class _ParentGone(Exception):
    """The parent process has ended."""


class WorkerFiles(NamedTuple):
    """File descriptors that a worker inherits."""

    memory: int
    """shared with the parent and all workers"""
    commands: int
    """to read"""
    answers: int
    """to write"""
    traces: int
    """where faulthandler writes the stack of an interpreter that dies or hangs"""


class WorkerSetup(NamedTuple):
    """What a worker reads from its standard input before the first command."""

    layout: RowLayout
    streams: tuple[StreamSetup, ...]
    core: int | None
    """to stay on; None: any"""


def main(parent: int, files: WorkerFiles) -> None:
    """Runs a worker of the process with the id `parent`."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole process group: the parent decides
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which game engines started here would inherit
    _die_with(parent)
    for file in files:  # an engine that held them open would hide this worker's death from the parent
        os.set_inheritable(file, False)
    faulthandler.enable(files.traces, all_threads=False)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, files.traces, all_threads=False)
    streams: list[tuple[int, HostStream]] = []
    try:
        try:
            setup: WorkerSetup = pickle.load(sys.stdin.buffer)
        except EOFError as error:
            raise _ParentGone from error
        _start_guard()
        _pin_to(setup.core)
        rows = SharedMemory(setup.layout, files.memory).rows
        for each in setup.streams:
            environment = pickle.loads(each.source)()
            streams.append((each.group, HostStream(environment, each.key, each.row, rows)))
        _write_all(files.answers, bytes([READY]))
        while command := os.read(files.commands, 1):
            for group, stream in streams:
                if group == command[0] and not rows.skip[stream.row]:
                    stream.step()
            _write_all(files.answers, command)
    except _ParentGone:
        pass
    except BaseException:  # of whatever kind: the parent reports it
        with suppress(_ParentGone):
            _write_all(files.answers, bytes([FAILED]) + traceback.format_exc().encode())
    finally:
        for _, stream in streams:
            stream.environment.close()


def _write_all(file: int, text: bytes) -> None:
    try:
        while text:
            text = text[os.write(file, text) :]
    except BrokenPipeError as error:
        raise _ParentGone from error


def _start_guard() -> None:
    """Starts a shell that kills this session once the parent is gone: game engines may outlive their workers.

    Standard input stays open for as long as the parent lives and needs this worker.
    """
    subprocess.Popen(["/bin/sh", "-c", "read nothing; kill -KILL 0"], stdin=0, close_fds=True)


def _pin_to(core: int | None) -> None:
    """Keeps the worker and its engine on one core: they wait for each other in turn, so that one core is fastest.

    With `SCHED_BATCH` neither preempts others when it wakes: a worker that receives a command need not take the core
    from the parent.
    """
    if core is None:
        return
    with suppress(OSError):  # the core may be gone, or the system may not allow it; then any core is used
        os.sched_setaffinity(0, {core})
        if hasattr(os, "SCHED_BATCH"):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _die_with(parent: int) -> None:
    """On Linux the kernel kills the worker with its parent, even a busy one; elsewhere it ends at the next command."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)
