"""The reward of the step before as a part of what is seen: {"observation": …, "reward": an `Amount`}.

An agent then knows what its last action brought. At a first step the reward is 0, as in every `TimeStep`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, PRNGKeyArray, Shaped

from derex.envs.interface import Environment, HostEnvironment, HostStep
from derex.types import Amount, EnvironmentSpec, TimeStep

OBSERVATION, REWARD = "observation", "reward"


def with_previous_reward(spec: EnvironmentSpec) -> EnvironmentSpec:
    """The spec of what is seen then."""
    return spec._replace(observation={OBSERVATION: spec.observation, REWARD: Amount()})


def seen(time_step: TimeStep) -> TimeStep:
    """A time step, of one stream or of many, of JAX or NumPy, as such an agent sees it."""
    return time_step._replace(observation=_both(time_step.observation, time_step.reward))


class PreviousReward:
    """A JAX environment that shows the reward; whether it numbers or draws its states stays as it is."""

    def __init__(self, env: Environment) -> None:
        self.env, self.spec = env, with_previous_reward(env.spec)
        _pass_on(self, env, ("state_id", "render", "reset_ratio"))

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Any]:
        """As the environment; there has been no reward."""
        state, observation = self.env.reset(key)
        return state, _both(observation, jnp.float32(0))

    def step(
        self, state: Any, action: Shaped[Array, "*action"], key: PRNGKeyArray
    ) -> tuple[Any, Any, Float32[Array, ""], Bool[Array, ""]]:
        """As the environment, with the reward that it gave."""
        state, observation, reward, terminated = self.env.step(state, action, key)
        return state, _both(observation, reward), reward, terminated


class HostPreviousReward:
    """The same for an environment that is no JAX."""

    def __init__(self, env: HostEnvironment) -> None:
        self.env, self.spec = env, with_previous_reward(env.spec)
        _pass_on(self, env, ("picture",))

    def begin(self, seed: int) -> Any:
        """As the environment; there has been no reward."""
        return _both(self.env.begin(seed), np.float32(0))

    def act(self, action: Shaped[np.ndarray, "*action"]) -> HostStep:
        """As the environment, with the reward that it gave."""
        step = self.env.act(action)
        return step._replace(observation=_both(step.observation, np.float32(step.reward)))

    def close(self) -> None:
        """As the environment."""
        self.env.close()


def made_with_previous_reward(source: Callable[[], HostEnvironment]) -> HostPreviousReward:
    """What `source` makes, with the reward; `partial(made_with_previous_reward, source)` can go to another process."""
    return HostPreviousReward(source())


def _both(observation: Any, reward: Any) -> dict[str, Any]:
    return {OBSERVATION: observation, REWARD: reward}


def _pass_on(wrapper: Any, env: Any, names: tuple[str, ...]) -> None:
    """What an environment may have or not: as attributes, by which `isinstance` knows it."""
    for name in names:
        if hasattr(env, name):
            setattr(wrapper, name, getattr(env, name))
