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
from derex.envs.host.worker import FAILED, READY, Assignment, Files, Orders

STARTING_SECONDS = 120.0  # at least, to import and to make its environments
CLOSING_SECONDS = 2.0  # to close its environments
TRACING_SECONDS = 1.0  # for a worker that hangs, to say where
LONGEST_TRACE = 20_000  # characters that are kept
SOON = 10  # milliseconds within which most answers come
NO_ACCELERATOR = {"JAX_PLATFORMS": "cpu"}
ONE_CORE = {"OMP_NUM_THREADS": "1"}  # each, unless somebody knows better

_PROGRAM = """
import json, sys
path, parent, files = json.loads(sys.argv[1])
sys.path[:] = path
from derex.envs.host.worker import Files, main
main(parent, Files(*files))
"""


class Fault(Exception):
    """A worker has died, hangs or has raised."""

    def __init__(self, why: str, trace: str = "", hanging: bool = False):
        super().__init__(why)
        self.why, self.trace, self.hanging = why, trace, hanging


class WorkerProcess:
    """Started at once, and told later which streams it has.

    It is a fresh interpreter, in a session of its own: it shares nothing with the parent but open files, so that JAX's
    threads are no danger, the parent's script is not run again, and Ctrl-C on a terminal does not reach it.
    """

    def __init__(self, memory: SharedMemory):
        self._memory = memory
        reads, self._commands = os.pipe()
        self._answers, writes = os.pipe()
        self._traces = _trace_file()
        files = Files(memory.file, reads, writes, self._traces)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps([sys.path, os.getpid(), files])],
                pass_fds=files,
                stdin=subprocess.PIPE,
                stdout=2,  # what libraries have to say does not go among a command's results
                env=ONE_CORE | os.environ | NO_ACCELERATOR,
                start_new_session=True,
            )
        finally:
            os.close(reads)
            os.close(writes)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        self.heard = time.monotonic()
        """when it last said something, or was last asked while it had nothing to do"""

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def begin(self, streams: tuple[Assignment, ...], core: int | None) -> None:
        """Tells it its streams and its core, if it has one; it makes their environments meanwhile."""
        orders = Orders(self._memory.layout, streams, core)
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # it is dead; whoever waits for it will hear
            stdin.write(pickle.dumps(orders))
            stdin.flush()
        self.heard = time.monotonic()

    def wait_until_ready(self, timeout: float) -> None:
        """Until its environments are made; raises `Fault`."""
        answer = self.answer(max(timeout, STARTING_SECONDS))
        assert answer == READY

    def ask(self, group: int) -> None:
        """To step a group."""
        with suppress(BrokenPipeError):
            os.write(self._commands, bytes([group]))

    def answer(self, timeout: float, begun: Callable[[], int] = lambda: 0) -> int:
        """The next answer; raises `Fault` where there is none within `timeout` of the last sign of life.

        An episode more that is `begun` is one too: some environments take long to begin, and many begin together.
        """
        if not self._poll.poll(SOON):
            known = begun()  # not before: it costs more than the answer itself
            while not self._poll.poll(max(self.heard + timeout - time.monotonic(), 0.0) * 1000):
                if known == begun():
                    raise self._hanging(timeout)
                known, self.heard = begun(), time.monotonic()
        answer = os.read(self._answers, 1)
        self.heard = time.monotonic()
        if not answer:
            raise self._dead()
        if answer[0] == FAILED:
            trace = self._rest().decode(errors="replace")
            raise Fault(f"raised {trace.strip().splitlines()[-1]}", trace)
        return answer[0]

    def close(self) -> None:
        """Lets it close its environments; `kill` follows."""
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1

    def wait(self, deadline: float) -> None:
        """Until it has ended, at most until that moment of the monotonic clock."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(deadline - time.monotonic(), 0.01))

    def kill(self) -> None:
        """Ends it, and whatever it has started, at once."""
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

    def _hanging(self, timeout: float) -> Fault:
        """It is asked where it is, in Python at least."""
        trace = ""
        if hasattr(signal, "SIGUSR1"):
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)
            until = time.monotonic() + TRACING_SECONDS
            while not (trace := self._trace()) and time.monotonic() < until:
                self._poll.poll(20)
        return Fault(f"gave no answer within {timeout:g} s (--worker-timeout)", trace, hanging=True)

    def _dead(self) -> Fault:
        self.wait(time.monotonic() + CLOSING_SECONDS)
        code = self._process.poll()
        if code is not None and code < 0:
            return Fault(f"was killed by {signal.Signals(-code).name}", self._trace())
        return Fault(f"ended with exit code {code}", self._trace())

    def _rest(self) -> bytes:
        """All that it still has to say."""
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


def _trace_file() -> int:
    """An open file without a name."""
    file, path = tempfile.mkstemp(prefix="derex-trace-")
    os.unlink(path)
    return file
