"""A worker process: some streams of host environments, stepped on the parent's command.

A command is one byte, the number of a group; so is the answer, once all streams of that group are stepped. Errors are
answered with `FAILED` and the traceback. Workers use no accelerator: JAX, for JAX tasks among others, runs on the CPU.
The first part of this module runs in the worker; `WorkerProcess` is the worker as its parent sees it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Shaped

from derex.envs.host.memory import SharedMemory, SharedRows, make_row_layout, open_unnamed_file
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
        expected, held = (
            [(part.shape[1:], part.dtype.str) for part in each.observation]
            for each in (make_row_layout(environment.spec, 1), rows)
        )
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


READY, FAILED = 254, 255  # answers that are not numbers of groups
_PDEATHSIG = 1  # of prctl(2)


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

    layout: SharedRows
    streams: tuple[StreamSetup, ...]
    core: int | None
    """to stay on; None: any"""


class _ParentGone(Exception):
    """The parent process has ended."""


def main(parent: int, files: WorkerFiles) -> None:
    """Runs a worker of the process with the id `parent`."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole process group: the parent decides
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which game engines started here would inherit
    # On Linux the kernel kills the worker with its parent, even a busy one; elsewhere it ends at the next command.
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)
    for file in files:  # an engine that held them open would hide this worker's death from the parent
        os.set_inheritable(file, False)
    faulthandler.enable(files.traces, all_threads=False)
    faulthandler.register(signal.SIGUSR1, files.traces, all_threads=False)
    streams: list[tuple[int, HostStream]] = []
    try:
        try:
            setup: WorkerSetup = pickle.load(sys.stdin.buffer)
        except EOFError as error:
            raise _ParentGone from error
        # A shell that kills this session once the parent is gone: game engines may outlive their workers. Standard
        # input stays open for as long as the parent lives and needs this worker.
        subprocess.Popen(["/bin/sh", "-c", "read nothing; kill -KILL 0"], stdin=0, close_fds=True)
        if setup.core is not None:
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


def _pin_to(core: int) -> None:
    """Keeps the worker and its engine on one core: they wait for each other in turn, so that one core is fastest.

    With `SCHED_BATCH` neither preempts others when it wakes: a worker that receives a command need not take the core
    from the parent.
    """
    with suppress(OSError):  # the core may be gone, or the system may not allow it; then any core is used
        os.sched_setaffinity(0, {core})
        if hasattr(os, "SCHED_BATCH"):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


# --- in the parent ---------------------------------------------------------------------------------------------------

STARTING_SECONDS = 120.0  # at least, to import and to make its environments
CLOSING_SECONDS = 2.0  # to close its environments
TRACING_SECONDS = 1.0  # for a worker that hangs to print its stack
LONGEST_TRACE = 20_000  # characters that are kept
SOON = 10  # milliseconds within which most answers come
NO_ACCELERATOR = {"JAX_PLATFORMS": "cpu"}
ONE_CORE = {"OMP_NUM_THREADS": "1"}  # for each worker, unless the user sets it

_PROGRAM = """
import json, sys
path, parent, files = json.loads(sys.argv[1])
sys.path[:] = path
from derex.envs.host.worker import WorkerFiles, main
main(parent, WorkerFiles(*files))
"""


class Fault(Exception):
    """A worker has died, hangs or has raised."""

    def __init__(self, why: str, trace: str = ""):
        super().__init__(why)
        self.why, self.trace = why, trace


class WorkerProcess:
    """A process that is started at once and told its streams later.

    It is a fresh interpreter in its own session and shares only open files with the parent: JAX's threads are not
    forked, the parent's script does not run again, and Ctrl-C on a terminal does not reach it.
    """

    def __init__(self, memory: SharedMemory):
        self._memory = memory
        reads, self._commands = os.pipe()
        self._answers, writes = os.pipe()
        self._traces = open_unnamed_file("derex-trace-")
        files = WorkerFiles(memory.file, reads, writes, self._traces)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps([sys.path, os.getpid(), files])],
                pass_fds=files,
                stdin=subprocess.PIPE,
                stdout=2,  # keep the prints of libraries out of a command's output
                env=ONE_CORE | os.environ | NO_ACCELERATOR,
                start_new_session=True,
            )
        finally:
            os.close(reads)
            os.close(writes)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        self.heard = time.monotonic()
        """time of the last answer, or of the last command given while idle"""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def begin(self, streams: tuple[StreamSetup, ...], core: int | None) -> None:
        """Sends the worker its streams and its core; it makes the environments without being waited for."""
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # it is dead; `answer` will raise
            stdin.write(pickle.dumps(WorkerSetup(self._memory.layout, streams, core)))
            stdin.flush()
        self.heard = time.monotonic()

    def wait_until_ready(self, timeout: float) -> None:
        """Waits until the environments are made; raises `Fault`."""
        answer = self.answer(max(timeout, STARTING_SECONDS))
        assert answer == READY

    def ask(self, group: int) -> None:
        """Commands the worker to step a group."""
        with suppress(BrokenPipeError):
            os.write(self._commands, bytes([group]))

    def answer(self, timeout: float, begun: Callable[[], int] = lambda: 0) -> int:
        """Waits for the next answer; raises `Fault` if there is no sign of life for `timeout` seconds.

        A new episode, counted by `begun`, is one too: some environments start slowly, and many may start together.
        """
        if not self._poll.poll(SOON):
            known = begun()  # only now: it takes longer than most answers
            while not self._poll.poll(max(self.heard + timeout - time.monotonic(), 0.0) * 1000):
                if known == begun():
                    raise Fault(
                        f"gave no answer within {timeout:g} s (--worker-timeout)", self._ask_for_trace()
                    )
                known, self.heard = begun(), time.monotonic()
        answer = os.read(self._answers, 1)
        self.heard = time.monotonic()
        if not answer:
            self.wait(time.monotonic() + CLOSING_SECONDS)
            code = self._process.poll()
            killed = code is not None and code < 0
            why = f"was killed by {signal.Signals(-code).name}" if killed else f"ended with exit code {code}"
            raise Fault(why, self._trace())
        if answer[0] == FAILED:
            text, until = b"", time.monotonic() + CLOSING_SECONDS
            while self._poll.poll(max(until - time.monotonic(), 0) * 1000):
                part = os.read(self._answers, 65536)
                if not part:
                    break
                text += part
            trace = text.decode(errors="replace")
            raise Fault(f"raised {trace.strip().splitlines()[-1]}", trace)
        return answer[0]

    def close(self) -> None:
        """Tells the worker to close its environments and end; `kill` follows."""
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1

    def wait(self, deadline: float) -> None:
        """Waits until it has ended, or until that time of the monotonic clock."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(deadline - time.monotonic(), 0.01))

    def kill(self) -> None:
        """Kills the worker and the processes that it has started."""
        self.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        for file in (self._answers, self._traces):
            if file >= 0:
                os.close(file)
        self._answers = self._traces = -1

    def _ask_for_trace(self) -> str:
        """The Python stack of a worker that hangs."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        until = time.monotonic() + TRACING_SECONDS
        while not (trace := self._trace()) and time.monotonic() < until:
            self._poll.poll(20)
        return trace

    def _trace(self) -> str:
        size = os.fstat(self._traces).st_size
        return os.pread(self._traces, size, 0).decode(errors="replace")[:LONGEST_TRACE]
