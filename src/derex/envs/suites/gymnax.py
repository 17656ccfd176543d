"""gymnax adapter: `gymnax:DeepSea-bsuite`, `gymnax:Breakout-MinAtar` and other ids, including registered ones.

Observations are cast to float32; a scalar state id becomes one-hot. Rendering is not supported, because gymnax has no
frames of fixed size.
"""

from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, PRNGKeyArray, Shaped

from derex._text import install_command
from derex.envs.suites.common import JaxStep, NotInstalled, cast_like, check_name, load
from derex.types import ActionSpec, Box, Discrete, EnvironmentSpec

SUCCESS = {
    "Catch-bsuite": 1.0,
    "DeepSea-bsuite": 0.5,  # 1 for the treasure, minus at most 0.01 for the moves
    "MemoryChain-bsuite": 1.0,
    "FourRooms-misc": 1.0,
    "FrozenLake-misc": 1.0,
}
"""smallest return of a solved episode; other tasks define no success"""

DOWNLOADED = ("MNISTBandit-bsuite",)
"""excluded tasks: making them downloads data"""


class Gymnax:
    """One gymnax environment with default parameters; `max_steps_in_episode` becomes `spec.horizon`.

    Since version 1.0, `step_env` reports termination separately from the time limit.
    """

    def __init__(self, name: str) -> None:
        gymnax = _package()
        check_name("gymnax", name, names())
        self._env, self._params = gymnax.make(name)
        observed, self._state = jax.eval_shape(
            lambda key: self._env.reset_env(key, self._params), jax.random.key(0)
        )
        shape = observed.shape
        self._ids = 0 if shape else int(self._env.observation_space(self._params).n)
        self.spec = EnvironmentSpec(
            name=f"gymnax:{name}",
            observation=jax.ShapeDtypeStruct(shape or (self._ids,), jnp.float32),
            action=_action(name, self._env.action_space(self._params)),
            horizon=int(self._params.max_steps_in_episode),
            success_return=SUCCESS.get(name),
        )

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Float32[Array, "*shape"]]:
        """Starts a new episode."""
        observation, state = self._env.reset_env(key, self._params)
        return cast_like(state, self._state), self._observe(observation)

    def step(self, state: Any, action: Shaped[Array, "*action"], key: PRNGKeyArray) -> JaxStep:
        """Takes one step without autoreset; continuous actions are clipped to their bounds."""
        if isinstance(self.spec.action, Box):
            action = jnp.clip(action, self.spec.action.low, self.spec.action.high)
        observation, state, reward, terminated, _ = self._env.step_env(key, state, action, self._params)
        reward, terminated = jnp.asarray(reward, jnp.float32), jnp.asarray(terminated, bool)
        return cast_like(state, self._state), self._observe(observation), reward, terminated

    def _observe(self, observation: Shaped[Array, "*any"]) -> Float32[Array, "*shape"]:
        if self._ids:
            return jax.nn.one_hot(observation, self._ids, dtype=jnp.float32)
        return jnp.asarray(observation, jnp.float32)


make = Gymnax


def names() -> list[str]:
    """Returns the names registered so far."""
    registered = _package().registered_envs
    return sorted(name for name in registered if name not in DOWNLOADED)


def _package() -> Any:
    """Imports gymnax; raises `NotInstalled` for versions before 1.0.

    There the fourth value of `step_env` also covers time limits, which would be taken for terminations.
    """
    package = load("gymnax", "gymnax")
    try:
        version = metadata.version("gymnax")
    except metadata.PackageNotFoundError:  # a local copy without metadata
        return package
    if version.partition(".")[0] == "0":
        raise NotInstalled(
            f"gymnax {version} is installed, which does not tell ends from time limits; expected 1.0 or later. Install "
            f"it with: {install_command('gymnax')} 'gymnax>=1.0'"
        )
    return package


def _action(name: str, space: Any) -> ActionSpec:
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    low, high = (jnp.unique(jnp.asarray(bound)) for bound in (space.low, space.high))
    if len(space.shape) != 1 or len(low) != 1 or len(high) != 1:
        raise ValueError(
            f"name: the actions of 'gymnax:{name}' are {space.shape} numbers from {space.low} to {space.high}; "
            f"expected a vector with the same bounds for all. Rescale them in the environment."
        )
    return Box(space.shape[0], float(low[0]), float(high[0]))
