"""What an environment is: pure functions from state to state, for one episode that nothing cuts.

Time limits, the start of the next episode, many streams side by side and their statistics are each one wrapper's
concern (`derex.envs.wrappers`); an environment holds the rules of its task and nothing else. Those that are no JAX are
`HostEnvironment`s: objects that change, stepped in processes of their own.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, Shaped, UInt8

from derex.types import EnvironmentSpec


@runtime_checkable
class Environment(Protocol):
    """One task, unbatched; its functions are pure and may be jitted, scanned and vmapped.

    A state is an array or a NamedTuple of arrays, and `step` returns one of exactly the types that `reset` returns.
    Both functions are called at each step of a stream (which of the two counts is selected afterwards), so a reset
    must be about as cheap as a step. One that is dearer says so: `reset_ratio = 16` makes one for 16 streams.
    """

    spec: EnvironmentSpec

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Any]:
        """The state and the observation with which an episode begins."""
        ...

    def step(
        self, state: Any, action: Shaped[Array, "*action"], key: PRNGKeyArray
    ) -> tuple[Any, Any, Float32[Array, ""], Bool[Array, ""]]:
        """The next state, its observation, the reward, and whether the episode has ended by the task's own rules."""
        ...


@runtime_checkable
class NumberedEnvironment(Environment, Protocol):
    """An environment whose states can be counted: `spec.n_states > 0`."""

    def state_id(self, state: Any) -> Int32[Array, ""]:
        """The state's number in [0, spec.n_states)."""
        ...


@runtime_checkable
class DrawnEnvironment(Environment, Protocol):
    """An environment that can show itself, for `derex video`; pictures of one environment are all of one size."""

    def render(self, state: Any) -> UInt8[np.ndarray, "H W 3"]:
        """The state as people would see it; called outside of jit, on one state, and need not be pure JAX."""
        ...


class HostStep(NamedTuple):
    """What one step of a host environment gave."""

    observation: Any
    """a pytree of numpy arrays, as the spec has it; after the last step that of the last state"""
    reward: float
    terminated: bool
    """the episode has ended by the task's own rules"""
    truncated: bool
    """it was cut, though it could have gone on"""


@runtime_checkable
class HostEnvironment(Protocol):
    """One task that is stepped in Python, in a worker process: no JAX arrays go in or come out.

    After a step that ended the episode nothing but `begin` or `close` is called. A time limit of its own may truncate;
    the stream around it cuts after `spec.horizon` in any case.
    """

    spec: EnvironmentSpec

    def begin(self, seed: int) -> Any:
        """Starts an episode; the same seed gives the same one, where the task can do that. Its first observation."""
        ...

    def act(self, action: Shaped[np.ndarray, "*action"]) -> HostStep:
        """The next step."""
        ...

    def close(self) -> None:
        """Gives back what it holds; nothing is called afterwards."""
        ...


@runtime_checkable
class DrawnHostEnvironment(HostEnvironment, Protocol):
    """A host environment that can show itself."""

    def picture(self) -> UInt8[np.ndarray, "H W 3"]:
        """What people would see now."""
        ...
