"""The agents of a run as they act: networks and policy from a checkpoint, without the representation beside them.

A user-defined method is therefore never imported here: what an agent does depends on its network alone.

`playing(restore_agents("runs/lab"), "dmlab30-test")` puts them into other environments than they were trained in:
held-out levels, other sizes, one task of a set. Actions must be the same. Agents trained on several tasks know their
parts padded to the largest, so anything smaller of the same kind fits, and missing parts are 0, as in training. Agents
trained on one task need exactly the same observations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork
from derex.agents.policy import Policy, make_policy
from derex.envs.host import HostTask, make_host_task
from derex.envs.host.tasks import make_padded_task
from derex.envs.interface import Environment
from derex.envs.multitask import MultiTask, PaddedEnvironment, can_pad, observation_parts
from derex.envs.registry import expand_tasks, is_host, make
from derex.envs.wrappers import OBSERVATION, PreviousReward
from derex.networks.inputs import describe_parts as input_parts
from derex.report.runs import METRICS, read_lines
from derex.report.statistics import final_score
from derex.training.checkpoints import (
    STATE,
    check_fit,
    check_options,
    find_checkpoint,
    flatten_paths,
    load_arrays,
)
from derex.training.config import from_plain
from derex.training.folder import explain_damage, read_config
from derex.training.learner import make_environment, rename_errors, tasks_in
from derex.types import EnvironmentSpec

NETWORK = "learner/trained/network"  # where a checkpoint has it


@dataclass(frozen=True, eq=False)
class TrainedAgents:
    """All seeds of a run at one of its checkpoints."""

    folder: Path
    content: dict[str, Any]
    """of its config.json"""
    environment: Environment | MultiTask | HostTask
    """that they were trained in"""
    agent: AgentConfig
    network: AgentNetwork
    """of all seeds: each array has a leading axis for them"""
    seeds: tuple[int, ...]
    step: int
    """environment steps of each seed at the checkpoint"""
    problems: tuple[str, ...] = ()
    """of damaged checkpoints that would have been chosen before this one"""
    on: str | None = None
    """name of what they are to play, if it is not what they were trained in (`playing`)"""
    elsewhere: dict[str, Environment | HostTask] | None = None
    """its tasks, by name"""

    @property
    def env(self) -> str:
        """The name of what they were trained on."""
        return self.content["config"]["env"]

    @property
    def tasks(self) -> dict[str, Environment | HostTask]:
        """What is played, one by one: several where the environment is a set of tasks."""
        return self.elsewhere or {task.spec.name: task for task in tasks_in(self.environment)}

    @property
    def policy(self) -> Policy:
        """The kind of policy that the environment's actions ask for."""
        return make_policy(self.environment.spec.action)

    def network_of(self, seed: int) -> AgentNetwork:
        """The network of one seed."""
        if seed not in self.seeds:
            raise ValueError(f"agent: the run has the seeds {', '.join(map(str, self.seeds))}; got {seed}.")
        return jax.tree.map(lambda leaf: leaf[self.seeds.index(seed)], self.network)

    def scores(self, metric: str = "return") -> dict[int, float]:
        """The final score of each seed, from the log; NaN where there is none."""
        lines, _ = read_lines(self.folder / METRICS)
        found = final_score([line for line in lines if line["step"] <= self.step], metric)
        return {seed: found.get(seed, np.nan) for seed in self.seeds}

    def best_seed(self) -> int:
        """The seed with the highest final score; the first where no score is known."""
        scores = self.scores()
        return max(self.seeds, key=lambda seed: -np.inf if np.isnan(scores[seed]) else scores[seed])


def restore_agents(
    folder: str | Path, checkpoint: str | int = "latest", env: str | None = None
) -> TrainedAgents:
    """The agents of the run in a folder; arguments as of `restore_run`.

    Raises:
        CheckpointError: there is no good checkpoint, none of that step, or it does not fit the config.
        ValueError: the folder holds no run.
    """
    folder = Path(folder)
    content = read_config(folder, env)
    with explain_damage(folder):
        config = content["config"]
        options, seeds = config["agent"], tuple(range(config["seed"], config["seed"] + config["seeds"]))
    agent = agent_config(options)
    environment = make_environment(config["env"], agent)
    found = find_checkpoint(folder, checkpoint)
    check_options(found, config)
    state, prefix = load_arrays(found)[STATE], f"{NETWORK}/"
    own = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
    shape = network_shape(environment.spec.observation, make_policy(environment.spec.action), agent)
    network = load_network(shape, own, f"checkpoint: {found.path}", (len(seeds),))
    return TrainedAgents(folder, content, environment, agent, network, seeds, found.step, found.problems)


def agent_config(options: Any) -> AgentConfig:
    """The options of an agent, from JSON."""
    try:
        return from_plain(AgentConfig(), options)
    except (TypeError, AttributeError) as error:
        raise ValueError(
            f"agent: options that this version of derex does not read: {error}. They are damaged, or were written by "
            "another version."
        ) from error


def network_shape(observation: Any, policy: Policy, agent: AgentConfig) -> AgentNetwork:
    """The network of an agent, shapes and dtypes only."""
    build = partial(AgentNetwork, agent, input_parts(observation), policy)
    return eqx.filter_eval_shape(lambda key: build(key=key), jax.random.key(0))


def load_network(
    shape: AgentNetwork, arrays: dict[str, np.ndarray], name: str, axes: tuple[int, ...] = ()
) -> AgentNetwork:
    """The network with these arrays, given by path with `axes` in front; refuses others than those of `shape`."""
    leaves = flatten_paths(shape)
    expected = {path: (*axes, *leaf.shape) for path, leaf in leaves.items()}
    check_fit(name, expected, {path: array.shape for path, array in arrays.items()})
    loaded = [jnp.asarray(arrays[path], leaf.dtype) for path, leaf in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(shape), loaded)


def arrays_of(network: AgentNetwork) -> dict[str, np.ndarray]:
    """What `load_network` takes."""
    arrays = jax.device_get(flatten_paths(network))
    return {path: np.ascontiguousarray(array) for path, array in arrays.items()}


def playing(agents: TrainedAgents, on: str) -> TrainedAgents:
    """The same agents, to be evaluated in another environment, or in each task of a set or list.

    Args:
        agents: from `restore_agents`.
        on: a name as of `derex train --env`. User code is imported if it is named here.

    Raises:
        ValueError: there is none of that name, or an agent of this run cannot play it; it says what does not fit.
    """
    with rename_errors("on"):
        tasks = {name: _task(agents, name) for name in expand_tasks(on)}
    return replace(agents, on=on, elsewhere=tasks)


def _task(agents: TrainedAgents, name: str) -> Environment | HostTask:
    """One task as the agents see it."""
    trained, reward = agents.environment, agents.agent.previous_reward
    if len(tasks_in(trained)) == 1:
        alone = make_environment(name, agents.agent)
        assert not isinstance(alone, MultiTask)
        _check(agents, name, alone.spec, observation_parts(trained.spec), exactly=True)
        return alone
    parts = trained.spec.observation[OBSERVATION] if reward else trained.spec.observation
    if is_host(name):
        task = make_host_task(name)
        _check(agents, name, task.spec, parts)
        return make_padded_task(task._replace(name=name), parts, reward)
    environment = make(name)
    _check(agents, name, environment.spec, parts)
    padded = PaddedEnvironment(name, environment, parts)
    return PreviousReward(padded) if reward else padded


def _check(
    agents: TrainedAgents, name: str, spec: EnvironmentSpec, known: dict[str, Any], exactly: bool = False
) -> None:
    """Refuses an environment with other parts than are known, or other actions."""
    own, trained = observation_parts(spec), agents.environment.spec
    wrong = []
    for part, shown in own.items():
        if part not in known:
            wrong.append(f"it shows {part!r}, {shown}, which the run never saw")
        elif shown != known[part] if exactly else not can_pad(shown, known[part]):
            wrong.append(f"it shows {part!r} as {shown}, the run saw {known[part]}")
    if exactly:
        wrong += [f"it does not show {part!r}, {known[part]}" for part in known if part not in own]
        here, before = (jax.tree.structure(each.observation) for each in (spec, trained))
        wrong += (
            [f"it shows its parts as {here}, the run saw {before}"] if not wrong and here != before else []
        )
    if spec.action != trained.action:
        wrong.append(f"its actions are {spec.action}, the run's {trained.action}")
    if wrong:
        raise ValueError(
            f"on: {name} does not fit agents that were trained on {agents.env}: {'; '.join(wrong)}. Expected an "
            "environment with the run's parts and actions."
        )
