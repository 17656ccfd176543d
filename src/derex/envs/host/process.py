"""A worker process as its parent sees it."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress

from derex.envs.host.memory import SharedMemory
from derex.envs.host.worker import FAILED, READY, StreamSetup, WorkerFiles, WorkerSetup

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
        self._traces, path = tempfile.mkstemp(prefix="derex-trace-")
        os.unlink(path)
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
            trace = self._read_rest().decode(errors="replace")
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
        stdin = self._process.stdin
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if stdin is not None and not stdin.closed:
            with suppress(BrokenPipeError):
                stdin.close()
        for file in (self._answers, self._traces):
            if file >= 0:
                os.close(file)
        self._answers = self._traces = -1

    def _ask_for_trace(self) -> str:
        """The Python stack of a worker that hangs."""
        if not hasattr(signal, "SIGUSR1"):
            return ""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        until = time.monotonic() + TRACING_SECONDS
        while not (trace := self._trace()) and time.monotonic() < until:
            self._poll.poll(20)
        return trace

    def _read_rest(self) -> bytes:
        text = b""
        until = time.monotonic() + CLOSING_SECONDS
        while self._poll.poll(max(until - time.monotonic(), 0) * 1000):
            part = os.read(self._answers, 65536)
            if not part:
                break
            text += part
        return text

    def _trace(self) -> str:
        size = os.fstat(self._traces).st_size
        return os.pread(self._traces, size, 0).decode(errors="replace")[:LONGEST_TRACE]
