"""gymnasium: `gymnasium:CartPole-v1`, and `gymnasium:package:Id-v0` for what another package registers.

The success of an episode is not defined: gymnasium has no field for it (`reward_threshold` is about means of many
episodes, and what tasks put into `info` goes by several names).
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
"""of tasks that say nothing of a time limit"""


class Gymnasium:
    """One environment of gymnasium; its own time limit truncates."""

    def __init__(
        self,
        env: Any,
        name: str,
        *,
        horizon: int | None = None,
        success_return: float | None = None,
        seen: spaces.ObservationReader | None = None,
    ):
        """Takes an environment that is made.

        Args:
            env: the environment; whoever closes this one closes it.
            name: as it stands in the specification.
            horizon: steps after which episodes are cut; None: those of its registration, else `HORIZON`.
            success_return: as in the specification.
            seen: how its observations are read; None: as its space says.
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
        """Resets with the seed."""
        seen, _ = self._env.reset(seed=seed)
        return self._seen.read(seen)

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Steps once."""
        seen, reward, terminated, truncated, _ = self._env.step(self._acted.write(action))
        ended = bool(terminated)
        return HostStep(self._seen.read(seen), float(reward), ended, bool(truncated) and not ended)

    def close(self) -> None:
        """Closes it, once."""
        if self._open:
            self._open = False
            self._env.close()


class DrawnGymnasium(Gymnasium):
    """One that draws itself: it was made with `render_mode="rgb_array"`."""

    def picture(self) -> UInt8[np.ndarray, "H W 3"]:
        """Its own drawing; raises `NotInstalled` if the drawing library is missing."""
        from gymnasium.error import DependencyNotInstalled

        try:
            return np.asarray(self._env.render(), np.uint8)
        except (DependencyNotInstalled, ModuleNotFoundError) as error:
            raise NotInstalled(
                f"env: {self.spec.name} needs another package to draw itself, such as pygame: {error}"
            ) from error


def make(name: str) -> Gymnasium:
    """The environment that gymnasium makes of this id."""
    gymnasium = load("gymnasium", "gymnasium")
    return adapt(_made(gymnasium, name), f"gymnasium:{name}")


def adapt(env: Any, name: str, **options: Any) -> Gymnasium:
    """An environment that is made, drawn where it can draw itself; options as `Gymnasium` has them."""
    return (DrawnGymnasium if env.render_mode == "rgb_array" else Gymnasium)(env, name, **options)


def names() -> list[str]:
    """Ids that are registered now; importing other packages registers more."""
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
    """The environment of a registration, drawing itself where it can."""
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
    """Without gymnasium's remarks, such as that there is a newer version: the name asks for this one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=Warning, module="gymnasium")
        yield
