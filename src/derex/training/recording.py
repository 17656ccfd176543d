"""Episodes of a trained agent as pictures."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray, UInt8

from derex.agents.distributions import policy_for
from derex.agents.network import AgentNetwork
from derex.envs.host import HostTask
from derex.envs.interface import DrawnEnvironment, DrawnHostEnvironment, Environment
from derex.envs.multitask import MultiTask
from derex.envs.wrappers import AutoReset, Batched
from derex.training.host_playing import drawn_host, film
from derex.training.making import tasks_in
from derex.training.players import decide, fresh_memory


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
    stream, policy = Batched(AutoReset(environment), 1), policy_for(environment.spec.action)
    reset_key, key = jax.random.split(key)
    state, step = stream.reset(reset_key, stagger=False)

    def advance(play: Any, key: PRNGKeyArray) -> Any:
        state, step, memory = play
        action_key, step_key = jax.random.split(key)
        draw = None if greedy else action_key
        chosen = decide(network, policy, step.observation, step.first, memory, draw)
        state, step = stream.step(state, chosen.action, step_key)
        return (state, step, chosen.memory), (state.environment, step.reward[0], step.last[0])

    begun = state, step, fresh_memory(network, policy, 1)
    keys = jax.random.split(key, environment.spec.horizon)
    _, (states, rewards, lasts) = jax.lax.scan(advance, begun, keys)
    states = jax.tree.map(
        lambda one, rest: jnp.concatenate([one[None], rest])[:, 0], state.environment, states
    )
    return states, rewards, lasts
