"""Records shared by every part of the package; this module imports nothing of derex.

Letters in shapes: B trajectories side by side, T steps, n distinct observations or states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Int32, Shaped

NO_ACTION = -1  # "previous action" of the first step of an episode, where actions are numbers


class Transitions(NamedTuple):
    """The data set 𝒟 = {(s, a, s')_i} of Section 3, as ids; row i of each array is one transition."""

    state: Int32[Array, " n"]
    action: Int32[Array, " n"]
    next_state: Int32[Array, " n"]


class Indexed(NamedTuple):
    """Observations that recur, each stored once: the one at (b, t) is `values[index[b, t]]`.

    A world of a hundred frames needs a hundred of them in memory, and a network needs to read a hundred of them,
    however many steps are walked.
    """

    values: Any  # a pytree of arrays (n, …)
    index: Int[Any, "*batch"]


class Trajectories(NamedTuple):
    """B streams of T steps: what an agent saw, what it had just done, and where episodes begin and end.

    Row b is read from left to right. A True in `first` starts an episode: nothing before it is remembered or
    predicted across it, so a row may hold one episode or, as an actor's unroll does, several. Streams of unequal
    lengths are padded at their ends, where `valid` is False; what the padding holds does not matter.
    """

    observation: Any
    """o_t: a pytree of arrays (B, T, …), or `Indexed`"""
    previous_action: Shaped[Any, "B T *action"]
    """a_{t-1}: numbers (B, T), `NO_ACTION` where there is none, or vectors (B, T, …), 0 where there is none"""
    first: Bool[Any, "B T"]
    """whether step t begins an episode"""
    valid: Bool[Any, "B T"]
    """False in the padding"""

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T)."""
        return self.first.shape

    @property
    def lengths(self) -> Int[Any, " B"]:
        """Steps of each row that are not padding."""
        return self.valid.sum(axis=1)

    def rows(self, index: Any) -> Trajectories:
        """The same streams, some of them: `trajectories.rows(slice(0, 64))`."""
        observation = self.observation
        if isinstance(observation, Indexed):
            chosen: Any = observation._replace(index=observation.index[index])
        else:
            chosen = jax.tree.map(lambda leaf: leaf[index], observation)
        return Trajectories(chosen, self.previous_action[index], self.first[index], self.valid[index])

    @classmethod
    def from_episodes(cls, observations: Sequence[Any], actions: Sequence[Any]) -> Trajectories:
        """Whole episodes of any lengths, one a row, padded to the longest.

        Args:
            observations: for each episode a pytree of arrays (T_i + 1, …): o_0, …, o_T.
            actions: for each episode an array (T_i, …): a_0, …, a_{T-1}; action t led from o_t to o_{t+1}.
        """
        if len(observations) != len(actions) or len(actions) == 0:
            raise ValueError(
                f"observations and actions: expected one of each for every episode, at least one episode; got "
                f"{len(observations)} and {len(actions)}."
            )
        previous = [_previous(np.asarray(episode)) for episode in actions]
        steps = [
            _steps(number, *each) for number, each in enumerate(zip(observations, previous, strict=True))
        ]
        longest = max(steps)

        def padded(*parts: Any) -> np.ndarray:
            arrays = [np.asarray(part) for part in parts]
            shapes = {(array.shape[1:], array.dtype.kind) for array in arrays}
            if len(shapes) != 1:
                raise ValueError(
                    f"episodes must agree in the shape and type of a step; got {sorted(map(str, shapes))}."
                )
            out = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), np.result_type(*arrays))
            for row, array in zip(out, arrays, strict=True):
                row[: len(array)] = array
            return out

        valid = np.arange(longest) < np.asarray(steps)[:, None]
        first = np.zeros_like(valid)
        first[:, 0] = True
        return cls(jax.tree.map(padded, *observations), padded(*previous), first, valid)


class TimeStep(NamedTuple):
    """What an environment says at one step; with leading axes, what many say at once.

    An episode is first, …, last; the step after a last one is the first of the next episode, and the action between
    the two has no effect. So the last observation is seen like any other: its value can be asked for where the
    episode was cut (truncation), and its discount is 0 where it truly ended (termination).
    """

    observation: Any
    """a pytree of arrays"""
    reward: Float[Any, "*B"]
    """for the action that led here; 0 at a first step"""
    discount: Float[Any, "*B"]
    """0 where the episode has terminated, 1 everywhere else"""
    truncated: Bool[Any, "*B"]
    """whether the episode is cut here, though it could have gone on"""
    first: Bool[Any, "*B"]
    """whether an episode begins here"""

    @property
    def last(self) -> Bool[Any, "*B"]:
        """Whether the episode ends here, one way or the other."""
        return (self.discount == 0) | self.truncated


class Discrete(NamedTuple):
    """One of n choices, as an integer."""

    n: int


class MultiDiscrete(NamedTuple):
    """Several choices at once, as a vector of integers; the i-th is one of sizes[i]."""

    sizes: tuple[int, ...]


class Box(NamedTuple):
    """A vector of real numbers; environments clip it to [low, high]."""

    size: int
    low: float = -1.0
    high: float = 1.0


ActionSpec = Discrete | MultiDiscrete | Box


class EnvironmentSpec(NamedTuple):
    """What an agent has to know about an environment before it begins."""

    name: str
    observation: Any
    """a pytree of jax.ShapeDtypeStruct, without leading axes"""
    action: ActionSpec
    horizon: int
    """steps after which an episode is cut"""
    success_return: float | None = None
    """an episode with at least this return counts as a success; None: success is not defined"""
    n_states: int = 0
    """number of states, where they can be numbered; else 0"""
    positions: Int[np.ndarray, "n 2"] | None = None
    """(row, column) at which each numbered state is drawn; several may share a place"""


def _previous(actions: np.ndarray) -> np.ndarray:
    """a_{-1}, a_0, …, a_{T-1} with a_{-1} standing for "none"."""
    if actions.dtype.kind in "iu":
        actions = actions.astype(np.int32)
    elif actions.dtype.kind != "f":
        raise ValueError(f"actions: expected integers or floats, got {actions.dtype}.")
    start = np.full((1, *actions.shape[1:]), NO_ACTION if actions.dtype.kind == "i" else 0, actions.dtype)
    return np.concatenate([start, actions])


def _steps(number: int, observation: Any, previous: np.ndarray) -> int:
    leaves = jax.tree.leaves(observation)
    if any(np.ndim(leaf) == 0 for leaf in leaves):
        raise ValueError(
            f"observations: episode {number} holds single numbers, expected arrays with one row for each step. A list "
            "is read as a pytree; make it an array: np.asarray(observation)."
        )
    lengths = {len(leaf) for leaf in leaves}
    if lengths != {len(previous)}:
        raise ValueError(
            f"observations: episode {number} has {len(previous) - 1} actions, so it needs {len(previous)} observations "
            f"(one more: what the last action led to); got {sorted(lengths)}."
        )
    return len(previous)
