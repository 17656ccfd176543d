"""Trained agents at play: whole episodes that are counted (`evaluate`), and single ones as pictures (`film_episode`).

Every episode that begins counts, however long it is; otherwise quick ones would be favoured. JAX environments play
rounds of one episode in each stream: the next round begins when the last of them has ended. Streams of host
environments play numbers of episodes that are settled before they begin.

Shapes: N seeds, B streams, E episodes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key, PRNGKeyArray, UInt8

from derex._text import to_plain
from derex.agents.network import AgentNetwork
from derex.agents.policy import make_policy
from derex.agents.rollout import act, init_memory
from derex.envs.host import HostTask, PoolOptions, allocate_steps, open_streams
from derex.envs.host.worker import episode_seed
from derex.envs.interface import DrawnEnvironment, DrawnHostEnvironment, Environment, HostEnvironment
from derex.envs.multitask import MultiTask
from derex.envs.suites.dmlab import human_normalised
from derex.envs.wrappers import AutoReset, Batched
from derex.report.files import read_json, write_atomically
from derex.report.runs import CONFIG
from derex.report.statistics import Interval, bootstrap_interval, mean_interval, proportion_interval
from derex.training.folder import EVALUATIONS
from derex.training.host import compile_act, init_memories, show_step, split_seeds
from derex.training.learner import tasks_in
from derex.training.metrics import HUMAN_SCORE_CAP, has_human_score
from derex.training.trained import TrainedAgents

MOST_STREAMS = 256  # of each seed in a JAX environment
HOST_STREAMS = 8  # of each seed: always as many, so that the same seed plays the same episodes on any machine
EVALUATION, FILM = 1, 2  # first number of the keys that episodes are seeded from; that of training is another

Row = dict[str, Any]


class Episodes(NamedTuple):
    """What the episodes of all seeds came to; of several tasks, as many of each, one task after the other."""

    returns: Float[np.ndarray, "N E"]
    lengths: Int[np.ndarray, "N E"]

    def split(self, tasks: int) -> list[Episodes]:
        """Those of each task."""
        parts = (np.split(part, tasks, axis=1) for part in self)
        return [Episodes(*part) for part in zip(*parts, strict=True)]


def evaluate(agents: TrainedAgents, episodes: int = 100, *, greedy: bool = False, seed: int = 0) -> Episodes:
    """Play exactly `episodes` whole episodes with every seed of a run, in each of its tasks.

    Args:
        agents: from `restore_agents`; in other environments than their own: `derex.training.trained.playing`.
        episodes: of each seed, and of each task where there are several.
        greedy: take the likeliest action rather than draw one.
        seed: of the environment's and the policy's randomness.
    """
    if episodes < 1:
        raise ValueError(f"episodes: expected at least 1, got {episodes}.")
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed: expected 0 or more and less than {2**31}, got {seed}.")
    played = [
        play_on_host(agents, task, episodes, greedy, seed)
        if isinstance(task, HostTask)
        else play_rounds(agents, task, episodes, greedy, seed)
        for task in agents.tasks.values()
    ]
    return Episodes(*(np.concatenate(part, axis=1) for part in zip(*played, strict=True)))


def play_rounds(
    agents: TrainedAgents, environment: Environment, episodes: int, greedy: bool, seed: int
) -> Episodes:
    """Episodes of a JAX environment."""
    streams = min(episodes, MOST_STREAMS)
    rounds = []
    for number in range(math.ceil(episodes / streams)):
        key = jax.random.fold_in(jax.random.key(seed), number)
        keys = jax.random.split(key, len(agents.seeds))
        rounds.append(jax.device_get(play_round(agents.network, keys, environment, streams, greedy)))
    # Which episodes of the last round are too many was settled before they were played.
    return Episodes(*(np.concatenate(part, axis=1)[:, :episodes] for part in zip(*rounds, strict=True)))


@partial(jax.jit, static_argnums=(2, 3, 4))
def play_round(
    networks: AgentNetwork, keys: Key[Array, " N"], environment: Environment, streams: int, greedy: bool
) -> tuple[Float[Array, "N B"], Int[Array, "N B"]]:
    """Return and length of one episode in each stream of each seed."""
    batch = Batched(AutoReset(environment), streams)
    policy = make_policy(environment.spec.action)

    def play(network: AgentNetwork, key: PRNGKeyArray) -> tuple[Array, Array]:
        reset_key, key = jax.random.split(key)
        state, step = batch.reset(reset_key, stagger=False)
        # Of each stream: whether its first episode goes on, after its return and its length so far.
        counted = jnp.zeros(streams), jnp.zeros(streams, int), step.first
        begun = state, step, init_memory(network, policy, streams), key, *counted
        *_, returns, lengths, _ = jax.lax.while_loop(
            lambda now: now[-1].any(), partial(advance, network), begun
        )
        return returns, lengths

    def advance(network: AgentNetwork, now: tuple[Any, ...]) -> tuple[Any, ...]:
        state, step, memory, key, returns, lengths, playing = now
        key, action_key, step_key = jax.random.split(key, 3)
        draw = None if greedy else action_key
        chosen = act(network, policy, step.observation, step.first, memory, draw)
        state, step = batch.step(state, chosen.action, step_key)
        returns, lengths = returns + jnp.where(playing, step.reward, 0.0), lengths + playing
        return state, step, chosen.memory, key, returns, lengths, playing & ~step.last

    return jax.vmap(play)(networks, keys)


def play_on_host(agents: TrainedAgents, task: HostTask, episodes: int, greedy: bool, seed: int) -> Episodes:
    """Episodes of a host environment. One that is cut since its worker failed is played again, with another seed."""
    policy, seeds, streams = agents.policy, len(agents.seeds), min(episodes, HOST_STREAMS)
    quota = np.tile([len(range(b, episodes, streams)) for b in range(streams)], seeds)
    keys = [(EVALUATION, seed, agent, b) for agent in range(seeds) for b in range(streams)]
    played: list[list[tuple[float, int]]] = [[] for _ in keys]
    draws = jax.random.split(jax.random.key(seed), seeds)
    leaves, structure = jax.tree.flatten(agents.network)
    act_all_seeds = compile_act(policy, structure)
    total, length = np.zeros(len(keys)), np.zeros(len(keys), int)
    given = agents.content["config"]
    names = {"workers": "workers", "timeout": "worker_timeout", "restarts": "worker_restarts"}
    options = PoolOptions(**{name: given[option] for name, option in names.items() if option in given})
    pool = open_streams(task, keys, (len(keys),), options, _print_event)
    try:
        now, before = (allocate_steps(task.spec, len(keys)) for _ in range(2))
        memory = init_memories(agents.network, policy, streams)
        pool.send(0)
        pool.receive(0, now)
        for t in range(2**31):
            left = quota - [len(each) for each in played]
            if not left.any():
                break
            shown = show_step(task.spec, split_seeds(now, seeds, 0))
            draw = None if greedy else np.array([t], np.uint32)
            memory, decision = act_all_seeds(leaves, memory, *shown, draws, draw)
            action, now, before = np.asarray(decision.action), before, now
            pool.send(0, action.reshape(len(keys), *action.shape[2:]))
            cut = pool.receive(0, now, before.observation)
            total = np.where(now.first, 0.0, total + now.reward)
            length = np.where(now.first, 0, length + 1)
            for row in np.flatnonzero(now.last & ~cut & (left > 0)):
                played[row].append((float(total[row]), int(length[row])))
    finally:
        pool.close()
    # Of each seed the first episode of every stream, then the second of every stream, and so on.
    order = [(number % streams, number // streams) for number in range(episodes)]
    found = np.array([[played[agent * streams + b][e] for b, e in order] for agent in range(seeds)])
    return Episodes(found[..., 0].astype(np.float32), found[..., 1].astype(int))


def _print_event(event: str, **details: Any) -> None:
    print(f"derex: {event}: {details.get('why')}", file=sys.stderr, flush=True)


def summarise(agents: TrainedAgents, played: Episodes) -> dict[str, Any]:
    """Numbers of each seed, and their interquartile means over seeds; of several tasks, under `tasks` those of each.

    The numbers of several tasks as one are means over tasks of their means.
    """
    names, parts = list(agents.tasks), played.split(len(agents.tasks))
    by_task = [
        _rows(agents.seeds, name, task.spec.success_return, part)
        for (name, task), part in zip(agents.tasks.items(), parts, strict=True)
    ]
    whole = by_task[0] if len(names) == 1 else [_mean_row(rows) for rows in zip(*by_task, strict=True)]
    parts_of = {name: _with_intervals(rows) for name, rows in zip(names, by_task, strict=True)}
    return to_plain(_with_intervals(whole) | ({"tasks": parts_of} if len(names) > 1 else {}))


def _with_intervals(rows: list[Row]) -> dict[str, Any]:
    """The rows of all seeds, and interquartile means over them."""
    means = {name: np.array([row[name]["value"] for row in rows]) for name in rows[0] if name != "seed"}
    over_seeds = {name: bootstrap_interval(values)._asdict() for name, values in means.items()}
    return {"seeds": rows, "over_seeds": over_seeds}


def _rows(seeds: tuple[int, ...], task: str, threshold: float | None, played: Episodes) -> list[Row]:
    """Of one task, one for each seed."""
    rows = []
    for seed, returns, lengths in zip(seeds, played.returns, played.lengths, strict=True):
        row: Row = {"seed": seed, "return": mean_interval(returns, ends_of_one=math.nan)._asdict()}
        if threshold is not None:
            row["success"] = proportion_interval(returns >= threshold)._asdict()
        row["length"] = mean_interval(lengths, ends_of_one=math.nan)._asdict()
        if has_human_score(task):
            row["human_normalised"] = {part: human_normalised(task, of) for part, of in row["return"].items()}
        rows.append(row)
    return rows


def _mean_row(rows: Sequence[Row]) -> Row:
    """The tasks of one seed as one; their errors are independent, so that margins add up as squares do."""
    mean: Row = {"seed": rows[0]["seed"]}
    for name in dict.fromkeys(name for row in rows for name in row if name != "seed"):
        found = [row[name] for row in rows if name in row]
        value, count = float(np.mean([each["value"] for each in found])), len(found)
        below, above = (
            math.sqrt(sum((each["value"] - each[end]) ** 2 for each in found)) / count
            for end in ("low", "high")
        )
        mean[name] = Interval(value, value - below, value + above)._asdict()
    scores = [row["human_normalised"]["value"] for row in rows if "human_normalised" in row]
    if scores:
        capped = float(np.mean(np.minimum(scores, HUMAN_SCORE_CAP)))
        mean["human_normalised_capped"] = Interval(capped, math.nan, math.nan)._asdict()
    return mean


def read_evaluations(folder: str | Path) -> dict[str, list[dict[str, Any]]]:
    """What eval.json of a run holds, by step; refuses a file that is something else."""
    path = Path(folder) / EVALUATIONS
    content = read_json(path) if path.exists() else {}
    if content is None or not all(isinstance(part, list) for part in content.values()):
        raise ValueError(f"folder: {path} is damaged or not of derex eval; move it away.")
    return content


def save_evaluation(folder: str | Path, step: int, entry: dict[str, Any]) -> Path:
    """Adds an evaluation to eval.json under its step; one with the same options takes the place of the earlier.

    Those that do not say what was played (`env`), as earlier versions wrote them, are of the run's own environment.
    """
    folder = Path(folder)
    content = read_evaluations(folder)
    own = (read_json(folder / CONFIG) or {}).get("config", {}).get("env")

    def options(entry: dict[str, Any]) -> list[Any]:
        return [entry.get("env", own), *(entry.get(name) for name in ("episodes", "greedy", "seed"))]

    others = [one for one in content.get(str(step), []) if options(one) != options(entry)]
    steps = content | {str(step): [*others, entry]}
    ordered = {step: steps[step] for step in sorted(steps, key=lambda step: (len(step), step))}
    text = json.dumps(ordered, indent=1, allow_nan=False) + "\n"
    return write_atomically(folder / EVALUATIONS, text.encode())


class Filmed(NamedTuple):
    """One step of an episode."""

    picture: UInt8[np.ndarray, "H W 3"]
    step: int
    """how many were taken before"""
    episode_return: float
    """so far"""
    last: bool
    success: bool
    """whether the episode, which ends here, was one"""


def film_episode(
    environment: Environment | MultiTask | HostTask,
    network: AgentNetwork,
    seed: int,
    number: int = 0,
    greedy: bool = False,
) -> list[Filmed]:
    """One episode, picture by picture; where there are several tasks, episodes are of one after the other.

    Args:
        environment: one that draws itself.
        network: of one agent.
        seed: of the environment's and the policy's randomness.
        number: of the episode; each is another.
        greedy: take the likeliest action rather than draw one.
    """
    tasks = tasks_in(environment)
    task = tasks[number % len(tasks)]
    if isinstance(task, HostTask):
        pictures, rewards = _film_on_host(task, network, seed, number, greedy)
    else:
        pictures, rewards = _film(task, network, seed, number, greedy)
    returns = np.cumsum(np.append(0.0, rewards))
    threshold = task.spec.success_return
    filmed = []
    for step, picture in enumerate(pictures):
        ends = step == len(rewards)
        success = ends and threshold is not None and bool(returns[step] >= threshold)
        filmed.append(Filmed(picture, step, float(returns[step]), ends, success))
    return filmed


def check_pictures(environment: Environment | MultiTask | HostTask) -> None:
    """Refuses an environment, or tasks, without pictures."""
    for task in tasks_in(environment):
        made = task.source() if isinstance(task, HostTask) else task
        if isinstance(made, HostEnvironment):
            made.close()
        _require_pictures(made)


def _require_pictures(environment: Any) -> Any:
    """The same environment."""
    if isinstance(environment, DrawnEnvironment | DrawnHostEnvironment):
        return environment
    method = "picture()" if isinstance(environment, HostEnvironment) else "render(state)"
    raise ValueError(
        f"env: {environment.spec.name} does not draw itself; give it `{method}` that returns uint8 (H, W, 3)."
    )


def _film_on_host(
    task: HostTask, network: AgentNetwork, seed: int, number: int, greedy: bool
) -> tuple[list[np.ndarray], list[float]]:
    """Pictures of an episode, and its rewards, one less."""
    environment, policy = task.source(), make_policy(task.spec.action)
    try:
        world = _require_pictures(environment)
        draws = jax.random.fold_in(jax.random.key(seed), number)[None]
        networks = jax.tree.map(lambda leaf: leaf[None], network)
        leaves, structure = jax.tree.flatten(networks)
        act_all_seeds = compile_act(policy, structure)
        memory = init_memories(networks, policy, 1)
        observation = world.begin(episode_seed((FILM, seed), number))
        pictures, rewards = [np.array(world.picture())], []
        for t in range(task.spec.horizon):
            batch = jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], observation)
            first = np.full((1, 1), t == 0)
            draw = None if greedy else np.array([t], np.uint32)
            memory, decision = act_all_seeds(leaves, memory, batch, first, draws, draw)
            action = np.array(np.asarray(decision.action)[0, 0])
            observation, reward, terminated, truncated = world.act(action)
            pictures.append(np.array(world.picture()))
            rewards.append(float(reward))
            if terminated or truncated:
                break
        return pictures, rewards
    finally:
        environment.close()


def _film(
    environment: Environment, network: AgentNetwork, seed: int, number: int, greedy: bool
) -> tuple[list[np.ndarray], Any]:
    """The same of a JAX environment."""
    world = _require_pictures(environment)
    key = jax.random.fold_in(jax.random.key(seed), number)
    states, rewards, lasts = jax.device_get(_play_episode(network, key, environment, greedy))
    taken = int(np.argmax(lasts)) + 1  # the time limit ends it at the latest
    pictures = [world.render(jax.tree.map(lambda leaf, at=t: leaf[at], states)) for t in range(taken + 1)]
    return pictures, rewards[:taken]


@partial(jax.jit, static_argnums=(2, 3))
def _play_episode(
    network: AgentNetwork, key: PRNGKeyArray, environment: Environment, greedy: bool
) -> tuple[Any, Float[Array, " T"], Bool[Array, " T"]]:
    """States of T + 1 steps, T the time limit; rewards and ends of the T after the first."""
    stream, policy = Batched(AutoReset(environment), 1), make_policy(environment.spec.action)
    reset_key, key = jax.random.split(key)
    state, step = stream.reset(reset_key, stagger=False)

    def advance(play: Any, key: PRNGKeyArray) -> Any:
        state, step, memory = play
        action_key, step_key = jax.random.split(key)
        draw = None if greedy else action_key
        chosen = act(network, policy, step.observation, step.first, memory, draw)
        state, step = stream.step(state, chosen.action, step_key)
        return (state, step, chosen.memory), (state.environment, step.reward[0], step.last[0])

    begun = state, step, init_memory(network, policy, 1)
    keys = jax.random.split(key, environment.spec.horizon)
    _, (states, rewards, lasts) = jax.lax.scan(advance, begun, keys)
    states = jax.tree.map(
        lambda one, rest: jnp.concatenate([one[None], rest])[:, 0], state.environment, states
    )
    return states, rewards, lasts
