"""From a config to what it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from derex.agents.config import AgentConfig
from derex.envs.host import HostTask, make_host_task, make_host_tasks
from derex.envs.interface import Environment
from derex.envs.multitask import MultiTask, make_task_streams, multi_task
from derex.envs.registry import expand_tasks, imports_user_code, is_host, make
from derex.envs.wrappers import PreviousReward, make_streams
from derex.representations.base import RepresentationConfig
from derex.training.config import TrainConfig
from derex.training.host import HostLoop, HostStreams, HostTraining
from derex.training.learner import Training, TrainState

MAX_SHARED = 16  # environments, and trainings, that are kept for the next call with the same options


@runtime_checkable
class Loop(Protocol):
    """What carries a training forward."""

    longest: int | None
    """iterations at a time, at most"""

    def advance(self, state: TrainState, iterations: int, reset_metrics: bool, more: bool) -> TrainState:
        """Runs `iterations` updates; `reset_metrics` clears the sums first, `more` says that others follow."""
        ...

    def numbers(self) -> dict[str, Any]:
        """For a line of metrics, besides what the state holds."""
        ...

    def close(self) -> None:
        """Gives back what it holds."""
        ...


class DeviceLoop:
    """Iterations that are compiled whole, environment and all."""

    longest: int | None = None

    def __init__(self, training: Training):
        self._training = training

    def advance(self, state: TrainState, iterations: int, reset_metrics: bool, more: bool) -> TrainState:
        return self._training.advance(state, iterations, reset_metrics)

    def numbers(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


def make_environment(name: str, agent: AgentConfig) -> Environment | MultiTask | HostTask:
    """Make the environment of that name, as the agent observes it.

    The same name gives the same object again, so that programs compiled for it are reused; except for the user's own
    code, which may have changed since.

    Args:
        name: a task, a set of tasks, or a list with commas. Several tasks are one environment.
        agent: its `previous_reward` says whether the previous reward is observed.

    Returns:
        A JAX environment, or for others the recipe by which workers make one.
    """
    with _called_env():
        make = _make_environment if imports_user_code(name) else _shared_environment
        return make(name, agent.previous_reward)


@contextmanager
def _called_env() -> Iterator[None]:
    """The registry's errors are about a `name`; a run calls it `env`."""
    try:
        yield
    except ValueError as error:
        argument, _, text = str(error).partition(":")
        if argument != "name":
            raise
        raise ValueError(f"env:{text}") from error


def _make_environment(name: str, previous_reward: bool) -> Environment | MultiTask | HostTask:
    tasks = expand_tasks(name)
    if len(tasks) > 1 and any(map(is_host, tasks)):
        return make_host_tasks(name, tasks, previous_reward)
    if len(tasks) > 1:
        return multi_task(name, {task: make(task) for task in tasks}, previous_reward)
    if is_host(name):
        return make_host_task(name, previous_reward)
    environment = make(name)
    return PreviousReward(environment) if previous_reward else environment


_shared_environment = lru_cache(MAX_SHARED)(_make_environment)


def tasks_in(environment: Environment | MultiTask | HostTask) -> tuple[Environment | HostTask, ...]:
    """Its tasks, where it is several; else itself."""
    if isinstance(environment, MultiTask):
        return environment.tasks
    return environment.tasks or (environment,) if isinstance(environment, HostTask) else (environment,)


def make_training(config: TrainConfig) -> Training:
    """Join environment, agent and representation of the config.

    The same options give the same object again, and with it the programs that were compiled for it; except for the
    user's own code, which may have changed since. A training holds no state and no workers.
    """
    config = config.resolved()
    with _called_env():
        user_code = ":" in config.method or imports_user_code(config.env)
    make = _make_training if user_code else _shared_training
    return make(config.env, config.streams, config.agent, config.representation)


def _make_training(
    env: str, streams: int, agent: AgentConfig, representation: RepresentationConfig
) -> Training:
    environment = make_environment(env, agent)
    if isinstance(environment, HostTask):
        return HostTraining(HostStreams(environment, streams), representation.build(), agent)
    if isinstance(environment, MultiTask):
        return Training(make_task_streams(environment, streams), representation.build(), agent)
    return Training(make_streams(environment, streams), representation.build(), agent)


_shared_training = lru_cache(MAX_SHARED)(_make_training)


def clear_shared() -> None:
    """Forget the environments and trainings of earlier calls: the next ones are built and compiled again."""
    _shared_environment.cache_clear()
    _shared_training.cache_clear()


def make_loop(training: Training, config: TrainConfig, tell: Callable[..., None]) -> Loop:
    """What carries it forward; `tell` is told of workers that are started again."""
    if isinstance(training, HostTraining):
        return HostLoop(training, config, tell)
    return DeviceLoop(training)
