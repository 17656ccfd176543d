"""Small host environments for tests, whose episodes are known in advance and which can fail in every way.

As a suite, so that worker processes can make them by name: `pretend:length=7+fault=raise+chance=0.01+log=/a/file`.
"""

import json
import os
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from derex.envs.interface import HostStep
from derex.types import Box, Discrete, EnvironmentSpec

FAULTS = ("raise", "hang-up", "kill", "exit", "hang")


def spec_of(name: str = "pretend", horizon: int = 50, box: bool = False) -> EnvironmentSpec:
    observation = {
        "picture": jax.ShapeDtypeStruct((3, 4, 1), np.uint8),
        "numbers": jax.ShapeDtypeStruct((4,), np.float32),
    }
    return EnvironmentSpec(name, observation, Box(2, -1.0, 1.0) if box else Discrete(3), horizon, 2.5)


@dataclass
class Pretend:
    """Episodes of `length` steps that pay the number of the action; the last one terminates or, if `cut`, truncates."""

    length: int = 7
    horizon: int = 50
    cut: bool = False
    box: bool = False
    wrong: bool = False
    """its observations are not what its spec says"""
    fault: str = ""
    """one of `FAULTS`; or several, `kill|raise`, one of which is drawn"""
    chance: float = 0.0
    """of failing, at each step"""
    at: int = -1
    """a step of every episode at which it fails"""
    only_first: bool = False
    """fails in episodes with the number 0 alone, as far as it is known from `log`"""
    nan_at: int = -1
    """a step of every episode at which what is seen is not finite"""
    slow: float = 0.0
    """seconds that it takes to begin"""
    engine: bool = False
    """starts a process of its own, as some games do"""
    log: str = ""
    """a file that gets a line for every episode that begins and for every one that ends"""

    def __post_init__(self) -> None:
        self.spec = spec_of(horizon=self.horizon, box=self.box)
        self.closed = 0
        if self.engine:
            self.process = subprocess.Popen(["sleep", "1000"])

    def begin(self, seed: int) -> Any:
        self._seed, self._time, self._total, self._action = seed, 0, 0.0, 0.0
        self._chance = np.random.default_rng(seed)
        threading.Event().wait(self.slow)
        self._faulty = not self.only_first or not os.path.exists(self.log)
        self._write("began")
        return self._seen()

    def act(self, action: np.ndarray) -> HostStep:
        assert 0 <= self._time < self.length
        if self._faulty and (self._time == self.at or self._chance.random() < self.chance):
            kinds = self.fault.split("|")
            fail(kinds[0] if len(kinds) == 1 else str(self._chance.choice(kinds)))
        self._action = float(np.sum(action))
        self._time, self._total = self._time + 1, self._total + self._action
        ended = self._time == self.length
        if ended or self._time == self.horizon:
            self._write("ended")
        return HostStep(self._seen(), self._action, ended and not self.cut, ended and self.cut)

    def close(self) -> None:
        self.closed += 1

    def picture(self) -> np.ndarray:
        return np.full((60, 80, 3), 10 * self._time, np.uint8)

    def _seen(self) -> Any:
        seed = np.nan if self._time == self.nan_at else self._seed / 2**31
        numbers = [seed, self._time, self._action, self._total]
        picture = np.full((3, 4, 1), self._time, np.uint8)
        return {"picture": picture, "numbers": np.array(numbers, np.float64 if self.wrong else np.float32)}

    def _write(self, event: str) -> None:
        if self.log:
            line = {"event": event, "seed": self._seed, "return": self._total, "length": self._time}
            with open(self.log, "ab", buffering=0) as file:
                file.write(json.dumps(line).encode() + b"\n")


def fail(fault: str) -> None:
    """In one of the ways of `FAULTS`."""
    if fault == "raise":
        raise RuntimeError("the dragon is asleep")
    if fault == "hang-up":  # what environments raise whose engine is gone
        raise EOFError("the engine has hung up")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "exit":
        os._exit(3)
    if fault == "hang":
        wait_for_ever()
    raise AssertionError(fault)


def wait_for_ever() -> None:
    threading.Event().wait()


def make(name: str) -> Pretend:
    """From "length=7+fault=raise"."""
    options: dict[str, Any] = {}
    for word in filter(None, name.split("+")):
        key, _, value = word.partition("=")
        options[key] = type(getattr(Pretend, key))(float(value) if key not in ("fault", "log") else value)
    return Pretend(**options)


def names() -> list[str]:
    return ["length=7"]
