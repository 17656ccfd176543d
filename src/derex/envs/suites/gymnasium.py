"""gymnasium adapter: `gymnasium:CartPole-v1`, or `gymnasium:package:Id-v0` for ids that another package registers.

Success is not defined: gymnasium has no field for it (`reward_threshold` applies to the mean of many episodes, and
tasks use different keys in `info`).
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8

from derex.envs.interface import HostStep
from derex.envs.suites import spaces
from derex.envs.suites.common import NotInstalled, beside_user, load, unknown
from derex.types import EnvironmentSpec

HORIZON = 10_000
"""time limit of tasks that declare none"""


class Gymnasium:
    """One gymnasium environment; its own time limit truncates episodes."""

    def __init__(
        self,
        env: Any,
        name: str,
        *,
        horizon: int | None = None,
        success_return: float | None = None,
        seen: spaces.ObservationReader | None = None,
    ):
        """Wraps an environment.

        Args:
            env: the environment; `close` closes it.
            name: name for `spec`.
            horizon: steps after which episodes are truncated; None: the registered limit, else `HORIZON`.
            success_return: return from which an episode counts as a success, if defined.
            seen: reader for its observations; None: derived from its observation space.
        """
        self._env = env
        self._seen = spaces.observations(env.observation_space) if seen is None else seen
        self._acted = spaces.acts(env.action_space)
        limit = None if env.spec is None else env.spec.max_episode_steps
        self.spec = EnvironmentSpec(
            name, self._seen.spec, self._acted.spec, horizon or limit or HORIZON, success_return
        )
        self._open = True

    def begin(self, seed: int) -> Any:
        """Starts a new episode with this seed."""
        seen, _ = self._env.reset(seed=seed)
        return self._seen.read(seen)

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Takes one step."""
        seen, reward, terminated, truncated, _ = self._env.step(self._acted.write(action))
        ended = bool(terminated)
        return HostStep(self._seen.read(seen), float(reward), ended, bool(truncated) and not ended)

    def close(self) -> None:
        """Closes the environment; later calls do nothing."""
        if self._open:
            self._open = False
            self._env.close()


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
    """Makes the environment with this id."""
    gymnasium = load("gymnasium", "gymnasium")
    return adapt(_made(gymnasium, name), f"gymnasium:{name}")


def adapt(env: Any, name: str, **options: Any) -> Gymnasium:
    """Wraps an environment, with rendering if it has any; `options` are those of `Gymnasium`."""
    return (DrawnGymnasium if env.render_mode == "rgb_array" else Gymnasium)(env, name, **options)


def names() -> list[str]:
    """Returns the ids registered so far; importing other packages registers more."""
    return sorted(load("gymnasium", "gymnasium").registry)


def _made(gymnasium: Any, name: str) -> Any:
    module, _, identifier = name.rpartition(":")
    try:
        if module:
            beside_user()
            importlib.import_module(module)
        spec = gymnasium.spec(identifier)
    except ModuleNotFoundError as error:
        raise NotInstalled(
            f"name: {name!r} needs the package {error.name!r}, which is not installed."
        ) from error
    except gymnasium.error.Error as error:
        raise unknown("gymnasium", name, names()) from error
    return made(spec)


def made(spec: Any, **options: Any) -> Any:
    """Makes the environment of a gymnasium registration, with RGB rendering if it is supported."""
    from gymnasium.envs.registration import load_env_creator
    from gymnasium.error import DependencyNotInstalled

    try:
        build = spec.entry_point if callable(spec.entry_point) else load_env_creator(spec.entry_point)
        if "rgb_array" in getattr(build, "metadata", {}).get("render_modes", ()):
            options["render_mode"] = "rgb_array"
        with quiet():
            return spec.make(disable_env_checker=True, **options)
    except (DependencyNotInstalled, ModuleNotFoundError) as error:
        raise NotInstalled(f"name: {spec.id!r} needs more packages: {error}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses gymnasium's warnings, e.g. that a newer version of the requested id exists."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=Warning, module="gymnasium")
        yield
