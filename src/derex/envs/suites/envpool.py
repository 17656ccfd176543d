"""envpool adapter: `envpool:BabyAI-GoToObj-v0` and many other ids, stepped in batches by C++ threads.

`make_many` returns a vector environment with gymnasium's next-step autoreset and derex's specification. MiniGrid and
BabyAI observations match `derex.envs.suites.minigrid`, so agents transfer between the two, but a seed gives different
grids. Images are channels-last.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float32, Shaped

from derex.envs.interface import HostStep
from derex.envs.suites import gymnasium, minigrid
from derex.envs.suites.common import ClosingOnce, ObservationReader, check_name, load, read_parts
from derex.types import Discrete, EnvironmentSpec

HANGING = {"BabyAI-SynthS5R2-v0": (1, 2, 7)}
"""ids whose grid generation never terminates for some seeds, with the last version known to be affected"""

_CHANNELS = (1, 3, 4)
_SEEDS = 2**31 - 1


class EnvPool(ClosingOnce):
    """A batch of n environments; like a `gymnasium.vector.VectorEnv`, without its spaces."""

    def __init__(self, pool: Any, name: str):
        """Wraps the return value of `envpool.make_gymnasium`."""
        self._env, self.metadata = pool, pool.metadata
        self.num_envs = int(pool.config["num_envs"])
        space = pool.observation_space
        self._told = "mission" in getattr(space, "spaces", {})
        reader = (
            ObservationReader(minigrid.OBSERVATION, _read_missions)
            if self._told
            else _make_batch_reader(space)
        )
        self._read, self._writer = reader.read, gymnasium.make_writer(pool.action_space)
        success = minigrid.SUCCESS if self._told else None
        self.spec = EnvironmentSpec(name, reader.spec, self._writer.spec, _horizon(pool.config), success)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Returns the first observations; seeds are fixed when the pool is made."""
        seen, info = self._env.reset()
        return self._read(seen), info

    def step(
        self, actions: Shaped[Any, "n *action"]
    ) -> tuple[
        Any, Float32[np.ndarray, " n"], Bool[np.ndarray, " n"], Bool[np.ndarray, " n"], dict[str, Any]
    ]:
        """Returns observations, rewards, terminated, truncated and info."""
        seen, reward, terminated, truncated, info = self._env.step(self._actions(actions))
        ended = np.asarray(terminated, bool)
        if self._told:  # envpool reports success at the time limit as a truncation
            ended = ended | (np.asarray(truncated, bool) & (np.asarray(reward) > 0))
        cut = np.asarray(truncated, bool) & ~ended
        return self._read(seen), np.asarray(reward, np.float32), ended, cut, info

    def _actions(self, actions: Shaped[Any, "n *action"]) -> np.ndarray:
        array, spec = np.asarray(actions), self.spec.action
        if len(array) != self.num_envs:
            raise ValueError(
                f"actions: expected one for each of {self.num_envs} environments, got {len(array)}."
            )
        if isinstance(spec, Discrete) and array.ndim == 1 and array.dtype.kind in "iu":
            if np.any((array < 0) | (array >= spec.n)):
                raise ValueError(f"actions: expected integers from 0 to {spec.n - 1}, got {array}.")
            return array.astype(np.int32) + int(self._env.action_space.start)
        return np.stack([self._writer.write(row) for row in array])


class PoolOfOne:
    """A single environment; each episode makes a new pool, so that its seed takes effect."""

    def __init__(self, name: str):
        """Makes a pool to read its specification."""
        self._name, self._pool = name, make_many(name, 1, 0)
        self.spec = self._pool.spec

    def begin(self, seed: int) -> Any:
        """Starts a new episode in a new pool with this seed."""
        self._pool.close()
        self._pool = make_many(self._name, 1, seed)
        return jax.tree.map(lambda leaf: leaf[0], self._pool.reset()[0])

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Takes one step."""
        batch = self._pool.step(np.asarray(action)[None])[:4]
        seen, reward, terminated, truncated = jax.tree.map(lambda leaf: leaf[0], batch)
        return HostStep(seen, float(reward), bool(terminated), bool(truncated))

    def close(self) -> None:
        """Closes the pool."""
        self._pool.close()


def make_many(name: str, n: int, seed: int) -> EnvPool:
    """Makes n environments with this id, seeded with seed, seed + 1, …"""
    package = load("envpool", "envpool")
    check_name("envpool", name, names())
    check_hanging(name, package.__version__)
    if n < 1:
        raise ValueError(f"n: expected at least one environment, got {n}.")
    with gymnasium.ignore_warnings():
        config = package.make_spec(name).config
        limited = config.max_episode_steps or hasattr(config, "room_size")
        limit = {} if limited else {"max_episode_steps": gymnasium.HORIZON}
        pool = package.make_gymnasium(name, num_envs=n, seed=seed % _SEEDS, **limit)
        return EnvPool(pool, f"envpool:{name}")


make = PoolOfOne


def names() -> list[str]:
    """Returns all ids of the package."""
    return sorted(load("envpool", "envpool").list_all_envs())


def check_hanging(name: str, version: str) -> None:
    """Raises if the environment hangs in this version of envpool."""
    if name in HANGING and tuple(int(number) for number in re.findall(r"\d+", version)[:3]) <= HANGING[name]:
        raise ValueError(
            f"name: 'envpool:{name}' hangs in envpool {version}: for some seeds it never finds a grid. Use "
            f"'{minigrid.suite_of(name)}:{name}', which is slower."
        )


def _make_batch_reader(space: Any) -> ObservationReader:
    """A reader for batched observations of a Box, a Discrete, or a Dict of them."""
    from gymnasium.spaces import Box, Dict

    if isinstance(space, Dict):
        return read_parts({name: _make_batch_reader(part) for name, part in space.spaces.items()})
    single, shape = gymnasium.make_reader(space), space.shape
    if not isinstance(space, Box):
        return single._replace(read=lambda seen: np.stack([single.read(row) for row in seen]))
    channels_first = space.dtype == np.uint8 and len(shape) == 3 and shape[0] in _CHANNELS
    if channels_first and shape[-1] not in _CHANNELS:
        spec = jax.ShapeDtypeStruct((*shape[1:], shape[0]), np.uint8)
        return ObservationReader(spec, lambda seen: np.ascontiguousarray(np.moveaxis(seen, 1, -1)))
    shape, dtype = single.spec.shape, single.spec.dtype
    return single._replace(read=lambda seen: np.asarray(seen, dtype).reshape(len(seen), *shape))


def _read_missions(seen: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        "direction": np.asarray(seen["direction"], np.uint8)[:, None],
        "image": np.asarray(seen["image"], np.uint8),
        "mission": np.stack([minigrid.mission_words(row.tobytes()) for row in seen["mission"]]),
    }


def _horizon(config: dict[str, Any]) -> int:
    """Returns the longest possible episode; BabyAI's time limits depend on the mission."""
    if config["max_episode_steps"]:
        return int(config["max_episode_steps"])
    if "room_size" in config:
        return minigrid.longest(config["room_size"], config["num_rows"], config["num_cols"])
    return gymnasium.HORIZON
