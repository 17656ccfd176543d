"""gymnasium adapter: `gymnasium:CartPole-v1`, or `gymnasium:package:Id-v0` for ids that another package registers.

Success is not defined: gymnasium has no field for it (`reward_threshold` applies to the mean of many episodes, and
tasks use different keys in `info`).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8

from derex.envs.interface import HostStep
from derex.envs.suites import common
from derex.envs.suites.common import ClosingOnce, NotInstalled, check_name, import_user_module, load
from derex.types import EnvironmentSpec, Words

HORIZON = 10_000
"""time limit of tasks that declare none"""


def make_reader(space: Any, name: str = "observation") -> common.ObservationReader:
    """The reader for observations of a gymnasium space; dicts and tuples keep their structure."""
    from gymnasium import spaces

    match space:
        case spaces.Dict():
            return common.read_parts({key: make_reader(part, key) for key, part in space.spaces.items()})
        case spaces.Tuple():
            return common.read_parts([make_reader(part, name) for part in space.spaces])
        case spaces.Text():
            return common.ObservationReader(Words(), lambda text: common.encode(text, Words()))
        case spaces.Discrete():
            return common.read_symbols(space.n, space.start)
        case spaces.MultiDiscrete():
            return common.read_symbols(space.nvec, space.start)
        case spaces.MultiBinary():
            return common.read_numbers(space.shape, np.float32, name)
        case spaces.Box():
            return common.read_numbers(space.shape, space.dtype, name)
    raise common.Unreadable(
        f"observation_space: {type(space).__name__} cannot be read; expected Box, Discrete, MultiDiscrete, "
        "MultiBinary, Text, or a Dict or Tuple of them. Turn it into one with a gymnasium.ObservationWrapper."
    )


def make_writer(space: Any) -> common.ActionWriter:
    """The writer for actions of a gymnasium space."""
    from gymnasium import spaces

    match space:
        case spaces.Discrete():
            return common.write_choice(space.n, np.int64, space.start)
        case spaces.MultiBinary():
            return common.write_choices(np.full(space.shape, 2), np.int8)
        case spaces.MultiDiscrete():
            return common.write_choices(space.nvec, space.dtype, space.start)
        case spaces.Box():
            return common.write_numbers(space.low, space.high, space.dtype)
    raise common.Unreadable(
        f"action_space: {type(space).__name__} cannot be acted in; expected Discrete, MultiDiscrete, MultiBinary or "
        "Box. Turn it into one with a gymnasium.ActionWrapper."
    )


class Gymnasium(ClosingOnce):
    """One gymnasium environment; its own time limit truncates episodes."""

    def __init__(
        self,
        env: Any,
        name: str,
        *,
        horizon: int | None = None,
        success_return: float | None = None,
        reader: common.ObservationReader | None = None,
    ):
        """Wraps an environment.

        Args:
            env: the environment; `close` closes it.
            name: name for `spec`.
            horizon: steps after which episodes are truncated; None: the registered limit, else `HORIZON`.
            success_return: return from which an episode counts as a success, if defined.
            reader: of its observations; None: derived from its observation space.
        """
        self._env = env
        self._reader = reader or make_reader(env.observation_space)
        self._writer = make_writer(env.action_space)
        limit = horizon or (env.spec and env.spec.max_episode_steps) or HORIZON
        self.spec = EnvironmentSpec(name, self._reader.spec, self._writer.spec, limit, success_return)

    def begin(self, seed: int) -> Any:
        """Starts a new episode with this seed."""
        return self._reader.read(self._env.reset(seed=seed)[0])

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Takes one step."""
        seen, reward, terminated, truncated, _ = self._env.step(self._writer.write(action))
        ended = bool(terminated)
        return HostStep(self._reader.read(seen), float(reward), ended, bool(truncated) and not ended)


class DrawnGymnasium(Gymnasium):
    """A gymnasium environment made with `render_mode="rgb_array"`."""

    def picture(self) -> UInt8[np.ndarray, "H W 3"]:
        """Renders the environment; raises `NotInstalled` if its drawing library is missing."""
        from gymnasium.error import DependencyNotInstalled

        try:
            return np.asarray(self._env.render(), np.uint8)
        except (DependencyNotInstalled, ModuleNotFoundError) as error:
            raise NotInstalled(
                f"env: {self.spec.name} needs another package to draw itself, such as pygame: {error}"
            ) from error


def make(name: str) -> Gymnasium:
    """Makes the environment with this id; one that renders itself is a `DrawnGymnasium`."""
    gymnasium = load("gymnasium", "gymnasium")
    module, _, identifier = name.rpartition(":")
    try:
        if module:
            import_user_module(module)
        spec = gymnasium.spec(identifier)
    except ModuleNotFoundError as error:
        raise NotInstalled(
            f"name: {name!r} needs the package {error.name!r}, which is not installed."
        ) from error
    except gymnasium.error.Error:
        check_name("gymnasium", name, names())
        raise
    env = make_registered(spec)
    return (DrawnGymnasium if env.render_mode == "rgb_array" else Gymnasium)(env, f"gymnasium:{name}")


def names() -> list[str]:
    """Returns the ids registered so far; importing other packages registers more."""
    return sorted(load("gymnasium", "gymnasium").registry)


def make_registered(spec: Any, **options: Any) -> Any:
    """Makes the environment of a gymnasium registration, with RGB rendering if it is supported."""
    from gymnasium.envs.registration import load_env_creator
    from gymnasium.error import DependencyNotInstalled

    try:
        build = spec.entry_point if callable(spec.entry_point) else load_env_creator(spec.entry_point)
        if "rgb_array" in getattr(build, "metadata", {}).get("render_modes", ()):
            options["render_mode"] = "rgb_array"
        with ignore_warnings():
            return spec.make(disable_env_checker=True, **options)
    except (DependencyNotInstalled, ModuleNotFoundError) as error:
        raise NotInstalled(f"name: {spec.id!r} needs more packages: {error}") from error


@contextlib.contextmanager
def ignore_warnings() -> Iterator[None]:
    """Suppresses gymnasium's warnings, e.g. that a newer version of the requested id exists."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=Warning, module="gymnasium")
        yield
