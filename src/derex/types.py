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

NO_ACTION = -1  # "previous action" of the first step of an episode, where actions are numbers
MAX_ACTIONS = 2**20  # numbers of actions are smaller


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
    def from_episodes(cls, observations: Iterable[Any], actions: Iterable[Any]) -> Trajectories:
        """Whole episodes of any lengths, one a row, padded to the longest.

        Args:
            observations: for each episode a pytree of arrays (T_i + 1, …): o_0, …, o_T. A list is always read as
                steps, T_i + 1 observations one after the other; parts of an observation go into dicts or tuples.
            actions: for each episode an array (T_i, …): a_0, …, a_{T-1}; action t led from o_t to o_{t+1}.
        """
        seen, done = _episodes("observations", observations), _episodes("actions", actions)
        if len(seen) != len(done) or len(done) == 0:
            raise ValueError(
                f"observations and actions: expected one of each for every episode, at least one episode; got "
                f"{len(seen)} and {len(done)}."
            )
        previous = [_previous(number, episode) for number, episode in enumerate(_filled_in(done))]
        seen = [_arrays(number, *each) for number, each in enumerate(zip(seen, previous, strict=True))]
        steps = [len(each) for each in previous]
        valid = np.arange(max(steps)) < np.asarray(steps)[:, None]
        first = np.zeros_like(valid)
        first[:, 0] = True
        return cls(_padded("observations", seen), _padded("actions", previous), first, valid)


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


@dataclass(frozen=True)
class Symbols:
    """A part of an observation: integers that name things, such as the tiles of a grid; their order means nothing."""

    shape: tuple[int, ...]
    """its last axis holds what is said of one thing: kind, colour, state"""
    sizes: tuple[int, ...]
    """along the last axis: the i-th number is one of sizes[i]"""
    dtype: Any = np.uint8


@dataclass(frozen=True)
class Words:
    """A part of an observation: an instruction, as a number for each word, 0 after the last."""

    length: int = 32
    """longer instructions are cut"""
    buckets: int = 1000
    """words are numbered from 1 to less than this, by a hash that never changes"""
    dtype: Any = np.int32

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)


@dataclass(frozen=True)
class Amount:
    """A part of an observation: a number of any size, such as a reward; large ones count by their order."""

    shape: tuple[int, ...] = ()
    dtype: Any = np.float32


class EnvironmentSpec(NamedTuple):
    """What an agent has to know about an environment before it begins."""

    name: str
    observation: Any
    """a pytree, without leading axes, of jax.ShapeDtypeStruct and, where numbers alone do not say what a part is,
    `Symbols`, `Words` and `Amount`"""
    action: ActionSpec
    horizon: int
    """steps after which an episode is cut"""
    success_return: float | None = None
    """an episode with at least this return counts as a success; None: success is not defined"""
    n_states: int = 0
    """number of states, where they can be numbered; else 0"""
    positions: Int[np.ndarray, "n 2"] | None = None
    """(row, column) at which each numbered state is drawn; several may share a place"""


# --- episodes --------------------------------------------------------------------------------------------------------


def _episodes(name: str, episodes: Any) -> list[Any]:
    if isinstance(episodes, dict | str) or not isinstance(episodes, Iterable):
        raise TypeError(
            f"{name}: expected a list with one entry for each episode, got {type(episodes).__name__}. "
            f"One episode alone: [{name}]."
        )
    return list(episodes)


def _filled_in(actions: list[Any]) -> list[np.ndarray]:
    """Actions as arrays; an episode without any has those of the others, none of them."""
    arrays = [np.asarray(episode, np.int32 if _is_empty_list(episode) else None) for episode in actions]
    example = next((array for array in arrays if array.ndim and len(array)), None)
    if example is None:
        return arrays
    return [array if array.size else np.zeros((0, *example.shape[1:]), example.dtype) for array in arrays]


def _is_empty_list(values: Any) -> bool:
    return isinstance(values, list | tuple) and len(values) == 0


def _previous(number: int, actions: np.ndarray) -> np.ndarray:
    """a_{-1}, a_0, …, a_{T-1} with a_{-1} standing for "none"."""
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


def _arrays(number: int, observation: Any, previous: np.ndarray) -> Any:
    """The observations of one episode, a row for each step in every part."""
    needed = len(previous)
    if isinstance(observation, list) and len(observation) == needed:
        observation = stack_observations(f"observations: episode {number}", observation)
    elif isinstance(observation, list):
        raise ValueError(_wrong_number(number, needed, [len(observation)]) + " A list is read as steps.")
    observation = jax.tree.map(np.asarray, observation)
    leaves = jax.tree.leaves(observation)
    if not leaves:
        raise ValueError(
            f"observations: episode {number} holds no array, got {observation!r}; expected one row for each step."
        )
    if any(leaf.ndim == 0 for leaf in leaves):
        raise ValueError(
            f"observations: episode {number} holds single numbers, expected arrays with one row for each step. A list "
            "inside of a dict or tuple is read as a pytree; make it an array: np.asarray(observation)."
        )
    lengths = {len(leaf) for leaf in leaves}
    if lengths != {needed}:
        raise ValueError(_wrong_number(number, needed, sorted(lengths)))
    return observation


def _wrong_number(number: int, needed: int, got: list[int]) -> str:
    return (
        f"observations: episode {number} has {needed - 1} actions, so it needs {needed} observations (one more: what "
        f"the last action led to); got {got}."
    )


def stack_observations(name: str, observations: list[Any]) -> Any:
    """Observations one by one, all of the same parts, as one pytree of arrays with a row for each."""
    trees = [jax.tree.map(np.asarray, each, is_leaf=_is_numbers) for each in observations]
    shapes = [jax.tree.map(np.shape, tree) for tree in trees]
    for place, (tree, shape) in enumerate(zip(trees, shapes, strict=True)):
        if jax.tree.structure(tree) != jax.tree.structure(trees[0]) or shape != shapes[0]:
            raise ValueError(
                f"{name}: a list is read as observations one by one, all with the same parts and shapes; number 0 has "
                f"{shapes[0]} and number {place} has {shape}. Parts of an observation go into a dict or tuple."
            )
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _is_numbers(node: Any) -> bool:
    """A list of plain numbers, perhaps in lists: an array, and no pytree."""
    return isinstance(node, list) and all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(node))


def _padded(name: str, episodes: list[Any]) -> Any:
    """Episodes as rows of one pytree of arrays, zeros after their ends."""
    for number, episode in enumerate(episodes):
        if jax.tree.structure(episode) != jax.tree.structure(episodes[0]):
            raise ValueError(
                f"{name}: episodes must agree in the parts of a step; episode 0 has {_outlined(episodes[0])} and "
                f"episode {number} has {_outlined(episode)}."
            )

    def padded(*arrays: np.ndarray) -> np.ndarray:
        kinds = [(array.shape[1:], array.dtype.kind) for array in arrays]
        for number, array in enumerate(arrays):
            if kinds[number] != kinds[0]:
                raise ValueError(
                    f"{name}: episodes must agree in the shape and type of a step; episode 0 has {arrays[0].dtype} of "
                    f"shape {arrays[0].shape[1:]} and episode {number} has {array.dtype} of shape {array.shape[1:]}."
                )
        longest = max(len(array) for array in arrays)
        out = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), np.result_type(*arrays))
        for row, array in zip(out, arrays, strict=True):
            row[: len(array)] = array
        return out

    return jax.tree.map(padded, *episodes)


def _outlined(tree: Any) -> str:
    """The structure of a pytree, to be read by people."""
    return str(jax.tree.map(lambda _: "array", tree)).replace("'array'", "array")
