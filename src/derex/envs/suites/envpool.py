"""envpool adapter: `envpool:BabyAI-GoToObj-v0` and many other ids, stepped in batches by C++ threads.

`make_many` returns a vector environment with gymnasium's next-step autoreset and derex's specification. MiniGrid and
BabyAI observations match `derex.envs.suites.minigrid`, so agents transfer between the two, but a seed gives different
grids. Images are channels-last.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float32, Int32, Shaped

from derex.envs.interface import HostStep
from derex.envs.suites import common as words
from derex.envs.suites import minigrid, spaces
from derex.envs.suites.common import load, unknown
from derex.envs.suites.gymnasium import HORIZON, quiet
from derex.types import Discrete, EnvironmentSpec

HANGING = {"BabyAI-SynthS5R2-v0": (1, 2, 7)}
"""ids whose grid generation never terminates for some seeds, with the last version known to be affected"""

_CHANNELS = (1, 3, 4)
_SEEDS = 2**31 - 1


class EnvPool:
    """A batch of n environments; like a `gymnasium.vector.VectorEnv`, without its spaces."""

    def __init__(self, pool: Any, name: str):
        """Wraps the return value of `envpool.make_gymnasium`."""
        self._pool = pool
        self.num_envs = int(pool.config["num_envs"])
        self.metadata = pool.metadata
        self._told = told = "mission" in getattr(pool.observation_space, "spaces", {})
        seen = (
            spaces.ObservationReader(minigrid.OBSERVATION, _read_missions)
            if told
            else many(pool.observation_space)
        )
        self._read = seen.read
        self._acted = spaces.acts(pool.action_space)
        success = minigrid.SUCCESS if told else None
        self.spec = EnvironmentSpec(name, seen.spec, self._acted.spec, _horizon(pool.config), success)
        self._open = True

    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Returns the first observations; seeds are fixed when the pool is made."""
        seen, info = self._pool.reset()
        return self._read(seen), info

    def step(
        self, actions: Shaped[Any, "n *action"]
    ) -> tuple[
        Any, Float32[np.ndarray, " n"], Bool[np.ndarray, " n"], Bool[np.ndarray, " n"], dict[str, Any]
    ]:
        """Returns observations, rewards, terminated, truncated and info."""
        seen, reward, terminated, truncated, info = self._pool.step(self._actions(actions))
        ended = np.asarray(terminated, bool)
        if self._told:  # envpool reports success at the time limit as a truncation
            ended = ended | (np.asarray(truncated, bool) & (np.asarray(reward) > 0))
        cut = np.asarray(truncated, bool) & ~ended
        return self._read(seen), np.asarray(reward, np.float32), ended, cut, info

    def close(self) -> None:
        """Closes the pool; later calls do nothing."""
        if self._open:
            self._open = False
            self._pool.close()

    def _actions(self, actions: Shaped[Any, "n *action"]) -> np.ndarray:
        array, spec = np.asarray(actions), self.spec.action
        if len(array) != self.num_envs:
            raise ValueError(
                f"actions: expected one for each of {self.num_envs} environments, got {len(array)}."
            )
        if isinstance(spec, Discrete) and array.ndim == 1 and array.dtype.kind in "iu":
            if np.any((array < 0) | (array >= spec.n)):
                raise ValueError(f"actions: expected integers from 0 to {spec.n - 1}, got {array}.")
            return array.astype(np.int32) + int(self._pool.action_space.start)
        return np.stack([self._acted.write(row) for row in array])


class PoolOfOne:
    """A single environment; each episode makes a new pool, so that its seed takes effect."""

    def __init__(self, name: str):
        """Makes a pool to read its specification."""
        self._name = name
        self._pool = make_many(name, 1, 0)
        self.spec = self._pool.spec

    def begin(self, seed: int) -> Any:
        """Starts a new episode in a new pool with this seed."""
        self._pool.close()
        self._pool = make_many(self._name, 1, seed)
        return _first(self._pool.reset()[0])

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Takes one step."""
        seen, reward, terminated, truncated, _ = self._pool.step(np.asarray(action)[None])
        return HostStep(_first(seen), float(reward[0]), bool(terminated[0]), bool(truncated[0]))

    def close(self) -> None:
        """Closes the pool."""
        self._pool.close()


def make_many(name: str, n: int, seed: int) -> EnvPool:
    """Makes n environments with this id, seeded with seed, seed + 1, …"""
    package = load("envpool", "envpool")
    known = names()
    if name not in known:
        raise unknown("envpool", name, known)
    _refuse_hanging(name, package.__version__)
    if n < 1:
        raise ValueError(f"n: expected at least one environment, got {n}.")
    with quiet():
        config = package.make_spec(name).config
        limit = (
            {} if config.max_episode_steps or hasattr(config, "room_size") else {"max_episode_steps": HORIZON}
        )
        pool = package.make_gymnasium(name, num_envs=n, seed=seed % _SEEDS, **limit)
        return EnvPool(pool, f"envpool:{name}")


def make(name: str) -> PoolOfOne:
    """Makes one environment with this id; use `make_many` for batches."""
    return PoolOfOne(name)


def names() -> list[str]:
    """Returns all ids of the package."""
    return sorted(load("envpool", "envpool").list_all_envs())


def many(space: Any) -> spaces.ObservationReader:
    """Returns a reader for batched observations of a Box, a Discrete, or a Dict of them."""
    from gymnasium.spaces import Box, Dict

    if isinstance(space, Dict):
        parts = {name: many(part) for name, part in space.spaces.items()}
        return spaces.ObservationReader(
            {name: part.spec for name, part in parts.items()},
            lambda seen: {name: part.read(seen[name]) for name, part in parts.items()},
        )
    if isinstance(space, Box) and _channels_first(space):
        channels, height, width = space.shape
        spec = jax.ShapeDtypeStruct((height, width, channels), np.uint8)
        return spaces.ObservationReader(spec, lambda seen: np.ascontiguousarray(np.moveaxis(seen, 1, -1)))
    single = spaces.observations(space)
    if isinstance(space, Box):
        shape, dtype = single.spec.shape, single.spec.dtype
        return single._replace(read=lambda seen: np.asarray(seen, dtype).reshape(len(seen), *shape))
    return single._replace(read=lambda seen: np.stack([single.read(row) for row in seen]))


def _refuse_hanging(name: str, version: str) -> None:
    if name in HANGING and tuple(int(number) for number in re.findall(r"\d+", version)[:3]) <= HANGING[name]:
        raise ValueError(
            f"name: 'envpool:{name}' hangs in envpool {version}: for some seeds it never finds a grid. Use "
            f"'{minigrid.suite_of(name)}:{name}', which is slower."
        )


def _channels_first(space: Any) -> bool:
    shape = space.shape
    return (
        space.dtype == np.uint8 and len(shape) == 3 and shape[0] in _CHANNELS and shape[-1] not in _CHANNELS
    )


def _read_missions(seen: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        "direction": np.asarray(seen["direction"], np.uint8)[:, None],
        "image": np.asarray(seen["image"], np.uint8),
        "mission": np.stack([_mission_words(row.tobytes()) for row in seen["mission"]]),
    }


@lru_cache(maxsize=4096)
def _mission_words(mission: bytes) -> Int32[np.ndarray, " words"]:
    return words.encode(mission, minigrid.OBSERVATION["mission"])


def _horizon(config: dict[str, Any]) -> int:
    """Returns the longest possible episode; BabyAI's time limits depend on the mission."""
    if config["max_episode_steps"]:
        return int(config["max_episode_steps"])
    if "room_size" in config:
        return minigrid.longest(config["room_size"], config["num_rows"], config["num_cols"])
    return HORIZON


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)
