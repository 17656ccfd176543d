"""Trained agents at play in host environments: whole episodes to be counted, and one to be filmed.

Shapes: N seeds, B streams, E episodes.

Episodes of a trained agent as pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key, PRNGKeyArray, UInt8

from derex.agents.network import AgentNetwork
from derex.agents.policy import Policy, make_policy
from derex.agents.rollout import AgentMemory, act, init_memory
from derex.envs.host import HostTask, PoolOptions, allocate_steps, open_streams
from derex.envs.host.worker import episode_seed
from derex.envs.interface import DrawnEnvironment, DrawnHostEnvironment, Environment
from derex.envs.multitask import MultiTask
from derex.envs.wrappers import AutoReset, Batched
from derex.training.learner import tasks_in, zero_nonfinite

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
    policy, streams = make_policy(task.spec.action), min(episodes, STREAMS)
    quota = np.tile([len(range(b, episodes, streams)) for b in range(streams)], (seeds, 1))
    keys = [(EVALUATION, seed, agent, b) for agent in range(seeds) for b in range(streams)]
    played: list[list[tuple[float, int]]] = [[] for _ in keys]
    draws = jax.random.split(jax.random.key(seed), seeds)
    total, length = np.zeros(len(keys)), np.zeros(len(keys), int)
    pool = open_streams(task, keys, (len(keys),), options or PoolOptions(), tell)
    try:
        now, before = (allocate_steps(task.spec, len(keys)) for _ in range(2))
        memory = jax.vmap(lambda network: init_memory(network, policy, streams))(networks)
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
    environment, policy = task.source(), make_policy(task.spec.action)
    try:
        world = drawn_host(environment)
        draws = jax.random.fold_in(jax.random.key(seed), number)[None]
        networks = jax.tree.map(lambda leaf: leaf[None], network)
        memory = jax.vmap(lambda network: init_memory(network, policy, 1))(networks)
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
    memory: AgentMemory,
    keys: Key[Array, " N"],
    t: Any,
    greedy: bool,
) -> tuple[Any, AgentMemory]:
    def of_seed(network: AgentNetwork, observation: Any, first: Any, memory: AgentMemory, key: Any):
        draw = None if greedy else jax.random.fold_in(key, t)
        chosen = act(network, policy, observation, jnp.asarray(first), memory, draw)
        return zero_nonfinite(chosen.action), zero_nonfinite(
            chosen.memory
        )  # or it would stay for all later episodes

    return jax.vmap(of_seed)(networks, observation, first, memory, keys)


def _in_turn(played: list[list[tuple[float, int]]], episodes: int) -> list[tuple[float, int]]:
    """Episodes of one seed: the first of each stream, the second of each, …"""
    return [played[number % len(played)][number // len(played)] for number in range(episodes)]


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
    environment = tasks[number % len(tasks)]
    if isinstance(environment, HostTask):
        pictures, rewards = film(environment, network, seed, number, greedy)
    else:
        pictures, rewards = _pictures(environment, network, seed, number, greedy)
    returns = np.cumsum(np.append(0.0, rewards))
    threshold = environment.spec.success_return
    filmed = []
    for step, picture in enumerate(pictures):
        ends = step == len(rewards)
        success = ends and threshold is not None and bool(returns[step] >= threshold)
        filmed.append(Filmed(picture, step, float(returns[step]), ends, success))
    return filmed


def _pictures(
    environment: Environment, network: AgentNetwork, seed: int, number: int, greedy: bool
) -> tuple[list[np.ndarray], Any]:
    """Of an episode of a JAX environment, and its rewards, one less."""
    world = drawn(environment)
    assert isinstance(world, DrawnEnvironment)
    key = jax.random.fold_in(jax.random.key(seed), number)
    states, rewards, lasts = jax.device_get(_episode(network, key, environment, greedy))
    taken = int(np.argmax(lasts)) + 1  # the time limit ends it at the latest
    pictures = [world.render(jax.tree.map(lambda leaf, at=t: leaf[at], states)) for t in range(taken + 1)]
    return pictures, rewards[:taken]


def drawn(environment: Environment | MultiTask | HostTask) -> DrawnEnvironment | DrawnHostEnvironment:
    """The same, or one that a task makes, the first of several; refuses one without pictures."""
    tasks = tasks_in(environment)
    for other in tasks[1:]:
        drawn(other)
    environment = tasks[0]
    if isinstance(environment, HostTask):
        made = environment.source()
        made.close()
        return drawn_host(made)
    if isinstance(environment, DrawnEnvironment):
        return environment
    raise ValueError(
        f"env: {environment.spec.name} does not draw itself; give it `render(state)` that returns uint8 (H, W, 3)."
    )


@partial(jax.jit, static_argnums=(2, 3))
def _episode(
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
