"""The environment interfaces: pure functions for JAX environments, objects with state for host environments.

An environment holds the rules of one task and one episode. Time limits, resets, parallel streams and statistics are
added by wrappers (`derex.envs.wrappers`).
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, Shaped, UInt8

from derex.types import Box, EnvironmentSpec, MultiDiscrete


@runtime_checkable
class Environment(Protocol):
    """One task, unbatched; its functions are pure and may be jitted, scanned and vmapped.

    A state is an array or a NamedTuple of arrays, and `step` returns a state of the types that `reset` returns. Both
    functions are called at each step of a stream and one of the results is selected, so a reset should be about as
    cheap as a step. An environment with expensive resets sets `reset_ratio = 16`: one reset serves 16 streams.
    """

    spec: EnvironmentSpec

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Any]:
        """Returns the state and the observation with which an episode begins."""

    def step(
        self, state: Any, action: Shaped[Array, "*action"], key: PRNGKeyArray
    ) -> tuple[Any, Any, Float32[Array, ""], Bool[Array, ""]]:
        """Returns the next state, its observation, the reward, and whether the episode has terminated."""


class BuiltinEnvironment(Environment):
    """An environment of derex: `start` and `move` are its dynamics, `observe` is what the agent sees of a state.

    The docstring of each class says how episodes start and what is observed.
    """

    def start(self, key: PRNGKeyArray) -> Any:
        """Returns the state in which an episode begins."""
        raise NotImplementedError

    def move(self, state: Any, action: Shaped[Array, "*action"]) -> tuple[Any, Array, Array]:
        """Returns the next state, the reward, and whether the episode has terminated."""
        raise NotImplementedError

    def observe(self, state: Any, key: PRNGKeyArray) -> Any:
        """Returns the observation of a state, which most determine without the key."""
        raise NotImplementedError

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Any]:
        state = self.start(key)
        return state, self.observe(state, key)

    def step(
        self, state: Any, action: Shaped[Array, "*action"], key: PRNGKeyArray
    ) -> tuple[Any, Any, Float32[Array, ""], Bool[Array, ""]]:
        state, reward, terminated = self.move(state, action)
        return state, self.observe(state, key), reward, terminated


def vector(n: int) -> jax.ShapeDtypeStruct:
    """The spec of an observation that is n numbers."""
    return jax.ShapeDtypeStruct((n,), np.float32)


@runtime_checkable
class NumberedEnvironment(Environment, Protocol):
    """An environment with enumerable states: `spec.n_states > 0`."""

    def state_id(self, state: Any) -> Int32[Array, ""]:
        """Returns the state's number in [0, spec.n_states)."""


@runtime_checkable
class DrawnEnvironment(Environment, Protocol):
    """An environment that can be rendered, for `derex video`; all pictures have one size."""

    def render(self, state: Any) -> UInt8[np.ndarray, "H W 3"]:
        """Returns a picture of one state; called outside of jit, need not be pure JAX."""


class HostStep(NamedTuple):
    """The result of one step of a host environment."""

    observation: Any
    """a pytree of numpy arrays, as in the spec; after the last step, that of the last state"""
    reward: float
    terminated: bool
    """the episode has ended by the rules of the task"""
    truncated: bool
    """the episode was cut although it could have continued"""


@runtime_checkable
class HostEnvironment(Protocol):
    """One task that is stepped in Python, in a worker process, with numpy arrays.

    After a step that ended the episode only `begin` or `close` is called. The environment may truncate episodes; its
    stream truncates after `spec.horizon` steps in any case.
    """

    spec: EnvironmentSpec

    def begin(self, seed: int) -> Any:
        """Starts an episode and returns its first observation; equal seeds give equal episodes, where possible."""

    def act(self, action: Shaped[np.ndarray, "*action"]) -> HostStep:
        """Takes the next step."""

    def close(self) -> None:
        """Releases all resources; nothing is called afterwards."""


@runtime_checkable
class DrawnHostEnvironment(HostEnvironment, Protocol):
    """A host environment that can be rendered."""

    def picture(self) -> UInt8[np.ndarray, "H W 3"]:
        """Returns a picture of the current state."""


def action_struct(spec: EnvironmentSpec) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an action."""
    if isinstance(spec.action, Box):
        return vector(spec.action.size)
    shape = (len(spec.action.sizes),) if isinstance(spec.action, MultiDiscrete) else ()
    return jax.ShapeDtypeStruct(shape, np.int32)
