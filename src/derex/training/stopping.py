"""SIGTERM and Ctrl-C: a run that is asked to stop does so after the update it is in, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Stopped(KeyboardInterrupt):
    """The run was asked to stop, has saved its state, and can go on from there."""


class StopRequest:
    """While it is open, SIGTERM and the first Ctrl-C are noted; a second Ctrl-C interrupts as ever."""

    def __init__(self) -> None:
        self.asked = ""
        """what asked; empty: nothing"""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # others cannot have handlers
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
