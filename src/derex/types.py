"""Records shared by every part of the package; this module imports nothing of derex.

Letters in shapes: B trajectories side by side, T steps, n distinct observations or states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Int32, Shaped

NO_ACTION = -1  # previous action at the first step of an episode, for discrete actions
MAX_ACTIONS = 2**20  # discrete actions are smaller


class Transitions(NamedTuple):
    """The data set 𝒟 = {(s, a, s')_i} of Section 3, as ids; row i of each array is one transition."""

    state: Int32[Array, " n"]
    action: Int32[Array, " n"]
    next_state: Int32[Array, " n"]


class Indexed(NamedTuple):
    """Recurring observations, each stored and encoded once: the one at (b, t) is `values[index[b, t]]`."""

    values: Any  # a pytree of arrays (n, …)
    index: Int[Any, "*batch"]


class Trajectories(NamedTuple):
    """B streams of T steps: observations, previous actions, and where episodes begin and end.

    A True in `first` starts an episode, and nothing is remembered or predicted across it: a row may hold one episode
    or, like an actor's rollout, several. Shorter streams are padded at their ends with arbitrary values, where `valid`
    is False.
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
        """Number of valid steps of each row."""
        return self.valid.sum(axis=1)

    def rows(self, index: Any) -> Trajectories:
        """Select streams: `trajectories.rows(slice(0, 64))`."""
        observation = self.observation
        if isinstance(observation, Indexed):
            chosen: Any = observation._replace(index=observation.index[index])
        else:
            chosen = jax.tree.map(lambda leaf: leaf[index], observation)
        return Trajectories(chosen, self.previous_action[index], self.first[index], self.valid[index])

    @classmethod
    def from_episodes(cls, observations: Iterable[Any], actions: Iterable[Any]) -> Trajectories:
        """Build trajectories from whole episodes of any lengths, one per row, padded to the longest.

        Args:
            observations: for each episode a pytree of arrays (T_i + 1, …): o_0, …, o_T. A list is always read as
                T_i + 1 steps; parts of an observation go into dicts or tuples.
            actions: for each episode an array (T_i, …): a_0, …, a_{T-1}; action t led from o_t to o_{t+1}.
        """
        seen, acted = _list_episodes("observations", observations), _list_episodes("actions", actions)
        if len(seen) != len(acted) or len(acted) == 0:
            raise ValueError(
                f"observations and actions: expected one of each for every episode, at least one episode; got "
                f"{len(seen)} and {len(acted)}."
            )
        previous = [_shift_actions(number, episode) for number, episode in enumerate(_action_arrays(acted))]
        seen = [_check_steps(i, episode, len(previous[i])) for i, episode in enumerate(seen)]
        steps = [len(each) for each in previous]
        valid = np.arange(max(steps)) < np.asarray(steps)[:, None]
        first = np.zeros_like(valid)
        first[:, 0] = True
        return cls(_pad("observations", seen), _pad("actions", previous), first, valid)


class TimeStep(NamedTuple):
    """Output of an environment at one step, or of many environments with leading axes.

    The step after the last one of an episode is the first of the next, and the action between the two has no effect.
    So the last observation is returned like any other: a truncated episode can bootstrap from its value, and a
    terminated one has discount 0.
    """

    observation: Any
    """a pytree of arrays"""
    reward: Float[Any, "*B"]
    """for the action that led here; 0 at a first step"""
    discount: Float[Any, "*B"]
    """0 where the episode has terminated, 1 everywhere else"""
    truncated: Bool[Any, "*B"]
    """whether the episode is cut here without having terminated"""
    first: Bool[Any, "*B"]
    """whether an episode begins here"""

    @property
    def last(self) -> Bool[Any, "*B"]:
        """Whether the episode ends here, by termination or truncation."""
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


@dataclass(frozen=True)
class Symbols:
    """A part of an observation: categorical integers, such as the tiles of a grid."""

    shape: tuple[int, ...]
    """the last axis holds the attributes of one cell: kind, colour, state"""
    sizes: tuple[int, ...]
    """along the last axis: the i-th attribute is in [0, sizes[i])"""
    dtype: Any = np.uint8


@dataclass(frozen=True)
class Words:
    """A part of an observation: an instruction as one integer per word, 0 after the last."""

    length: int = 32
    """longer instructions are cut"""
    buckets: int = 1000
    """words are numbered from 1 to buckets - 1 by a stable hash"""
    dtype: Any = np.int32

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)


@dataclass(frozen=True)
class Amount:
    """A part of an observation: numbers of any magnitude, such as rewards; large ones are compressed."""

    shape: tuple[int, ...] = ()
    dtype: Any = np.float32


class EnvironmentSpec(NamedTuple):
    """Name, observations, actions and horizon of an environment."""

    name: str
    observation: Any
    """a pytree, without leading axes, of jax.ShapeDtypeStruct, `Symbols`, `Words` and `Amount`"""
    action: ActionSpec
    horizon: int
    """steps after which an episode is cut"""
    success_return: float | None = None
    """an episode with at least this return counts as a success; None: success is not defined"""
    n_states: int = 0
    """number of states of an enumerable environment; else 0"""
    positions: Int[np.ndarray, "n 2"] | None = None
    """(row, column) at which each numbered state is drawn; several may share a place"""


def _list_episodes(name: str, episodes: Any) -> list[Any]:
    if isinstance(episodes, dict | str) or not isinstance(episodes, Iterable):
        raise TypeError(
            f"{name}: expected a list with one entry for each episode, got {type(episodes).__name__}. "
            f"One episode alone: [{name}]."
        )
    return list(episodes)


def _action_arrays(actions: list[Any]) -> list[np.ndarray]:
    """Actions as arrays; an episode without any gets the shape and dtype of the others."""
    arrays = [
        np.asarray(each, np.int32 if isinstance(each, list | tuple) and not each else None)
        for each in actions
    ]
    example = next((array for array in arrays if array.ndim and len(array)), None)
    if example is None:
        return arrays
    return [array if array.size else np.zeros((0, *example.shape[1:]), example.dtype) for array in arrays]


def _shift_actions(number: int, actions: np.ndarray) -> np.ndarray:
    """a_{-1}, a_0, …, a_{T-1}; a_{-1} means "none"."""
    if actions.ndim == 0 or actions.dtype.kind not in "iuf":
        raise ValueError(
            f"actions: expected integers or floats, an array with one row for each step of an episode; got "
            f"{actions.dtype} of shape {actions.shape} for episode {number}."
        )
    if actions.dtype.kind == "f":
        return np.concatenate([np.zeros((1, *actions.shape[1:]), actions.dtype), actions])
    if actions.size and not 0 <= actions.min() <= actions.max() < MAX_ACTIONS:
        raise ValueError(
            f"actions: episode {number} has actions from {actions.min()} to {actions.max()}, expected numbers from 0 "
            f"to less than {MAX_ACTIONS}. Number them from 0, or give vectors of floats."
        )
    start = np.full((1, *actions.shape[1:]), NO_ACTION, np.int32)
    return np.concatenate([start, actions.astype(np.int32)])


def _check_steps(number: int, observation: Any, steps: int) -> Any:
    """The observations of one episode as arrays with a row for each step."""
    is_list = isinstance(observation, list)
    if is_list and len(observation) == steps:
        observation, is_list = stack_observations(f"observations: episode {number}", observation), False
    leaves = jax.tree.leaves(observation)
    if not leaves and not is_list:
        raise ValueError(
            f"observations: episode {number} holds no array, got {observation!r}; expected one row for each step."
        )
    if not is_list and any(np.ndim(leaf) == 0 for leaf in leaves):
        raise ValueError(
            f"observations: episode {number} holds single numbers, expected arrays with one row for each step. A list "
            "inside of a dict or tuple is read as a pytree; make it an array: np.asarray(observation)."
        )
    lengths = {len(observation)} if is_list else {len(leaf) for leaf in leaves}
    if lengths != {steps}:
        raise ValueError(
            f"observations: episode {number} has {steps - 1} actions, so it needs {steps} observations (one more: "
            f"what the last action led to); got {sorted(lengths)}.{' A list is read as steps.' if is_list else ''}"
        )
    return jax.tree.map(np.asarray, observation)


def stack_observations(name: str, observations: list[Any]) -> Any:
    """Stack single observations, all with the same parts, into one pytree of arrays with a row for each."""

    def is_array(node: Any) -> bool:
        """Whether a node is a list of plain numbers, possibly nested: an array, not a pytree."""
        return isinstance(node, list) and all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(node))

    trees = [jax.tree.map(np.asarray, each, is_leaf=is_array) for each in observations]
    shapes = [jax.tree.map(np.shape, tree) for tree in trees]
    for place, (tree, shape) in enumerate(zip(trees, shapes, strict=True)):
        if jax.tree.structure(tree) != jax.tree.structure(trees[0]) or shape != shapes[0]:
            raise ValueError(
                f"{name}: a list is read as observations one by one, all with the same parts and shapes; number 0 has "
                f"{shapes[0]} and number {place} has {shape}. Parts of an observation go into a dict or tuple."
            )
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _pad(name: str, episodes: list[Any]) -> Any:
    """Episodes as rows of one pytree of arrays, zeros after their ends."""
    for number, episode in enumerate(episodes):
        if jax.tree.structure(episode) != jax.tree.structure(episodes[0]):
            outlines = [
                str(jax.tree.map(lambda _: "array", e)).replace("'array'", "array")
                for e in (episodes[0], episode)
            ]
            raise ValueError(
                f"{name}: episodes must agree in the parts of a step; episode 0 has {outlines[0]} and "
                f"episode {number} has {outlines[1]}."
            )

    def pad(*arrays: np.ndarray) -> np.ndarray:
        for number, array in enumerate(arrays):
            if (array.shape[1:], array.dtype.kind) != (arrays[0].shape[1:], arrays[0].dtype.kind):
                raise ValueError(
                    f"{name}: episodes must agree in the shape and type of a step; episode 0 has {arrays[0].dtype} of "
                    f"shape {arrays[0].shape[1:]} and episode {number} has {array.dtype} of shape {array.shape[1:]}."
                )
        longest = max(len(array) for array in arrays)
        out = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), np.result_type(*arrays))
        for row, array in zip(out, arrays, strict=True):
            row[: len(array)] = array
        return out

    return jax.tree.map(pad, *episodes)
