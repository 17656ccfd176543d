"""Several pools as one: streams in workers beside streams of libraries that step many at once.

Letters in shapes: n streams of a group.

Host environments that show the parts of many tasks, and JAX environments as host environments.

Host environments by name, and the streams of a run of one.
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
from derex.envs.multitask import ObservationPadding, assign_tasks, layout, merge_specs
from derex.envs.wrappers import add_reward_part, make_with_previous_reward
from derex.types import EnvironmentSpec


class Member(NamedTuple):
    """A pool, and where its streams are."""

    pool: Pool | VectorPool
    rows: tuple[Int[np.ndarray, " _"], ...]
    """of each group, in the order of the pool's own"""


class JoinedPool:
    """All streams of all members, used like a `Pool`; every member has streams in every group."""

    def __init__(self, spec: EnvironmentSpec, groups: tuple[int, ...], members: Sequence[Member]):
        """Of pools that are open and show what `spec` says."""
        self.spec, self.groups, self._members = spec, groups, tuple(members)
        self.shortened = self._gathered([member.pool.shortened for member in members]).astype(bool)
        self._buffers = [
            [allocate_steps(spec, len(rows)) for rows in member.rows] for member in self._members
        ]

    @property
    def restarts(self) -> int:
        """Of all workers, so far."""
        return sum(member.pool.restarts for member in self._members)

    @property
    def begun(self) -> Int64[np.ndarray, " n"]:
        """How many episodes of each stream were begun; a copy."""
        return self._gathered([member.pool.begun for member in self._members])

    def send(self, group: int, actions: Shaped[np.ndarray, "n *action"] | None = None) -> None:
        """Has the streams of a group stepped; without actions, for the very first step of all."""
        for pool, rows in self._members:
            pool.send(group, None if actions is None else actions[rows[group]])

    def receive(
        self, group: int, into: HostSteps, before: tuple[Any, ...] | None = None
    ) -> Bool[np.ndarray, " n"]:
        """Waits for the step that was sent for, and fills it in; as `Pool.receive`."""
        cut = np.zeros(self.groups[group], bool)
        for (pool, rows), buffers in zip(self._members, self._buffers, strict=True):
            here, part = rows[group], buffers[group]
            earlier = None if before is None else tuple(array[here] for array in before)
            cut[here] = pool.receive(group, part, earlier)
            for whole, own in zip(jax.tree.leaves(into), jax.tree.leaves(part), strict=True):
                whole[here] = own
        return cut

    def close(self) -> None:
        """Closes all; harmless when repeated."""
        for member in self._members:
            member.pool.close()

    def _gathered(self, parts: list[Any]) -> np.ndarray:
        """One number of each stream, from those of each member."""
        whole = np.zeros(sum(self.groups), np.int64)
        starts = np.cumsum((0, *self.groups))
        for member, part in zip(self._members, parts, strict=True):
            places = [start + rows for start, rows in zip(starts, member.rows, strict=False)]
            whole[np.concatenate(places)] = part
        return whole


class PaddedHostEnvironment:
    """A host environment that shows the parts of all tasks; whether it draws itself stays as it is."""

    def __init__(self, name: str, env: HostEnvironment, parts: dict[str, Any]) -> None:
        self.env, self._layout = env, layout(env.spec, parts)
        self.spec = env.spec._replace(name=name, observation=parts)
        if hasattr(env, "picture"):
            self.picture = env.picture

    def begin(self, seed: int) -> Any:
        """As the environment."""
        return self._layout.padded(self.env.begin(seed), np)

    def act(self, action: Shaped[np.ndarray, "*action"]) -> HostStep:
        """As the environment."""
        step = self.env.act(action)
        return step._replace(observation=self._layout.padded(step.observation, np))

    def close(self) -> None:
        """As the environment."""
        self.env.close()


def make_padded_host(
    name: str, source: Callable[[], HostEnvironment], parts: dict[str, Any]
) -> PaddedHostEnvironment:
    """What `source` makes, padded; `partial(make_padded_host, …)` can go to another process."""
    return PaddedHostEnvironment(name, source(), parts)


class JaxTask:
    """A JAX environment that is stepped in a worker, beside tasks that are none; on the worker's processor."""

    def __init__(self, name: str) -> None:
        """The environment of that name."""
        self._env, self._reset, self._step = _compiled(name)
        self.spec = self._env.spec._replace(n_states=0, positions=None)
        if hasattr(self._env, "render"):
            self.picture = self._picture

    def begin(self, seed: int) -> Any:
        """Starts an episode; all of its randomness is the seed's."""
        self._seed, self._time = np.uint32(seed), 0
        self._state, observation = self._reset(self._seed)
        return jax.device_get(observation)

    def act(self, action: Shaped[np.ndarray, "*action"]) -> HostStep:
        """The next step."""
        self._time += 1
        self._state, *seen = self._step(self._state, action, self._seed, np.uint32(self._time))
        observation, reward, terminated = jax.device_get(seen)
        return HostStep(observation, float(reward), bool(terminated), False)

    def close(self) -> None:
        """There is nothing to give back."""

    def _picture(self) -> np.ndarray:
        return self._env.render(jax.device_get(self._state))  # type: ignore[attr-defined]


@cache
def _compiled(name: str) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
    """The environment, its reset and its step; once for all streams of a worker."""
    env = registry.make(name)

    def reset(seed: Any) -> Any:
        return env.reset(jax.random.fold_in(jax.random.key(seed), 0))

    def step(state: Any, action: Any, seed: Any, time: Any) -> Any:
        return env.step(state, action, jax.random.fold_in(jax.random.key(seed), time))

    return env, jax.jit(reset), jax.jit(step)


STAGGERING = 0x57A6  # sets this use of a stream's key apart from its episodes'


class HostTask(NamedTuple):
    """A host environment: how it is made, and what is known of it without running it."""

    name: str
    source: Source
    """makes one, in whatever process"""
    spec: EnvironmentSpec
    many: Callable[[int, int], Any] | None = None
    """(n, seed) -> a vector environment, where the suite steps many at once"""
    layout: ObservationPadding | None = None
    """how what `many` shows becomes what `spec` says, where that is more"""
    tasks: tuple[HostTask, ...] = ()
    """where this is several tasks: each, all with the same parts; `source` is that of the first"""


def make_host_task(name: str, previous_reward: bool = False) -> HostTask:
    """The host environment of that name; one is made, to ask for its spec, and closed.

    Args:
        name: "suite:name in the suite".
        previous_reward: whether the reward of the step before is a part of what is seen.
    """
    suite, _, rest = name.partition(":")
    if not registry.is_host(name):
        registry.make_host(name)  # says what is wrong
    module = registry.SUITES[suite].module
    source: Source = partial(made, module, rest)
    if previous_reward:
        return HostTask(name, partial(make_with_previous_reward, source), _spec(module, rest, True))
    many = getattr(importlib.import_module(module), "make_many", None)
    return HostTask(name, source, _spec(module, rest, False), many and partial(many, rest))


def make_host_tasks(name: str, names: Sequence[str], previous_reward: bool = False) -> HostTask:
    """Several environments as one, JAX ones among them; refuses those that one agent cannot play.

    Args:
        name: of all of them.
        names: of each.
        previous_reward: whether the reward of the step before is a part of what is seen.
    """
    own = [make_host_task(each) if registry.is_host(each) else _jax_task(each) for each in names]
    spec = merge_specs(name, [task.spec._replace(name=task.name) for task in own])
    tasks = tuple(make_padded_task(task, spec.observation, previous_reward) for task in own)
    spec = add_reward_part(spec) if previous_reward else spec
    return HostTask(name, tasks[0].source, spec, tasks=tasks)


def _jax_task(name: str) -> HostTask:
    spec = registry.make(name).spec._replace(n_states=0, positions=None)
    return HostTask(name, partial(JaxTask, name), spec)


def make_padded_task(task: HostTask, parts: dict[str, Any], previous_reward: bool) -> HostTask:
    """The task with the parts of all tasks; a library that steps many at once does not show the reward."""
    source: Source = partial(make_padded_host, task.name, task.source, parts)
    spec = task.spec._replace(name=task.name, observation=parts)
    if previous_reward:
        return HostTask(task.name, partial(make_with_previous_reward, source), add_reward_part(spec))
    return HostTask(task.name, source, spec, task.many, layout(task.spec, parts))


def made(module: str, rest: str) -> HostEnvironment:
    """What a suite's module makes of a name; for another process, which need not know all suites."""
    return importlib.import_module(module).make(rest)


@cache
def _spec(module: str, rest: str, previous_reward: bool) -> EnvironmentSpec:
    source = partial(made, module, rest)
    environment = make_with_previous_reward(source) if previous_reward else source()
    environment.close()
    return environment.spec


def open_streams(
    task: HostTask,
    keys: Sequence[Key],
    groups: tuple[int, ...],
    options: PoolOptions,
    tell: Callable[..., None] = lambda event, **details: None,
    *,
    stagger: bool = False,
    begun: Int[np.ndarray, " n"] | None = None,
    numbers: Sequence[int] | None = None,
) -> Pool | VectorPool | JoinedPool:
    """StreamSources of the task: by its library where that steps many at once, else in worker processes.

    Args:
        task: what to run.
        keys: what the episodes of each stream are seeded from.
        groups: how many streams are stepped together.
        options: of the workers.
        tell: is told of every restart, and of the fault that ends a run.
        stagger: start the time limit's counter of each first episode anywhere in [0, horizon), so that streams in
            workers do not come to their ends, and begin anew, all at the same time.
        begun: how many episodes of each stream were begun before.
        numbers: of the streams, by which several tasks are shared out; none: as they stand.
    """
    begun = np.zeros(len(keys), np.int64) if begun is None else np.asarray(begun)
    if task.many is not None:
        return VectorPool(task.many, keys, groups, begun, task.layout, options.timeout, tell)
    tasks = task.tasks or (task,)
    streams = np.arange(len(keys)) if numbers is None else np.asarray(numbers)
    places = assign_tasks([each.spec for each in tasks], int(streams.max()) + 1).task[streams]
    wanted = _Wanted(task.spec, [tasks[place] for place in places], list(keys), begun, stagger)
    parts = np.split(places, np.cumsum(groups)[:-1])
    whole = all(len(set(part.tolist())) == len(tasks) for part in parts)
    if whole and any(each.many is not None for each in tasks):
        return _joined(wanted, groups, parts, options, tell)
    return _in_workers(wanted, groups, options, tell)


class _Wanted(NamedTuple):
    """What is to be run, row by row; as in `open_streams`."""

    spec: EnvironmentSpec
    tasks: list[HostTask]
    keys: list[Key]
    begun: Int[np.ndarray, " n"]
    stagger: bool

    def some(self, rows: Int[np.ndarray, " _"]) -> _Wanted:
        """A few rows of it."""
        tasks, keys = ([of[row] for row in rows] for of in (self.tasks, self.keys))
        return self._replace(tasks=tasks, keys=keys, begun=self.begun[rows])


def _in_workers(
    wanted: _Wanted, groups: tuple[int, ...], options: PoolOptions, tell: Callable[..., None]
) -> Pool:
    horizons = [task.spec.horizon if wanted.stagger else 1 for task in wanted.tasks]
    elapsed = np.array([_elapsed(*each) for each in zip(wanted.keys, horizons, strict=True)], np.int32)
    streams = StreamSources(wanted.spec, [task.source for task in wanted.tasks], wanted.keys, groups)
    return Pool(streams, options, tell, elapsed=elapsed, begun=wanted.begun)


def _joined(
    wanted: _Wanted,
    groups: tuple[int, ...],
    places: list[Int[np.ndarray, " _"]],
    options: PoolOptions,
    tell: Callable[..., None],
) -> JoinedPool:
    """Each task by its library, where that steps many at once, the others in workers; every group holds all tasks."""
    tasks = dict(zip(np.concatenate(places).tolist(), wanted.tasks, strict=True))
    by_library = {place: task for place, task in tasks.items() if task.many is not None}
    members: list[Member] = []
    try:
        for place, task in by_library.items():
            rows, within, sizes = _rows_of(places, [place])
            own = wanted.some(rows)
            assert task.many is not None
            pool = VectorPool(task.many, own.keys, sizes, own.begun, task.layout, options.timeout, tell)
            members.append(Member(pool, within))
        others = [place for place in tasks if place not in by_library]
        if others:
            rows, within, sizes = _rows_of(places, others)
            members.append(Member(_in_workers(wanted.some(rows), sizes, options, tell), within))
        return JoinedPool(wanted.spec, groups, members)
    except BaseException:
        for member in members:
            member.pool.close()
        raise


def _rows_of(
    groups: list[Int[np.ndarray, " _"]], tasks: list[int]
) -> tuple[Int[np.ndarray, " _"], tuple[Int[np.ndarray, " _"], ...], tuple[int, ...]]:
    """The rows that play one of the tasks: among all, within each group, and how many there are in each."""
    within = tuple(np.flatnonzero(np.isin(group, tasks)) for group in groups)
    starts = np.cumsum([0, *(len(group) for group in groups)])
    rows = np.concatenate([start + own for start, own in zip(starts, within, strict=False)])
    return rows, within, tuple(len(own) for own in within)


def _elapsed(key: Key, horizon: int) -> int:
    return int(np.random.default_rng((*key, STAGGERING)).integers(horizon))
