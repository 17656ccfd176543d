"""The agents of a run as they act: networks and policy from a checkpoint, without the representation beside them.

A method of somebody's own is therefore never imported here: what an agent does depends on its network alone.

Trained agents in other environments than they were trained in: held-out levels, harder sizes, one task of a set.

    evaluate(playing(restore_agents("runs/lab"), "dmlab30-test"))

An agent can go where it is shown what it knows and where its actions are those it has. Trained in several tasks, it
knows their parts padded to the largest, so that anything smaller of the same kind fits, and parts that are not there
are 0, as in training. Trained in one, it has to be shown exactly the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from derex.report.files import read_json
from derex.report.runs import COMMAND, CONFIG, METRICS, read_lines
from derex.report.statistics import final_score
from derex.training.checkpoints import (
    STATE,
    CheckpointError,
    check_options,
    find_checkpoint,
    load_arrays,
    path_name,
)
from derex.training.config import from_plain
from derex.training.folder import check_env
from derex.training.learner import make_environment, tasks_in
from derex.types import EnvironmentSpec

NETWORK = "learner/trained/network"  # where a checkpoint has it


@dataclass(frozen=True, eq=False)
class TrainedAgents:
    """All seeds of a run at one of its checkpoints.

    Attributes:
        folder: of the run.
        content: its config.json.
        environment: what it was trained on; where that is no JAX, how it is made.
        agent: how it was built.
        network: of all seeds, their axis in front of every array.
        seeds: the seeds.
        step: environment steps of each at the checkpoint.
        problems: what was wrong with checkpoints that would have been chosen before this one.
        on: the name of what they are to play, where that is not what they were trained on.
        elsewhere: its tasks, by name (`derex.training.trained.playing`).
    """

    folder: Path
    content: dict[str, Any]
    environment: Environment | MultiTask | HostTask
    agent: AgentConfig
    network: AgentNetwork
    seeds: tuple[int, ...]
    step: int
    problems: tuple[str, ...] = ()
    on: str | None = None
    elsewhere: dict[str, Environment | HostTask] | None = None

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
    content = read_json(folder / CONFIG)
    if content is None or content.get("command") != COMMAND:
        raise ValueError(f"folder: {folder} holds no run of derex train: its {CONFIG} is missing or not one.")
    try:
        config = content["config"]
        check_env(folder, config["env"], env)
        options, seeds = config["agent"], tuple(range(config["seed"], config["seed"] + config["seeds"]))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"folder: {folder / CONFIG} is damaged: {error}.") from error
    agent = agent_config(options)
    environment = make_environment(config["env"], agent)
    found = find_checkpoint(folder, checkpoint)
    check_options(found, config)
    saved = load_arrays(found)[STATE]
    own = {
        name.removeprefix(f"{NETWORK}/"): array for name, array in saved.items() if name.startswith(NETWORK)
    }
    shape = network_shape(environment.spec.observation, make_policy(environment.spec.action), agent)
    network = filled(shape, own, f"checkpoint: {found.path}", (len(seeds),))
    return TrainedAgents(
        folder, content, environment, agent, network, seeds, int(found.path.name), found.problems
    )


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

    def build(key: Any) -> AgentNetwork:
        return AgentNetwork(agent, input_parts(observation), policy, key=key)

    return eqx.filter_eval_shape(build, jax.random.key(0))


def filled(
    shape: AgentNetwork, arrays: dict[str, np.ndarray], name: str, axes: tuple[int, ...] = ()
) -> AgentNetwork:
    """The network with these arrays, by their paths, `axes` in front of all; each has to be there and to fit."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(shape)
    wanted = {path_name(path): (*axes, *leaf.shape) for path, leaf in leaves}
    for path in sorted(wanted.keys() | arrays.keys()):
        came = tuple(arrays[path].shape) if path in arrays else "missing"
        if came != wanted.get(path):
            raise CheckpointError(
                f"{name} does not fit its config: {path} is {came}, expected {wanted.get(path, 'nothing')}."
            )
    loaded = [jnp.asarray(arrays[path_name(path)], leaf.dtype) for path, leaf in leaves]
    return jax.tree.unflatten(tree, loaded)


def arrays_of(network: AgentNetwork) -> dict[str, np.ndarray]:
    """What `filled` takes."""
    leaves = jax.tree_util.tree_flatten_with_path(network)[0]
    return {path_name(path): np.ascontiguousarray(jax.device_get(leaf)) for path, leaf in leaves}


def playing(agents: TrainedAgents, on: str) -> TrainedAgents:
    """The same agents, to be evaluated in another environment, or in each task of a set or list.

    Args:
        agents: from `restore_agents`.
        on: a name as of `derex train --env`. Code of somebody's own is imported if it is named here.

    Raises:
        ValueError: there is none of that name, or an agent of this run cannot play it; it says what does not fit.
    """
    try:
        tasks = {name: _task(agents, name) for name in expand_tasks(on)}
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
    """Refuses what shows other parts than are known, or has other actions."""
    own, trained = observation_parts(spec), agents.environment.spec
    wrong = []
    for part, shown in own.items():
        if part not in known:
            wrong.append(f"it shows {part!r}, {shown}, which the run never saw")
        elif shown != known[part] if exactly else not can_pad(shown, known[part]):
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
