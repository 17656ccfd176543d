"""Host environments by name, and the streams of a run of one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from derex.envs import registry
from derex.envs.host.pool import Pool, PoolOptions, Source, Streams
from derex.envs.host.stream import Key
from derex.envs.host.vector import VectorPool
from derex.envs.interface import HostEnvironment
from derex.envs.previous_reward import made_with_previous_reward
from derex.types import EnvironmentSpec

STAGGERING = 0x57A6  # sets this use of a stream's key apart from its episodes'


class HostTask(NamedTuple):
    """A host environment: how it is made, and what is known of it without running it."""

    name: str
    source: Source
    """makes one, in whatever process"""
    spec: EnvironmentSpec
    many: Callable[[int, int], Any] | None = None
    """(n, seed) -> a vector environment, where the suite steps many at once"""


def host_task(name: str, previous_reward: bool = False) -> HostTask:
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
        return HostTask(name, partial(made_with_previous_reward, source), _spec(module, rest, True))
    many = getattr(importlib.import_module(module), "make_many", None)
    return HostTask(name, source, _spec(module, rest, False), many and partial(many, rest))


def made(module: str, rest: str) -> HostEnvironment:
    """What a suite's module makes of a name; for another process, which need not know all suites."""
    return importlib.import_module(module).make(rest)


@cache
def _spec(module: str, rest: str, previous_reward: bool) -> EnvironmentSpec:
    source = partial(made, module, rest)
    environment = made_with_previous_reward(source) if previous_reward else source()
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
) -> Pool | VectorPool:
    """Streams of the task: by its library where that steps many at once, else in worker processes.

    Args:
        task: what to run.
        keys: what the episodes of each stream are seeded from.
        groups: how many streams are stepped together.
        options: of the workers.
        tell: is told of every restart.
        stagger: start the time limit's counter of each first episode anywhere in [0, horizon), so that streams in
            workers do not come to their ends, and begin anew, all at the same time.
        begun: how many episodes of each stream were begun before.
    """
    if task.many is not None:
        return VectorPool(task.many, keys, groups, begun)
    elapsed = np.array([_elapsed(key, task.spec.horizon) if stagger else 0 for key in keys], np.int32)
    streams = Streams(task.spec, [task.source] * len(keys), keys, groups)
    return Pool(streams, options, tell, elapsed=elapsed, begun=begun)


def _elapsed(key: Key, horizon: int) -> int:
    return int(np.random.default_rng((*key, STAGGERING)).integers(horizon))
