"""Several JAX tasks as one environment for one agent.

Observations become parts by name, each padded with zeros to the largest; parts that a task lacks are zeros. Parts are
named by their paths in the observation, a single array by "observation". Nothing tells the agent which task it plays.

Stream b plays task b mod K of K tasks, so that any range of neighbouring streams, such as half of a batch, holds all
tasks. All streams are stepped together: each has the same number of steps. Letters in shapes: n streams, K tasks.
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
from jaxtyping import Float32, Int, Int32, PRNGKeyArray

from derex.envs import wrappers
from derex.envs.interface import Environment
from derex.envs.wrappers import Batched, EpisodeStatistics, StreamState
from derex.types import Amount, EnvironmentSpec, Symbols, TimeStep, Words

WHOLE = "observation"
"""the name of an observation that is a single array"""


class ObservationPadding(NamedTuple):
    """Pads observations of one task to those of all tasks."""

    names: tuple[str, ...]
    """of the task's own parts, in the order of the leaves of its observation"""
    parts: dict[str, Any]
    """specs of the parts of all tasks, by name"""

    def pad(self, observation: Any, arrays: Any, *batch: int) -> dict[str, Any]:
        """Returns all parts of an observation, or of a batch; `arrays` is numpy or jax.numpy."""
        own = dict(zip(self.names, jax.tree.leaves(observation), strict=True))
        padded = {}
        for name, part in self.parts.items():
            shape = (*batch, *part.shape)
            if name in own:  # zeros are appended along every axis: a picture stays at the top left
                leaf = arrays.asarray(own[name], part.dtype)
                widths = [(0, large - small) for small, large in zip(leaf.shape, shape, strict=True)]
                padded[name] = leaf if leaf.shape == shape else arrays.pad(leaf, widths)
            else:
                padded[name] = arrays.zeros(shape, part.dtype)
        return padded


def make_padding(spec: EnvironmentSpec, parts: dict[str, Any]) -> ObservationPadding:
    """The padding from one task's observations to `parts`, which were merged from several."""
    return ObservationPadding(tuple(observation_parts(spec)), parts)


def merge_specs(name: str, specs: Sequence[EnvironmentSpec]) -> EnvironmentSpec:
    """The spec of all tasks as one environment, with the longest horizon; success needs one threshold for all.

    Raises:
        ValueError: the tasks have different actions, or parts of the same name and of different kinds.
    """
    by_action: dict[Any, list[str]] = {}
    for spec in specs:
        by_action.setdefault(spec.action, []).append(spec.name)
    if len(by_action) > 1:
        each = "; ".join(f"{action} in {', '.join(names)}" for action, names in by_action.items())
        raise ValueError(f"env: tasks of one agent must have the same actions, got {each}.")
    parts: dict[str, tuple[str, Any]] = {}
    for spec in specs:
        for part_name, part in observation_parts(spec).items():
            owner, before = parts.get(part_name, (spec.name, part))
            joined = _join(before, part)
            if joined is None:
                raise ValueError(
                    f"env: the part {part_name!r} is {_describe(before)} in {owner} and {_describe(part)} in "
                    f"{spec.name}; parts of one name must be of one kind. Train such tasks with separate agents."
                )
            parts[part_name] = owner, joined
    horizon, thresholds = max(spec.horizon for spec in specs), {spec.success_return for spec in specs}
    success = thresholds.pop() if len(thresholds) == 1 else None
    observation = {part_name: part for part_name, (_, part) in parts.items()}
    return EnvironmentSpec(name, observation, specs[0].action, horizon, success)


def observation_parts(spec: EnvironmentSpec) -> dict[str, Any]:
    """Specs of the parts of an observation by their paths, such as "camera/left"."""
    leaves = jax.tree.leaves_with_path(spec.observation)
    return {jax.tree_util.keystr(path, simple=True, separator="/") or WHOLE: part for path, part in leaves}


def can_pad(part: Any, into: Any) -> bool:
    """Whether a part can be padded to the shape and type of another."""
    return _join(into, part) == into


def _join(one: Any, other: Any) -> Any:
    """The spec that holds both parts; None if they are of different kinds."""
    if type(one) is not type(other) or len(one.shape) != len(other.shape):
        return None
    shape = tuple(map(max, one.shape, other.shape))
    dtype = one.dtype if one.dtype == other.dtype else np.result_type(one.dtype, other.dtype)
    if isinstance(one, Words):
        return Words(max(one.length, other.length), max(one.buckets, other.buckets), dtype)
    if isinstance(one, Symbols):
        sizes = tuple(max(pair) for pair in zip_longest(one.sizes, other.sizes, fillvalue=1))
        return Symbols(shape, sizes, dtype)
    # Networks read bytes as fractions of 255 and bools as 0 or 1: converted to floats they would mean something else.
    kinds = {np.dtype(part.dtype) for part in (one, other)}
    if len(kinds) > 1 and any(kind.kind != "f" for kind in kinds):
        return None
    return Amount(shape, dtype) if isinstance(one, Amount) else jax.ShapeDtypeStruct(shape, dtype)


def _describe(part: Any) -> str:
    kind = "an array" if isinstance(part, jax.ShapeDtypeStruct) else type(part).__name__
    return f"{kind} of {np.dtype(part.dtype)} {tuple(part.shape)}"


class TaskAssignment(NamedTuple):
    """Which stream plays which task."""

    specs: tuple[EnvironmentSpec, ...]
    """of the single tasks"""
    task: Int[np.ndarray, " n"]
    """the number of each stream's task"""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return tuple(spec.name for spec in self.specs)

    @property
    def success_returns(self) -> Float32[np.ndarray, " n"]:
        """The success threshold of each stream's task; infinite where success is not defined."""
        thresholds = [np.inf if spec.success_return is None else spec.success_return for spec in self.specs]
        return np.asarray(thresholds, np.float32)[self.task]


def assign_tasks(specs: Sequence[EnvironmentSpec], n: int) -> TaskAssignment:
    """Assigns n streams to the tasks in turn; numbers of streams per task differ by at most one."""
    if n < len(specs):
        raise ValueError(
            f"streams: expected at least one for each of the {len(specs)} tasks, got {n}. Use more, preferably a "
            f"multiple of {2 * len(specs)}, so that both halves of the streams have equally many of each task."
        )
    return TaskAssignment(tuple(specs), np.arange(n) % len(specs))


class PaddedEnvironment(wrappers.MappedEnvironment):
    """A JAX environment whose observation has the parts of all tasks."""

    def __init__(self, name: str, env: Environment, parts: dict[str, Any]) -> None:
        padding = make_padding(env.spec, parts)
        spec = env.spec._replace(name=name, observation=parts, n_states=0, positions=None)
        super().__init__(env, spec, lambda observation, reward: padding.pad(observation, jnp))


@dataclass(frozen=True, eq=False)
class MultiTask:
    """JAX tasks for one agent."""

    tasks: tuple[Environment, ...]
    """with the same observation parts and actions"""
    spec: EnvironmentSpec
    """of all tasks as one environment"""


def multi_task(
    name: str, environments: Mapping[str, Environment], previous_reward: bool = False
) -> MultiTask:
    """Merges environments, by their names, into one; with the previous reward in the observation if asked.

    Raises:
        ValueError: they cannot be merged, as in `merge_specs`.
    """
    spec = merge_specs(name, [each.spec._replace(name=task) for task, each in environments.items()])
    tasks = tuple(PaddedEnvironment(task, each, spec.observation) for task, each in environments.items())
    if not previous_reward:
        return MultiTask(tasks, spec)
    return MultiTask(tuple(wrappers.PreviousReward(task) for task in tasks), wrappers.add_reward_part(spec))


class TaskStates(NamedTuple):
    """The state of the streams of all tasks."""

    tasks: tuple[StreamState, ...]
    """of each task's streams"""
    steps: Int32[Array, "*n"]
    """as in `StreamState`, of all streams"""


TaskOutput = tuple[TaskStates, TimeStep]


class TaskStreams:
    """n streams of several tasks, stepped together; has the interface of `Batched`."""

    def __init__(self, environment: MultiTask, n: int) -> None:
        self.spec, self.n = environment.spec, n
        self.assigned = assign_tasks([task.spec for task in environment.tasks], n)
        counted = zip(environment.tasks, np.bincount(self.assigned.task).tolist(), strict=True)
        self.streams = tuple(Batched(wrappers.AutoReset(task), count) for task, count in counted)
        # The row of each stream when the rows of all tasks are concatenated.
        self._rows = np.argsort(np.argsort(self.assigned.task, kind="stable"), kind="stable")
        self.success_return = self.assigned.success_returns

    def reset(self, key: PRNGKeyArray, stagger: bool = True) -> TaskOutput:
        """Returns the first steps of all streams; `stagger` as in `Batched.reset`, by each task's time limit."""
        keys = jax.random.split(key, len(self.streams))
        return self._concatenate([streams.reset(keys[k], stagger) for k, streams in enumerate(self.streams)])

    def step(self, state: TaskStates, actions: wrappers.Actions, key: PRNGKeyArray) -> TaskOutput:
        """Returns the next step of each stream."""
        keys = jax.random.split(key, len(self.streams))
        stepped = [
            streams.step(state.tasks[k], actions[self.assigned.task == k], keys[k])
            for k, streams in enumerate(self.streams)
        ]
        return self._concatenate(stepped)

    def state_ids(self, state: TaskStates) -> Int32[Array, " n"]:
        """Raises: the states of several tasks are not numbered."""
        raise TypeError(f"state_ids: the states of {self.spec.name!r} are not numbered.")

    def _concatenate(self, parts: list[wrappers.StreamOutput]) -> TaskOutput:
        visible = [(state.steps, step) for state, step in parts]
        counted, step = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[self._rows], *visible)
        return TaskStates(tuple(state for state, _ in parts), counted), step


def make_task_streams(environment: MultiTask, n: int) -> EpisodeStatistics:
    """Makes n endless streams of the tasks with statistics of their episodes."""
    return EpisodeStatistics(TaskStreams(environment, n))
