"""Small tasks that differ in what they show, how long they are and how slow: the suites `fakes` and `fakes-many`."""

import time
from typing import Any

import jax
import numpy as np

from derex.envs.interface import HostStep
from derex.types import Discrete, EnvironmentSpec

LENGTHS = {"small": 3, "large": 5, "slow": 4}
PAYS = {"small": 1.0, "large": 2.0, "slow": 0.5}
"""at every step; a success is 7 or more, so that large tasks always succeed and small ones never do"""
SUCCESS = {"small": 7.0, "large": 7.0, "slow": None}
SIZES = {"small": 2, "large": 4, "slow": 3}
SLOWNESS = 0.004


def spec_of(name: str) -> EnvironmentSpec:
    parts: dict[str, Any] = {"numbers": jax.ShapeDtypeStruct((SIZES[name],), np.float32)}
    if name == "large":
        parts["picture"] = jax.ShapeDtypeStruct((2, 2, 1), np.uint8)
    return EnvironmentSpec(f"own name of {name}", parts, Discrete(4), 20, SUCCESS[name])


def shown(name: str, time_left: int) -> dict[str, np.ndarray]:
    seen = {"numbers": np.full(SIZES[name], time_left, np.float32)}
    return seen | ({"picture": np.full((2, 2, 1), 9, np.uint8)} if name == "large" else {})


class Fake:
    """Episodes of so many steps."""

    def __init__(self, name: str):
        self.name, self.spec = name, spec_of(name)

    def begin(self, seed: int) -> Any:
        self._left = LENGTHS[self.name]
        return shown(self.name, self._left)

    def act(self, action: np.ndarray) -> HostStep:
        if self.name == "slow":
            time.sleep(SLOWNESS)
        self._left -= 1
        return HostStep(shown(self.name, self._left), PAYS[self.name], self._left == 0, False)

    def close(self) -> None: ...


class ManyFakes:
    """The same, many at once; the next call after a last one begins the next episode."""

    def __init__(self, name: str, n: int):
        self.name, self.spec, self.num_envs, self.metadata = name, spec_of(name), n, {}

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self._left = np.full(self.num_envs, LENGTHS[self.name])
        return self._shown(), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        begins = self._left == 0
        self._left = np.where(begins, LENGTHS[self.name], self._left - 1)
        reward = np.where(begins, 0.0, PAYS[self.name])
        return self._shown(), reward, self._left == 0, np.zeros(self.num_envs, bool), {}

    def close(self) -> None: ...

    def _shown(self) -> Any:
        rows = [shown(self.name, int(left)) for left in self._left]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def make(name: str) -> Fake:
    return Fake(name)
