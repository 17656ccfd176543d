"""Host environments that show the parts of many tasks, and JAX environments as host environments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from derex.envs import registry
from derex.envs.interface import HostEnvironment, HostStep
from derex.envs.merging import layout


class HostPadded:
    """A host environment that shows the parts of all tasks; whether it draws itself stays as it is."""

    def __init__(self, name: str, env: HostEnvironment, parts: dict[str, Any]) -> None:
        self.env, self._layout = env, layout(env.spec, parts)
        self.spec = env.spec._replace(name=name, observation=parts)
        if hasattr(env, "picture"):
            self.picture = env.picture

    def begin(self, seed: int) -> Any:
        """As the environment."""
        return self._layout.padded(self.env.begin(seed), np)

    def act(self, action: Shaped[np.ndarray, "*action"]) -> HostStep:
        """As the environment."""
        step = self.env.act(action)
        return step._replace(observation=self._layout.padded(step.observation, np))

    def close(self) -> None:
        """As the environment."""
        self.env.close()


def made_padded(name: str, source: Callable[[], HostEnvironment], parts: dict[str, Any]) -> HostPadded:
    """What `source` makes, padded; `partial(made_padded, …)` can go to another process."""
    return HostPadded(name, source(), parts)


class JaxTask:
    """A JAX environment that is stepped in a worker, beside tasks that are none; on the worker's processor."""

    def __init__(self, name: str) -> None:
        """The environment of that name."""
        self._env, self._reset, self._step = _compiled(name)
        self.spec = self._env.spec._replace(n_states=0, positions=None)
        if hasattr(self._env, "render"):
            self.picture = self._picture

    def begin(self, seed: int) -> Any:
        """Starts an episode; all of its randomness is the seed's."""
        self._seed, self._time = np.uint32(seed), 0
        self._state, observation = self._reset(self._seed)
        return jax.device_get(observation)

    def act(self, action: Shaped[np.ndarray, "*action"]) -> HostStep:
        """The next step."""
        self._time += 1
        self._state, *seen = self._step(self._state, action, self._seed, np.uint32(self._time))
        observation, reward, terminated = jax.device_get(seen)
        return HostStep(observation, float(reward), bool(terminated), False)

    def close(self) -> None:
        """There is nothing to give back."""

    def _picture(self) -> np.ndarray:
        return self._env.render(jax.device_get(self._state))  # type: ignore[attr-defined]


@cache
def _compiled(name: str) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
    """The environment, its reset and its step; once for all streams of a worker."""
    env = registry.make(name)

    def reset(seed: Any) -> Any:
        return env.reset(jax.random.fold_in(jax.random.key(seed), 0))

    def step(state: Any, action: Any, seed: Any, time: Any) -> Any:
        return env.step(state, action, jax.random.fold_in(jax.random.key(seed), time))

    return env, jax.jit(reset), jax.jit(step)
