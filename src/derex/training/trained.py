"""The agents of a run as they act: networks and policy from a checkpoint, without the representation beside them.

A method of somebody's own is therefore never imported here: what an agent does depends on its network alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from derex.agents.config import AgentConfig
from derex.agents.distributions import Policy, policy_for
from derex.agents.network import AgentNetwork, make_network, parts_of
from derex.envs.host import HostTask
from derex.envs.interface import Environment
from derex.envs.multitask import MultiTask
from derex.report.files import read_json
from derex.report.runs import COMMAND, CONFIG, METRICS, read_lines
from derex.report.scores import final_score
from derex.training.checkpoints import (
    STATE,
    CheckpointError,
    check_belongs,
    find_checkpoint,
    load_arrays,
    path_name,
)
from derex.training.config import from_plain
from derex.training.folder import check_env
from derex.training.making import make_environment, tasks_in

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
        elsewhere: its tasks, by name (`derex.training.elsewhere.playing`).
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
        return policy_for(self.environment.spec.action)

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
    check_belongs(found, config)
    saved = load_arrays(found)[STATE]
    own = {
        name.removeprefix(f"{NETWORK}/"): array for name, array in saved.items() if name.startswith(NETWORK)
    }
    shape = network_shape(environment.spec.observation, policy_for(environment.spec.action), agent)
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
        return make_network(agent, parts_of(observation), policy, key=key)

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
