"""Walks through one episode of an environment, without wrappers."""

from collections import deque
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest


class Walked(NamedTuple):
    """What came of a sequence of T actions: the states before and after each, and what each of them led to."""

    states: list
    observations: list
    rewards: np.ndarray
    terminated: np.ndarray


def walk_actions(env, actions, seed=0, start=None):
    """Takes the actions one after the other from a reset, or from `start`."""
    step = jax.jit(env.step)
    keys = jax.random.split(jax.random.key(seed), len(actions) + 1)
    state, observation = jax.jit(env.reset)(keys[0])
    if start is not None:
        state = start
    states, observations, rewards, ends = [state], [np.asarray(observation)], [], []
    for action, key in zip(actions, keys[1:], strict=True):
        state, observation, reward, terminated = step(state, jnp.asarray(action), key)
        states.append(state)
        observations.append(np.asarray(observation))
        rewards.append(float(reward))
        ends.append(bool(terminated))
    return Walked(states, observations, np.array(rewards), np.array(ends))


def shortest_moves(successors, start, goal):
    """The moves of a shortest path by breadth-first search."""
    came = {start: []}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if here == goal:
            return came[here]
        for move, there in enumerate(successors[here].tolist()):
            if there not in came:
                came[there] = [*came[here], move]
                queue.append(there)
    raise AssertionError(f"{goal} cannot be reached from {start}")


@pytest.fixture
def walk():
    return walk_actions


@pytest.fixture
def shortest():
    return shortest_moves
