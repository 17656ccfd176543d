"""Trained agents in other environments than they were trained in: held-out levels, harder sizes, one task of a set.

    evaluate(playing(restore_agents("runs/lab"), "dmlab30-test"))

An agent can go where it is shown what it knows and where its actions are those it has. Trained in several tasks, it
knows their parts padded to the largest, so that anything smaller of the same kind fits, and parts that are not there
are 0, as in training. Trained in one, it has to be shown exactly the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax

from derex.envs.host import HostTask, host_task
from derex.envs.host.tasks import padded_task
from derex.envs.interface import Environment
from derex.envs.merging import fits, parts_of
from derex.envs.multitask import MultiTask, Padded
from derex.envs.previous_reward import OBSERVATION, PreviousReward
from derex.envs.registry import is_host, make
from derex.envs.sets import tasks_of
from derex.training.making import make_environment
from derex.training.trained import TrainedAgents
from derex.types import EnvironmentSpec


def playing(agents: TrainedAgents, on: str) -> TrainedAgents:
    """The same agents, to be evaluated in another environment, or in each task of a set or list.

    Args:
        agents: from `restore_agents`.
        on: a name as of `derex train --env`. Code of somebody's own is imported if it is named here.

    Raises:
        ValueError: there is none of that name, or an agent of this run cannot play it; it says what does not fit.
    """
    try:
        tasks = {name: _task(agents, name) for name in tasks_of(on)}
    except ValueError as error:
        argument, _, text = str(error).partition(":")
        if argument not in ("name", "env"):
            raise
        raise ValueError(f"on:{text}") from error
    return replace(agents, on=on, elsewhere=tasks)


def _task(agents: TrainedAgents, name: str) -> Environment | HostTask:
    """One task as the agents see it."""
    trained, reward = agents.environment, agents.agent.previous_reward
    if not isinstance(trained, MultiTask) and not (isinstance(trained, HostTask) and trained.tasks):
        alone = make_environment(name, agents.agent)
        assert not isinstance(alone, MultiTask)
        _check(agents, name, alone.spec, parts_of(trained.spec), exactly=True)
        return alone
    parts = trained.spec.observation[OBSERVATION] if reward else trained.spec.observation
    if is_host(name):
        task = host_task(name)
        _check(agents, name, task.spec, parts)
        return padded_task(task._replace(name=name), parts, reward)
    environment = make(name)
    _check(agents, name, environment.spec, parts)
    padded = Padded(name, environment, parts)
    return PreviousReward(padded) if reward else padded


def _check(
    agents: TrainedAgents, name: str, spec: EnvironmentSpec, known: dict[str, Any], exactly: bool = False
) -> None:
    """Refuses what shows other parts than are known, or has other actions."""
    own, trained = parts_of(spec), agents.environment.spec
    wrong = []
    for part, shown in own.items():
        if part not in known:
            wrong.append(f"it shows {part!r}, {shown}, which the run never saw")
        elif shown != known[part] if exactly else not fits(shown, known[part]):
            wrong.append(f"it shows {part!r} as {shown}, the run saw {known[part]}")
    if exactly:
        wrong += [f"it does not show {part!r}, {known[part]}" for part in known if part not in own]
        ours, theirs = (jax.tree.structure(each.observation) for each in (trained, spec))
        if not wrong and ours != theirs:
            wrong.append(f"it shows its parts as {theirs}, the run saw {ours}")
    if spec.action != trained.action:
        wrong.append(f"its actions are {spec.action}, the run's {trained.action}")
    if wrong:
        raise ValueError(
            f"on: {name} does not fit agents that were trained on {agents.env}: {'; '.join(wrong)}. Expected an "
            "environment with the run's parts and actions."
        )
