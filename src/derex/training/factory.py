"""From a config to what it trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from derex.agents.config import AgentConfig
from derex.envs.host import HostTask, make_host_task, make_host_tasks
from derex.envs.interface import Environment
from derex.envs.multitask import MultiTask, make_task_streams, multi_task
from derex.envs.registry import expand_tasks, is_host, make
from derex.envs.wrappers import PreviousReward, make_streams
from derex.training.config import TrainConfig
from derex.training.host import HostLoop, HostStreams, HostTraining
from derex.training.learner import Training, TrainState


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
    """The environment of that name, as the agent sees it: a JAX one itself, or how to make one that is none.

    Several tasks, a set or a list with commas, are one environment: of JAX where all of them are.
    """
    try:
        return _made(name, agent)
    except ValueError as error:  # a run knows the name as its env
        argument, _, text = str(error).partition(":")
        if argument != "name":
            raise
        raise ValueError(f"env:{text}") from error


def _made(name: str, agent: AgentConfig) -> Environment | MultiTask | HostTask:
    tasks = expand_tasks(name)
    if len(tasks) > 1 and any(map(is_host, tasks)):
        return make_host_tasks(name, tasks, agent.previous_reward)
    if len(tasks) > 1:
        return multi_task(name, {task: make(task) for task in tasks}, agent.previous_reward)
    if is_host(name):
        return make_host_task(name, agent.previous_reward)
    environment = make(name)
    return PreviousReward(environment) if agent.previous_reward else environment


def tasks_in(environment: Environment | MultiTask | HostTask) -> tuple[Environment | HostTask, ...]:
    """Its tasks, where it is several; else itself."""
    if isinstance(environment, MultiTask):
        return environment.tasks
    return environment.tasks or (environment,) if isinstance(environment, HostTask) else (environment,)


def make_training(config: TrainConfig) -> Training:
    """Environment, agent and representation of the config."""
    config = config.resolved()
    environment, representation = make_environment(config.env, config.agent), config.representation.build()
    if isinstance(environment, HostTask):
        return HostTraining(HostStreams(environment, config.streams), representation, config.agent)
    if isinstance(environment, MultiTask):
        return Training(make_task_streams(environment, config.streams), representation, config.agent)
    return Training(make_streams(environment, config.streams), representation, config.agent)


def make_loop(training: Training, config: TrainConfig, tell: Callable[..., None]) -> Loop:
    """What carries it forward; `tell` is told of workers that are started again."""
    if isinstance(training, HostTraining):
        return HostLoop(training, config, tell)
    return DeviceLoop(training)
