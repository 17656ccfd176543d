"""One endless stream of episodes of a host environment: what `AutoReset` is to JAX environments.

What runs in a worker process: some streams, stepped when the parent says so.

A command is one byte, the number of a group; so is the answer, once all streams of that group are stepped. What goes
wrong is answered with `FAILED` and the traceback. No accelerator is touched: JAX is run on the
processor, and for JAX tasks among others only.
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


class Assignment(NamedTuple):
    """A stream that a worker is to run; plain data, for another process."""

    source: bytes
    """a pickled function without arguments that makes the environment"""
    key: Key
    """what its episodes are seeded from, besides their number: of the run, of the seed, of the stream"""
    row: int
    """where its steps go in the shared memory"""
    group: int
    """with which others it is stepped"""


def packed(source: Callable[[], HostEnvironment]) -> bytes:
    """The function for another process, which has to be able to import it."""
    try:
        return pickle.dumps(source)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"source: {source!r} cannot be sent to another process: {error}. Give a function of a module, or a "
            "functools.partial of one."
        ) from error


def episode_seed(key: Key, episode: int) -> int:
    """The seed of an episode, in [0, 2³¹): the same for the same run, stream and number, and for no other."""
    return int(np.random.SeedSequence((*key, episode)).generate_state(1)[0] >> 1)


class HostStream:
    """An environment with its time limit and its next episodes, which writes its steps into shared rows."""

    def __init__(self, environment: HostEnvironment, key: Key, row: int, rows: SharedRows):
        """Nothing is begun yet: the first step will be the first of an episode."""
        self.environment, self.key, self.row, self.rows = environment, key, row, rows
        self._elapsed, self._last = 0, True
        self._structure = jax.tree.structure(environment.spec.observation)
        self._parts = [part[row, ...] for part in rows.observation]  # views, of single numbers too
        expected = make_row_layout(environment.spec, 1).observation
        held = tuple((part.shape[1:], part.dtype.str) for part in rows.observation)
        if held != expected:
            raise ValueError(
                f"environment: {environment.spec.name} has observations of {expected} in the worker, and of "
                f"{held} in the parent. The same name has to give the same environment."
            )

    def step(self) -> None:
        """The next step; after a last one it is the first of another episode, whatever the action."""
        if self._last:
            self._begin()
        else:
            self._act(np.array(self.rows.action[self.row]))

    def _begin(self) -> None:
        rows, row = self.rows, self.row
        number = int(rows.episode[row])
        rows.episode[row] = (
            number + 1
        )  # before anything can go wrong: an episode that crashes is not begun again
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
                    f"observation: expected {part.dtype} of shape {part.shape}, as the spec of "
                    f"{self.environment.spec.name} has it; got {leaf.dtype} of shape {leaf.shape}."
                )
            part[...] = leaf


READY, FAILED = 254, 255  # answers that are no group
_PDEATHSIG = 1  # of prctl(2)


class _Alone(Exception):
    """There is no parent any more."""


class Files(NamedTuple):
    """Open files that a worker is born with."""

    memory: int
    """shared with the parent and all others"""
    commands: int
    """to read"""
    answers: int
    """to write"""
    traces: int
    """where an interpreter that dies or hangs says where it was"""


class Orders(NamedTuple):
    """What a worker is told before its first command."""

    layout: RowLayout
    streams: tuple[Assignment, ...]
    core: int | None
    """on which it stays; none: on any"""


def main(parent: int, files: Files) -> None:
    """Of the process whose parent has that id; orders come through its standard input."""
    for number in (signal.SIGINT, signal.SIGTERM):  # those of the whole group: the parent decides
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which engines started here would inherit
    _die_with(parent)
    for file in files:  # an engine that held them would keep the parent from hearing of this worker's death
        os.set_inheritable(file, False)
    faulthandler.enable(files.traces, all_threads=False)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, files.traces, all_threads=False)
    streams: list[tuple[int, HostStream]] = []
    try:
        orders = _orders()
        _leave_a_guard()
        _stay_on(orders.core)
        rows = SharedMemory(orders.layout, files.memory).rows
        for assigned in orders.streams:
            environment = pickle.loads(assigned.source)()
            streams.append((assigned.group, HostStream(environment, assigned.key, assigned.row, rows)))
        _say(files.answers, bytes([READY]))
        serve(files.commands, files.answers, streams, rows.skip)
    except _Alone:
        pass
    except BaseException:  # whatever it is, the parent shall know
        _answer(files.answers, bytes([FAILED]) + traceback.format_exc().encode())
    finally:
        for _, stream in streams:
            stream.environment.close()


def serve(commands: int, answers: int, streams: list[tuple[int, HostStream]], skip: Any) -> None:
    """Steps groups as they are asked for, until nobody can ask any more."""
    while asked := os.read(commands, 1):
        for group, stream in streams:
            if group == asked[0] and not skip[stream.row]:
                stream.step()
        _say(answers, asked)


def _orders() -> Orders:
    try:
        return pickle.load(sys.stdin.buffer)
    except EOFError as error:
        raise _Alone from error


def _say(file: int, byte: bytes) -> None:
    try:
        os.write(file, byte)
    except BrokenPipeError as error:
        raise _Alone from error


def _answer(file: int, text: bytes) -> None:
    """All of it; to nobody, if the parent is gone."""
    try:
        while text:
            text = text[os.write(file, text) :]
    except BrokenPipeError:
        pass


def _leave_a_guard() -> None:
    """A shell that waits until the parent is gone, and then ends all of this session: engines outlive their masters.

    Standard input stays open for as long as the parent lives and wants this worker.
    """
    subprocess.Popen(["/bin/sh", "-c", "read nothing; kill -KILL 0"], stdin=0, close_fds=True)


def _stay_on(core: int | None) -> None:
    """With all that it starts: an engine that is asked and waited for in turn is quickest on the core of its master.

    Neither interrupts others when it wakes (`SCHED_BATCH`): a worker that is told of the next step need not take the
    parent's core away for it.
    """
    if core is None:
        return
    with suppress(OSError):  # the core may be gone by now, or the system may not allow it; any will do then
        os.sched_setaffinity(0, {core})
        if hasattr(os, "SCHED_BATCH"):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _die_with(parent: int) -> None:
    """A killed parent takes its workers along, even one that is busy; elsewhere than on Linux, one that listens."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)
