"""What several tasks show, as one: parts by name, each padded with zeros to the largest; zeros where a task has none.

Parts go by their path in the observation; one that is an array and nothing else is the part "observation". So an agent
of many tasks sees no more of them than their parts: nothing says which task it is.

Many JAX tasks as one environment: streams shared out evenly, no task's name in what is seen.

Stream b plays task b mod K of K tasks. So any run of neighbouring streams holds all tasks: a half of the batch, a group
of streams that are stepped together. All streams are stepped at once, so that every stream of every task has the same
number of steps, however long its episodes or its steps take. Letters in shapes: n streams, K tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, Int32, PRNGKeyArray, Shaped

from derex.envs.interface import Environment
from derex.envs.wrappers import (
    AutoReset,
    Batched,
    EpisodeStatistics,
    PreviousReward,
    StreamState,
    add_reward_part,
)
from derex.types import Amount, EnvironmentSpec, Symbols, TimeStep, Words

WHOLE = "observation"
"""the name of an observation without parts"""


class ObservationPadding(NamedTuple):
    """How observations of one task become those of all."""

    names: tuple[str, ...]
    """of the task's own parts, in the order of its tree's leaves"""
    parts: dict[str, Any]
    """all that are seen, as specs have them"""

    def padded(self, observation: Any, arrays: Any) -> dict[str, Any]:
        """One observation, with all parts; `arrays` is numpy or jax.numpy."""
        own = dict(zip(self.names, jax.tree.leaves(observation), strict=True))
        return {
            name: _padded(own[name], part, arrays) if name in own else arrays.zeros(part.shape, part.dtype)
            for name, part in self.parts.items()
        }

    def padded_rows(self, observation: Any, n: int) -> dict[str, np.ndarray]:
        """n observations at once, arrays (n, …) of numpy."""
        own = dict(zip(self.names, jax.tree.leaves(observation), strict=True))
        rows = {name: np.zeros((n, *part.shape), part.dtype) for name, part in self.parts.items()}
        for name, leaf in own.items():
            rows[name][tuple(slice(size) for size in leaf.shape)] = leaf
        return rows


def merge_specs(name: str, specs: Sequence[EnvironmentSpec]) -> EnvironmentSpec:
    """The spec of all tasks as one; refuses those that cannot be.

    The horizon is the longest; each task keeps its own. Success has a threshold only where all have the same.
    """
    _check_actions(specs)
    thresholds = {spec.success_return for spec in specs}
    return EnvironmentSpec(
        name,
        merge_parts(specs),
        specs[0].action,
        max(spec.horizon for spec in specs),
        thresholds.pop() if len(thresholds) == 1 else None,
    )


def merge_parts(specs: Sequence[EnvironmentSpec]) -> dict[str, Any]:
    """All parts by name, as large as the largest."""
    parts: dict[str, tuple[str, Any]] = {}
    for spec in specs:
        for name, part in observation_parts(spec).items():
            if name not in parts:
                parts[name] = spec.name, part
                continue
            owner, before = parts[name]
            joined = _joined(before, part)
            if joined is None:
                raise ValueError(
                    f"env: the part {name!r} is {_text(before)} in {owner} and {_text(part)} in {spec.name}; parts of "
                    "one name have to be of one kind. Tasks like these need agents of their own."
                )
            parts[name] = owner, joined
    return {name: part for name, (_, part) in parts.items()}


def observation_parts(spec: EnvironmentSpec) -> dict[str, Any]:
    """The parts of an observation by their paths, "camera/left"."""
    leaves = jax.tree_util.tree_flatten_with_path(spec.observation)[0]
    return {"/".join(_word(step) for step in path) or WHOLE: part for path, part in leaves}


def can_pad(part: Any, into: Any) -> bool:
    """Whether a part, padded, can stand where another was."""
    return _joined(into, part) == into


def layout(spec: EnvironmentSpec, parts: dict[str, Any]) -> ObservationPadding:
    """Of one of the tasks that `parts` were merged from."""
    return ObservationPadding(tuple(observation_parts(spec)), parts)


def _check_actions(specs: Sequence[EnvironmentSpec]) -> None:
    by_action: dict[Any, list[str]] = {}
    for spec in specs:
        by_action.setdefault(spec.action, []).append(spec.name)
    if len(by_action) > 1:
        each = "; ".join(f"{action} in {', '.join(names)}" for action, names in by_action.items())
        raise ValueError(f"env: one agent has one set of actions, these tasks have several: {each}.")


def _joined(one: Any, other: Any) -> Any:
    """The part that holds both; None where there is none."""
    if type(one) is not type(other) or len(one.shape) != len(other.shape):
        return None
    shape = tuple(map(max, one.shape, other.shape))
    if isinstance(one, Words):
        return Words(max(one.length, other.length), max(one.buckets, other.buckets), _wider(one, other))
    if isinstance(one, Symbols):
        sizes = tuple(max(pair) for pair in zip_longest(one.sizes, other.sizes, fillvalue=1))
        return Symbols(shape, sizes, _wider(one, other))
    # Bytes are read as fractions of 255 and bools as they are: as floats they would mean something else.
    kinds = {np.dtype(part.dtype) for part in (one, other)}
    if len(kinds) > 1 and any(kind.kind != "f" for kind in kinds):
        return None
    dtype = _wider(one, other)
    return Amount(shape, dtype) if isinstance(one, Amount) else jax.ShapeDtypeStruct(shape, dtype)


def _wider(one: Any, other: Any) -> Any:
    return one.dtype if one.dtype == other.dtype else np.result_type(one.dtype, other.dtype)


def _padded(leaf: Any, part: Any, arrays: Any) -> Any:
    """At the beginning of every axis: a picture is at the top left."""
    leaf = arrays.asarray(leaf, part.dtype)
    if leaf.shape == part.shape:
        return leaf
    return arrays.pad(leaf, [(0, large - small) for small, large in zip(leaf.shape, part.shape, strict=True)])


def _word(step: Any) -> str:
    return str(getattr(step, "key", getattr(step, "idx", getattr(step, "name", step))))


def _text(part: Any) -> str:
    kind = "an array" if isinstance(part, jax.ShapeDtypeStruct) else type(part).__name__
    return f"{kind} of {np.dtype(part.dtype)} {tuple(part.shape)}"


class TaskAssignment(NamedTuple):
    """Which stream plays which task."""

    specs: tuple[EnvironmentSpec, ...]
    """of the tasks, by themselves"""
    task: Int[np.ndarray, " n"]
    """the number of each stream's task"""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tasks."""
        return tuple(spec.name for spec in self.specs)

    @property
    def success_returns(self) -> Float32[np.ndarray, " n"]:
        """The return from which on an episode of each stream is a success; infinite where that is not defined."""
        thresholds = [np.inf if spec.success_return is None else spec.success_return for spec in self.specs]
        return np.asarray(thresholds, np.float32)[self.task]


def assign_tasks(specs: Sequence[EnvironmentSpec], n: int) -> TaskAssignment:
    """Streams shared out: their numbers of two tasks differ by one at most."""
    if n < len(specs):
        raise ValueError(
            f"streams: expected at least one for each of the {len(specs)} tasks, got {n}. Give more, best a multiple "
            f"of {2 * len(specs)}, so that both halves of them hold all tasks alike."
        )
    return TaskAssignment(tuple(specs), np.arange(n) % len(specs))


class PaddedEnvironment:
    """A JAX environment that shows the parts of all tasks; whether it draws its states stays as it is."""

    def __init__(self, name: str, env: Environment, parts: dict[str, Any]) -> None:
        self.env, self._layout = env, layout(env.spec, parts)
        self.spec = env.spec._replace(name=name, observation=parts, n_states=0, positions=None)
        for name in ("render", "reset_ratio"):
            if hasattr(env, name):
                setattr(self, name, getattr(env, name))

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Any]:
        """As the environment."""
        state, observation = self.env.reset(key)
        return state, self._layout.padded(observation, jnp)

    def step(
        self, state: Any, action: Shaped[Array, "*action"], key: PRNGKeyArray
    ) -> tuple[Any, Any, Float32[Array, ""], Bool[Array, ""]]:
        """As the environment."""
        state, observation, reward, terminated = self.env.step(state, action, key)
        return state, self._layout.padded(observation, jnp), reward, terminated


@dataclass(frozen=True, eq=False)
class MultiTask:
    """JAX tasks for one agent."""

    tasks: tuple[Environment, ...]
    """all show the same parts, and have the same actions"""
    spec: EnvironmentSpec
    """of all of them as one"""


def multi_task(
    name: str, environments: Mapping[str, Environment], previous_reward: bool = False
) -> MultiTask:
    """The environments as one; refuses those that one agent cannot play.

    Args:
        name: of all of them.
        environments: by name; they have the same actions, and parts of one name of one kind.
        previous_reward: whether the reward of the step before is a part of what is seen.
    """
    spec = merge_specs(name, [each.spec._replace(name=task) for task, each in environments.items()])
    tasks: list[Environment] = [
        PaddedEnvironment(task, each, spec.observation) for task, each in environments.items()
    ]
    if not previous_reward:
        return MultiTask(tuple(tasks), spec)
    return MultiTask(tuple(PreviousReward(task) for task in tasks), add_reward_part(spec))


class TaskStates(NamedTuple):
    """Where the streams of all tasks are."""

    tasks: tuple[StreamState, ...]
    """of each task's streams"""
    steps: Int32[Array, "*n"]
    """as in `StreamState`, of all streams"""


class TaskStreams:
    """n streams of several tasks, stepped together; stands where `Batched` does."""

    def __init__(self, environment: MultiTask, n: int) -> None:
        self.spec = environment.spec
        self.n = n
        self.assigned = assign_tasks([task.spec for task in environment.tasks], n)
        counts = np.bincount(self.assigned.task)
        self.streams = tuple(
            Batched(AutoReset(task), int(count))
            for task, count in zip(environment.tasks, counts, strict=True)
        )
        # Rows of all tasks one after the other, and where each stream is among them.
        self._rows = np.argsort(np.argsort(self.assigned.task, kind="stable"), kind="stable")

    @property
    def success_return(self) -> Float32[np.ndarray, " n"]:
        """Of each stream."""
        return self.assigned.success_returns

    def reset(self, key: PRNGKeyArray, stagger: bool = True) -> tuple[TaskStates, TimeStep]:
        """The first steps of all streams; `stagger` as in `Batched.reset`, by each task's own time limit."""
        keys = jax.random.split(key, len(self.streams))
        begun = [streams.reset(key, stagger) for streams, key in zip(self.streams, keys, strict=True)]
        return self._together(begun)

    def step(
        self, state: TaskStates, actions: Shaped[Array, "n *action"], key: PRNGKeyArray
    ) -> tuple[TaskStates, TimeStep]:
        """The next step of each stream."""
        keys = jax.random.split(key, len(self.streams))
        stepped = [
            streams.step(state.tasks[k], actions[self.assigned.task == k], keys[k])
            for k, streams in enumerate(self.streams)
        ]
        return self._together(stepped)

    def state_ids(self, state: TaskStates) -> Int32[Array, " n"]:
        """Never: states of different tasks have no common numbers."""
        raise TypeError(f"state_ids: the states of {self.spec.name!r} have no numbers.")

    def _together(self, parts: list[tuple[StreamState, TimeStep]]) -> tuple[TaskStates, TimeStep]:
        counted, step = jax.tree.map(
            lambda *leaves: jnp.concatenate(leaves)[self._rows],
            *((state.steps, step) for state, step in parts),
        )
        return TaskStates(tuple(state for state, _ in parts), counted), step


def make_task_streams(environment: MultiTask, n: int) -> EpisodeStatistics:
    """n endless streams of the tasks with statistics of their episodes."""
    return EpisodeStatistics(TaskStreams(environment, n))
