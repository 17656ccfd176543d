"""Trained agents at play in host environments: whole episodes to be counted, and one to be filmed.

Shapes: N seeds, B streams, E episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from derex.agents.distributions import Policy, policy_for
from derex.agents.network import AgentNetwork
from derex.envs.host import HostTask, PoolOptions, empty_steps, open_streams
from derex.envs.host.stream import episode_seed
from derex.envs.interface import DrawnHostEnvironment
from derex.training.loop import cleaned
from derex.training.players import Memory, decide, fresh_memory

STREAMS = 8  # of each seed: always as many, so that the same seed plays the same episodes on any machine
EVALUATION, FILM = 1, 2  # first number of the keys that episodes are seeded from; that of training is another


def play_episodes(
    task: HostTask,
    networks: AgentNetwork,
    seeds: int,
    episodes: int,
    greedy: bool,
    seed: int,
    options: PoolOptions | None = None,
    tell: Callable[..., None] = lambda event, **details: None,
) -> tuple[Float[np.ndarray, "N E"], Int[np.ndarray, "N E"]]:
    """Returns and lengths of exactly so many whole episodes of each seed.

    How many episodes a stream plays is settled before they begin, so that quick ones are not favoured. An episode that
    is cut since its worker failed is played again, with another seed.
    """
    policy, streams = policy_for(task.spec.action), min(episodes, STREAMS)
    quota = np.tile([len(range(b, episodes, streams)) for b in range(streams)], (seeds, 1))
    keys = [(EVALUATION, seed, agent, b) for agent in range(seeds) for b in range(streams)]
    played: list[list[tuple[float, int]]] = [[] for _ in keys]
    draws = jax.random.split(jax.random.key(seed), seeds)
    total, length = np.zeros(len(keys)), np.zeros(len(keys), int)
    pool = open_streams(task, keys, (len(keys),), options or PoolOptions(), tell)
    try:
        now, before = (empty_steps(task.spec, len(keys)) for _ in range(2))
        memory = jax.vmap(lambda network: fresh_memory(network, policy, streams))(networks)
        pool.send(0)
        pool.receive(0, now)
        for t in range(2**31):
            left = quota.reshape(-1) - [len(each) for each in played]
            if not left.any():
                break
            seen = jax.tree.map(lambda leaf: leaf.reshape(seeds, streams, *leaf.shape[1:]), now)
            observation = jax.tree.unflatten(jax.tree.structure(task.spec.observation), seen.observation)
            action, memory = _decided(
                networks, policy, observation, seen.first, memory, draws, np.uint32(t), greedy
            )
            now, before = before, now
            pool.send(0, np.asarray(action).reshape(len(keys), *action.shape[2:]))
            cut = pool.receive(0, now, before.observation)
            total = np.where(now.first, 0.0, total + now.reward)
            length = np.where(now.first, 0, length + 1)
            for row in np.flatnonzero(now.last & ~cut & (left > 0)):
                played[row].append((float(total[row]), int(length[row])))
    finally:
        pool.close()
    rows = [_in_turn(played[agent * streams : (agent + 1) * streams], episodes) for agent in range(seeds)]
    returns, lengths = (np.array([[one[part] for one in row] for row in rows]) for part in range(2))
    return returns.astype(np.float32), lengths


def film(
    task: HostTask, network: AgentNetwork, seed: int, number: int, greedy: bool
) -> tuple[list[np.ndarray], list[float]]:
    """Pictures of an episode, and its rewards, one less."""
    environment, policy = task.source(), policy_for(task.spec.action)
    try:
        world = drawn_host(environment)
        draws = jax.random.fold_in(jax.random.key(seed), number)[None]
        networks = jax.tree.map(lambda leaf: leaf[None], network)
        memory = jax.vmap(lambda network: fresh_memory(network, policy, 1))(networks)
        observation = world.begin(episode_seed((FILM, seed), number))
        pictures, rewards = [np.array(world.picture())], []
        for t in range(task.spec.horizon):
            batch = jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], observation)
            first = np.full((1, 1), t == 0)
            action, memory = _decided(networks, policy, batch, first, memory, draws, np.uint32(t), greedy)
            observation, reward, terminated, truncated = world.act(np.array(np.asarray(action)[0, 0]))
            pictures.append(np.array(world.picture()))
            rewards.append(float(reward))
            if terminated or truncated:
                break
        return pictures, rewards
    finally:
        environment.close()


def drawn_host(environment: Any) -> DrawnHostEnvironment:
    """The same; refuses one without pictures."""
    if isinstance(environment, DrawnHostEnvironment):
        return environment
    raise ValueError(
        f"env: {environment.spec.name} does not draw itself; give it `picture()` that returns uint8 (H, W, 3)."
    )


@partial(jax.jit, static_argnums=(1, 7))
def _decided(
    networks: AgentNetwork,
    policy: Policy,
    observation: Any,
    first: Bool[Any, "N B"],
    memory: Memory,
    keys: Key[Array, " N"],
    t: Any,
    greedy: bool,
) -> tuple[Any, Memory]:
    def of_seed(network: AgentNetwork, observation: Any, first: Any, memory: Memory, key: Any):
        draw = None if greedy else jax.random.fold_in(key, t)
        chosen = decide(network, policy, observation, jnp.asarray(first), memory, draw)
        return cleaned(chosen.action), cleaned(chosen.memory)  # or it would stay for all later episodes

    return jax.vmap(of_seed)(networks, observation, first, memory, keys)


def _in_turn(played: list[list[tuple[float, int]]], episodes: int) -> list[tuple[float, int]]:
    """Episodes of one seed: the first of each stream, the second of each, …"""
    return [played[number % len(played)][number // len(played)] for number in range(episodes)]
