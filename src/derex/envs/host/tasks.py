"""Host environments by name, several tasks as one, and the streams of a run.

Letters in shapes: n streams.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int, Int64, Shaped

from derex.envs import registry
from derex.envs.host.memory import HostSteps, allocate_steps
from derex.envs.host.pool import Pool, PoolOptions, Source, StreamSources
from derex.envs.host.vector import VectorPool
from derex.envs.host.worker import Key
from derex.envs.interface import HostEnvironment, HostStep
from derex.envs.multitask import ObservationPadding, assign_tasks, make_padding, merge_specs
from derex.envs.wrappers import MappedHostEnvironment, add_reward_part, make_with_previous_reward
from derex.types import EnvironmentSpec

STAGGERING = 0x57A6  # separates this use of a stream's key from the seeds of its episodes


class HostTask(NamedTuple):
    """A host environment: how it is made, and its spec."""

    name: str
    source: Source
    """makes one, in any process"""
    spec: EnvironmentSpec
    many: Callable[[int, int], Any] | None = None
    """(n, seed) -> a vector environment, if the suite has them"""
    padding: ObservationPadding | None = None
    """pads the observations of `many` to those of `spec`"""
    tasks: tuple[HostTask, ...] = ()
    """of several tasks: each of them, padded; `source` is that of the first"""


def make_host_task(name: str, previous_reward: bool = False) -> HostTask:
    """The host environment of that name; one is made for its spec, and closed.

    Args:
        name: "suite:name in the suite".
        previous_reward: add the reward of the step before to the observation.
    """
    suite, _, rest = name.partition(":")
    if not registry.is_host(name):
        registry.make_host(name)  # raises the error that explains why
    module = registry.SUITES[suite].module
    many = getattr(importlib.import_module(module), "make_many", None)
    task = HostTask(name, partial(_make, module, rest), _spec(module, rest), many and partial(many, rest))
    return _add_reward(task) if previous_reward else task


def make_host_tasks(name: str, names: Sequence[str], previous_reward: bool = False) -> HostTask:
    """Several environments as one, JAX environments among them.

    Args:
        name: of all of them.
        names: of each.
        previous_reward: add the reward of the step before to the observation.

    Raises:
        ValueError: the environments cannot be merged.
    """
    own = [
        make_host_task(each)
        if registry.is_host(each)
        else HostTask(each, partial(JaxTask, each), JaxTask(each).spec)
        for each in names
    ]
    spec = merge_specs(name, [task.spec._replace(name=task.name) for task in own])
    tasks = tuple(make_padded_task(task, spec.observation, previous_reward) for task in own)
    return HostTask(name, tasks[0].source, add_reward_part(spec) if previous_reward else spec, tasks=tasks)


def make_padded_task(task: HostTask, parts: dict[str, Any], previous_reward: bool) -> HostTask:
    """The task with the observation parts of all tasks."""
    padded = HostTask(
        task.name,
        partial(make_padded_host, task.name, task.source, parts),
        task.spec._replace(name=task.name, observation=parts),
        task.many,
        make_padding(task.spec, parts),
    )
    return _add_reward(padded) if previous_reward else padded


def _add_reward(task: HostTask) -> HostTask:
    """The task with the previous reward in its observation; it runs in workers only."""
    return HostTask(task.name, partial(make_with_previous_reward, task.source), add_reward_part(task.spec))


def make_padded_host(name: str, source: Source, parts: dict[str, Any]) -> MappedHostEnvironment:
    """The host environment that `source` makes, padded; a partial of this function can be pickled."""
    env = source()
    padding = make_padding(env.spec, parts)
    spec = env.spec._replace(name=name, observation=parts)
    return MappedHostEnvironment(env, spec, lambda observation, reward: padding.pad(observation, np))


def _make(module: str, rest: str) -> HostEnvironment:
    """Makes an environment of a suite's module; a partial of this function can be pickled."""
    return importlib.import_module(module).make(rest)


@cache
def _spec(module: str, rest: str) -> EnvironmentSpec:
    environment = _make(module, rest)
    environment.close()
    return environment.spec


class JaxTask:
    """A JAX environment as a host environment, for workers that also run non-JAX tasks; on the CPU."""

    def __init__(self, name: str) -> None:
        """The environment of that name."""
        self._env, self._reset, self._step = _compile(name)
        self.spec = self._env.spec._replace(n_states=0, positions=None)
        if hasattr(self._env, "render"):
            self.picture = lambda: self._env.render(jax.device_get(self._state))

    def begin(self, seed: int) -> Any:
        """Starts an episode; all of its draws follow from the seed."""
        self._seed, self._time = np.uint32(seed), 0
        self._state, observation = self._reset(self._seed)
        return jax.device_get(observation)

    def act(self, action: Shaped[np.ndarray, "*action"]) -> HostStep:
        """Takes the next step."""
        self._time += 1
        self._state, *values = self._step(self._state, action, self._seed, np.uint32(self._time))
        observation, reward, terminated = jax.device_get(values)
        return HostStep(observation, float(reward), bool(terminated), False)

    def close(self) -> None:
        """Does nothing."""


@cache
def _compile(name: str) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
    """The environment, its reset and its step, shared by all streams of a worker."""
    env = registry.make(name)

    def reset(seed: Any) -> Any:
        return env.reset(jax.random.fold_in(jax.random.key(seed), 0))

    def step(state: Any, action: Any, seed: Any, time: Any) -> Any:
        return env.step(state, action, jax.random.fold_in(jax.random.key(seed), time))

    return env, jax.jit(reset), jax.jit(step)


# --- streams ---------------------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """A pool of a `JoinedPool`, and which of all streams it has."""

    pool: Pool | VectorPool
    streams: Int[np.ndarray, " _"]
    rows: tuple[Int[np.ndarray, " _"], ...]
    """the same streams, as rows within each group"""


class JoinedPool:
    """Several pools with the interface of one `Pool`; every member has streams in every group."""

    def __init__(self, spec: EnvironmentSpec, groups: tuple[int, ...], members: Sequence[Member]):
        """Joins open pools with the observations of `spec`."""
        self.spec, self.groups, self._members = spec, groups, members
        self.shortened = self._gather("shortened").astype(bool)
        self._buffers = [[allocate_steps(spec, len(rows)) for rows in member.rows] for member in members]

    @property
    def restarts(self) -> int:
        """Restarts of all workers, so far."""
        return sum(member.pool.restarts for member in self._members)

    @property
    def begun(self) -> Int64[np.ndarray, " n"]:
        """Episodes begun by each stream; a copy."""
        return self._gather("begun")

    def send(self, group: int, actions: Shaped[np.ndarray, "n *action"] | None = None) -> None:
        """As `Pool.send`."""
        for pool, _, rows in self._members:
            pool.send(group, None if actions is None else actions[rows[group]])

    def receive(
        self, group: int, into: HostSteps, before: tuple[Any, ...] | None = None
    ) -> Bool[np.ndarray, " n"]:
        """As `Pool.receive`."""
        cut = np.zeros(self.groups[group], bool)
        for (pool, _, rows), buffers in zip(self._members, self._buffers, strict=True):
            here, part = rows[group], buffers[group]
            earlier = None if before is None else tuple(array[here] for array in before)
            cut[here] = pool.receive(group, part, earlier)
            for whole, own in zip(jax.tree.leaves(into), jax.tree.leaves(part), strict=True):
                whole[here] = own
        return cut

    def close(self) -> None:
        """Closes all members; may be called again."""
        for member in self._members:
            member.pool.close()

    def _gather(self, attribute: str) -> np.ndarray:
        """An attribute of the pools with one number for each of their streams, for all streams."""
        whole = np.zeros(sum(self.groups), np.int64)
        for member in self._members:
            whole[member.streams] = getattr(member.pool, attribute)
        return whole


def open_streams(
    task: HostTask,
    keys: Sequence[Key],
    groups: tuple[int, ...],
    options: PoolOptions,
    notify: Callable[..., None] = lambda event, **details: None,
    *,
    stagger: bool = False,
    begun: Int[np.ndarray, " n"] | None = None,
    numbers: Sequence[int] | None = None,
) -> Pool | VectorPool | JoinedPool:
    """Opens streams of the task: vector environments where the suite has them, else worker processes.

    Args:
        task: what to run.
        keys: seed the episodes of each stream.
        groups: numbers of streams that are stepped together.
        options: of the workers.
        notify: called at every restart, and at the fault that ends a run.
        stagger: draw the initial step count of each first episode from [0, horizon), so that the episodes of different
            streams in workers do not all end at the same time.
        begun: episodes of each stream that were begun before; None: 0.
        numbers: of the streams, which determine their tasks; None: 0, 1, 2, …
    """
    begun = np.zeros(len(keys), np.int64) if begun is None else np.asarray(begun)
    tasks = task.tasks or (task,)
    streams = np.arange(len(keys)) if numbers is None else np.asarray(numbers)
    played = assign_tasks([each.spec for each in tasks], int(streams.max()) + 1).task[streams]
    within_groups = np.split(played, np.cumsum(groups)[:-1])
    # A pool has streams in every group: unless each group holds all tasks, all of them run in workers.
    vectorised = all(len(set(group.tolist())) == len(tasks) for group in within_groups)
    by_library = [k for k, each in enumerate(tasks) if each.many is not None and vectorised]
    in_workers = [k for k in range(len(tasks)) if k not in by_library]

    def open_pool(part: list[int], rows: Any, sizes: tuple[int, ...]) -> Pool | VectorPool:
        """Streams of some tasks: of a single one in a vector environment, or of any in workers."""
        own, here = [tasks[played[row]] for row in rows], [keys[row] for row in rows]
        only = tasks[part[0]]
        if part != in_workers and only.many is not None:
            return VectorPool(only.many, here, sizes, begun[rows], only.padding, options.timeout, notify)
        elapsed = np.zeros(len(here), np.int32)
        if stagger:
            rngs = [np.random.default_rng((*key, STAGGERING)) for key in here]
            elapsed[:] = [rng.integers(each.spec.horizon) for rng, each in zip(rngs, own, strict=True)]
        sources = StreamSources(task.spec, [each.source for each in own], here, sizes)
        return Pool(sources, options, notify, elapsed=elapsed, begun=begun[rows])

    parts = [*([k] for k in by_library), *([in_workers] if in_workers else [])]
    if len(parts) == 1:
        return open_pool(parts[0], np.arange(len(keys)), groups)
    members: list[Member] = []
    try:
        for part in parts:
            within = tuple(np.flatnonzero(np.isin(group, part)) for group in within_groups)
            rows, sizes = np.flatnonzero(np.isin(played, part)), tuple(map(len, within))
            members.append(Member(open_pool(part, rows, sizes), rows, within))
        return JoinedPool(task.spec, groups, members)
    except BaseException:
        for member in members:
            member.pool.close()
        raise
