"""Environments of dm_env for tests: a corridor of five places, and one that shows and takes everything there is."""

from typing import Any

import dm_env
import numpy as np
from dm_env import specs


class Corridor(dm_env.Environment):
    """Ends at the right wall with reward 1; cut after nine steps; where it begins is a matter of the seed."""

    def __init__(self, seed: int):
        self._place, self._steps, self._random = 0, 0, np.random.default_rng(seed)

    def reset(self) -> dm_env.TimeStep:
        self._place, self._steps = int(self._random.integers(0, 3)), 0
        return dm_env.restart(self._seen())

    def step(self, action: Any) -> dm_env.TimeStep:
        self.action_spec().validate(action)
        self._steps += 1
        self._place = max(self._place + 2 * int(action) - 1, 0)
        if self._place == 4:
            return dm_env.termination(1.0, self._seen())
        if self._steps == 9:
            return dm_env.truncation(0.0, self._seen())
        return dm_env.transition(0.0, self._seen())

    def observation_spec(self) -> Any:
        return {
            "place": specs.DiscreteArray(5, name="place"),
            "where": specs.BoundedArray((2,), np.float64, 0.0, 4.0, name="where"),
            "text": specs.StringArray((), name="text"),
        }

    def action_spec(self) -> Any:
        return specs.DiscreteArray(2, dtype=np.int32)

    def _seen(self) -> Any:
        return {
            "place": np.int32(self._place),
            "where": np.asarray([self._place, self._steps], np.float64),
            "text": "Go right.",
        }


class Odd(Corridor):
    """Integers between bounds as actions, tuples, grey pictures and single numbers as observations."""

    def step(self, action: Any) -> dm_env.TimeStep:
        self.action_spec().validate(action)
        return dm_env.TimeStep(dm_env.StepType.MID, None, None, self._seen())

    def observation_spec(self) -> Any:
        return (specs.Array((3, 4), np.uint8, "grey"), specs.Array((), np.int64, "number"))

    def action_spec(self) -> Any:
        return specs.BoundedArray((2,), np.int32, [-1, 0], [1, 3])

    def _seen(self) -> Any:
        return (np.full((3, 4), 7, np.uint8), 5)


class Drifting(Corridor):
    """Real numbers as actions, one of them without bounds."""

    def step(self, action: Any) -> dm_env.TimeStep:
        self.action_spec().validate(action)
        return dm_env.transition(float(action[0]), self._seen(), discount=0.9)

    def action_spec(self) -> Any:
        return specs.BoundedArray((2,), np.float32, [0.0, -np.inf], [4.0, np.inf])


def corridor(seed: int) -> Corridor:
    return Corridor(seed)


def unseeded() -> Corridor:
    return Corridor(3)


def odd() -> Odd:
    return Odd(0)


def drifting() -> Drifting:
    return Drifting(0)


def no_environment() -> int:
    return 3
