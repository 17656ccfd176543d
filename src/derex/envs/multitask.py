"""Many JAX tasks as one environment: streams shared out evenly, no task's name in what is seen.

Stream b plays task b mod K of K tasks. So any run of neighbouring streams holds all tasks: a half of the batch, a group
of streams that are stepped together. All streams are stepped at once, so that every stream of every task has the same
number of steps, however long its episodes or its steps take. Letters in shapes: n streams, K tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, Int32, PRNGKeyArray, Shaped

from derex.envs.interface import Environment
from derex.envs.merging import layout, merged
from derex.envs.previous_reward import PreviousReward, with_previous_reward
from derex.envs.wrappers import AutoReset, Batched, Statistics, StreamState
from derex.types import EnvironmentSpec, TimeStep


class Assigned(NamedTuple):
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


def assigned(specs: Sequence[EnvironmentSpec], n: int) -> Assigned:
    """Streams shared out: their numbers of two tasks differ by one at most."""
    if n < len(specs):
        raise ValueError(
            f"streams: expected at least one for each of the {len(specs)} tasks, got {n}. Give more, best a multiple "
            f"of {2 * len(specs)}, so that both halves of them hold all tasks alike."
        )
    return Assigned(tuple(specs), np.arange(n) % len(specs))


class Padded:
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
    spec = merged(name, [each.spec._replace(name=task) for task, each in environments.items()])
    tasks: list[Environment] = [Padded(task, each, spec.observation) for task, each in environments.items()]
    if not previous_reward:
        return MultiTask(tuple(tasks), spec)
    return MultiTask(tuple(PreviousReward(task) for task in tasks), with_previous_reward(spec))


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
        self.assigned = assigned([task.spec for task in environment.tasks], n)
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


def make_task_streams(environment: MultiTask, n: int) -> Statistics:
    """n endless streams of the tasks with statistics of their episodes."""
    return Statistics(TaskStreams(environment, n))
