"""Evaluation: so many whole episodes of each seed, counted without favour to the quick ones.

Streams play rounds of one episode each, from its reset to its end; the next round begins when the last of them is done.
So every episode that begins counts, however long it is. Host environments: `host_playing.py`.
Shapes: N seeds, B streams, E episodes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key, PRNGKeyArray

from derex._text import to_plain
from derex.agents.network import AgentNetwork
from derex.agents.policy import make_policy
from derex.agents.rollout import AgentMemory, act, init_memory
from derex.envs.host import HostTask, PoolOptions
from derex.envs.interface import Environment
from derex.envs.suites.dmlab import human_normalised
from derex.envs.wrappers import AutoReset, Batched, StreamState
from derex.report.files import read_json, write_atomically
from derex.report.runs import CONFIG
from derex.report.statistics import Interval, bootstrap_interval, mean_interval, proportion_interval
from derex.training.film import play_episodes
from derex.training.folder import EVALUATIONS, WORKER_OPTIONS
from derex.training.metrics import HUMAN_SCORE_CAP, has_human_score
from derex.training.trained import TrainedAgents
from derex.types import TimeStep

MOST_STREAMS = 256


class Episodes(NamedTuple):
    """What the episodes of all seeds came to; of several tasks, as many of each, one task after the other."""

    returns: Float[np.ndarray, "N E"]
    lengths: Int[np.ndarray, "N E"]

    def split(self, tasks: int) -> list[Episodes]:
        """Those of each task."""
        parts = (np.split(part, tasks, axis=1) for part in self)
        return [Episodes(*part) for part in zip(*parts, strict=True)]


class Play(NamedTuple):
    """A round under way."""

    streams: StreamState
    time_step: TimeStep
    memory: AgentMemory
    playing: Bool[Array, " B"]
    """whether its episode goes on"""
    returns: Float[Array, " B"]
    lengths: Int[Array, " B"]
    key: PRNGKeyArray


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
    played = [_played(agents, task, episodes, greedy, seed) for task in agents.tasks.values()]
    return Episodes(*(np.concatenate(part, axis=1) for part in zip(*played, strict=True)))


def _note(event: str, **details: Any) -> None:
    print(f"derex: {event}: {details.get('why')}", file=sys.stderr, flush=True)


def _played(
    agents: TrainedAgents, environment: Environment | HostTask, episodes: int, greedy: bool, seed: int
) -> Episodes:
    """Of one task."""
    if isinstance(environment, HostTask):
        count = len(agents.seeds)
        given, names = agents.content["config"], dict(zip(WORKER_OPTIONS, fields(PoolOptions), strict=True))
        options = PoolOptions(**{names[name].name: given[name] for name in WORKER_OPTIONS if name in given})
        return Episodes(
            *play_episodes(environment, agents.network, count, episodes, greedy, seed, options, _note)
        )
    streams = min(episodes, MOST_STREAMS)
    rounds = []
    for number in range(math.ceil(episodes / streams)):
        key = jax.random.fold_in(jax.random.key(seed), number)
        keys = jax.random.split(key, len(agents.seeds))
        rounds.append(jax.device_get(play_round(agents.network, keys, environment, streams, greedy)))
    # Which episodes of the last round are too many was settled before they were played.
    parts = (np.concatenate(part, axis=1)[:, :episodes] for part in zip(*rounds, strict=True))
    return Episodes(*parts)


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
        zeros = jnp.zeros(streams)
        begun = Play(
            state, step, init_memory(network, policy, streams), step.first, zeros, zeros.astype(int), key
        )
        ended = jax.lax.while_loop(lambda play: play.playing.any(), partial(advance, network), begun)
        return ended.returns, ended.lengths

    def advance(network: AgentNetwork, play: Play) -> Play:
        key, action_key, step_key = jax.random.split(play.key, 3)
        step = play.time_step
        chosen = act(
            network, policy, step.observation, step.first, play.memory, None if greedy else action_key
        )
        state, step = batch.step(play.streams, chosen.action, step_key)
        returns = play.returns + jnp.where(play.playing, step.reward, 0.0)
        lengths = play.lengths + play.playing
        return Play(state, step, chosen.memory, play.playing & ~step.last, returns, lengths, key)

    return jax.vmap(play)(networks, keys)


def summarise(agents: TrainedAgents, played: Episodes) -> dict[str, Any]:
    """Numbers of each seed, and their interquartile means over seeds; of several tasks, under `tasks` those of each.

    The numbers of several tasks as one are means over tasks of their means.
    """
    parts = played.split(len(agents.tasks))
    by_task = [
        _rows(agents.seeds, task, part) for task, part in zip(agents.tasks.items(), parts, strict=True)
    ]
    whole = by_task[0] if len(by_task) == 1 else [_mean_row(rows) for rows in zip(*by_task, strict=True)]
    summary = {"seeds": whole, "over_seeds": _over_seeds(whole)}
    if len(by_task) > 1:
        summary["tasks"] = {
            task: {"seeds": rows, "over_seeds": _over_seeds(rows)}
            for task, rows in zip(agents.tasks, by_task, strict=True)
        }
    return to_plain(summary)


Row = dict[str, Any]


def _rows(seeds: tuple[int, ...], task: tuple[str, Environment | HostTask], played: Episodes) -> list[Row]:
    """Of one task, one for each seed."""
    name, environment = task
    threshold, rows = environment.spec.success_return, []
    for seed, returns, lengths in zip(seeds, played.returns, played.lengths, strict=True):
        found = mean_interval(returns, ends_of_one=math.nan)
        row: Row = {"seed": seed, "return": found._asdict()}
        if threshold is not None:
            row["success"] = proportion_interval(returns >= threshold)._asdict()
        row["length"] = mean_interval(lengths, ends_of_one=math.nan)._asdict()
        if has_human_score(name):
            row["human_normalised"] = {part: human_normalised(name, of) for part, of in row["return"].items()}
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
    if "human_normalised" in mean:
        scores = [
            min(row["human_normalised"]["value"], HUMAN_SCORE_CAP)
            for row in rows
            if "human_normalised" in row
        ]
        mean["human_normalised_capped"] = Interval(float(np.mean(scores)), math.nan, math.nan)._asdict()
    return mean


def _over_seeds(rows: list[Row]) -> Row:
    measures = [name for name in rows[0] if name != "seed"]
    means = {name: np.array([row[name]["value"] for row in rows]) for name in measures}
    return {name: bootstrap_interval(values)._asdict() for name, values in means.items()}


def read_evaluations(folder: str | Path) -> dict[str, list[dict[str, Any]]]:
    """What eval.json of a run holds, by step; refuses a file that is something else."""
    path = Path(folder) / EVALUATIONS
    if not path.exists():
        return {}
    content = read_json(path)
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
    others = [one for one in content.get(str(step), []) if _options(one, own) != _options(entry, own)]
    steps = content | {str(step): [*others, entry]}
    ordered = {step: steps[step] for step in sorted(steps, key=lambda step: (len(step), step))}
    text = json.dumps(ordered, indent=1, allow_nan=False) + "\n"
    return write_atomically(folder / EVALUATIONS, text.encode())


def _options(entry: dict[str, Any], own: str | None) -> tuple[Any, ...]:
    return entry.get("env", own), *(entry.get(name) for name in ("episodes", "greedy", "seed"))
