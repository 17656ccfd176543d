"""One endless stream of episodes of a host environment: what `AutoReset` is to JAX environments."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Shaped

from derex.envs.host.memory import SharedRows, layout_of
from derex.envs.interface import HostEnvironment
from derex.types import Box

Key = tuple[int, ...]


class Assignment(NamedTuple):
    """A stream that a worker is to run; plain data, for another process."""

    source: bytes
    """a pickled function without arguments that makes the environment"""
    key: Key
    """what its episodes are seeded from, besides their number: of the run, of the seed, of the stream"""
    row: int
    """where its steps go in the shared memory"""
    group: int
    """with which others it is stepped"""


def packed(source: Callable[[], HostEnvironment]) -> bytes:
    """The function for another process, which has to be able to import it."""
    try:
        return pickle.dumps(source)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"source: {source!r} cannot be sent to another process: {error}. Give a function of a module, or a "
            "functools.partial of one."
        ) from error


def episode_seed(key: Key, episode: int) -> int:
    """The seed of an episode, in [0, 2³¹): the same for the same run, stream and number, and for no other."""
    return int(np.random.SeedSequence((*key, episode)).generate_state(1)[0] >> 1)


class HostStream:
    """An environment with its time limit and its next episodes, which writes its steps into shared rows."""

    def __init__(self, environment: HostEnvironment, key: Key, row: int, rows: SharedRows):
        """Nothing is begun yet: the first step will be the first of an episode."""
        self.environment, self.key, self.row, self.rows = environment, key, row, rows
        self._elapsed, self._last = 0, True
        self._structure = jax.tree.structure(environment.spec.observation)
        self._parts = [part[row, ...] for part in rows.observation]  # views, of single numbers too
        expected = layout_of(environment.spec, 1).observation
        held = tuple((part.shape[1:], part.dtype.str) for part in rows.observation)
        if held != expected:
            raise ValueError(
                f"environment: {environment.spec.name} has observations of {expected} in the worker, and of "
                f"{held} in the parent. The same name has to give the same environment."
            )

    def step(self) -> None:
        """The next step; after a last one it is the first of another episode, whatever the action."""
        if self._last:
            self._begin()
        else:
            self._act(np.array(self.rows.action[self.row]))

    def _begin(self) -> None:
        rows, row = self.rows, self.row
        number = int(rows.episode[row])
        rows.episode[row] = (
            number + 1
        )  # before anything can go wrong: an episode that crashes is not begun again
        self._elapsed = int(rows.elapsed[row])
        rows.elapsed[row] = 0
        self._write(self.environment.begin(episode_seed(self.key, number)))
        rows.reward[row], rows.first[row] = 0.0, True
        rows.terminated[row] = rows.truncated[row] = self._last = False

    def _act(self, action: Shaped[np.ndarray, "*action"]) -> None:
        spec, rows, row = self.environment.spec, self.rows, self.row
        if isinstance(spec.action, Box):
            action = np.clip(action, spec.action.low, spec.action.high)
        step = self.environment.act(action)
        self._elapsed += 1
        terminated = bool(step.terminated)
        truncated = not terminated and (bool(step.truncated) or self._elapsed >= spec.horizon)
        self._write(step.observation)
        rows.reward[row], rows.first[row] = step.reward, False
        rows.terminated[row], rows.truncated[row] = terminated, truncated
        self._last = terminated or truncated

    def _write(self, observation: Any) -> None:
        leaves, structure = jax.tree.flatten(observation)
        if structure != self._structure:
            raise ValueError(f"observation: expected the parts {self._structure}, got {structure}.")
        for part, leaf in zip(self._parts, leaves, strict=True):
            leaf = np.asarray(leaf)
            if leaf.shape != part.shape or leaf.dtype != part.dtype:
                raise ValueError(
                    f"observation: expected {part.dtype} of shape {part.shape}, as the spec of "
                    f"{self.environment.spec.name} has it; got {leaf.dtype} of shape {leaf.shape}."
                )
            part[...] = leaf
