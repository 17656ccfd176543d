"""Vector environments, which step many environments at once as gymnasium's do, as endless streams.

What follows a last step depends on the library (`metadata["autoreset_mode"]`):

    NEXT_STEP   the next call begins the next episode, whatever the action: our convention
    SAME_STEP   the call that ended the episode begins the next; the last observation is in info["final_obs"]
    DISABLED    nothing, until reset(options={"reset_mask": ...}) is called

One environment cannot wait while others are stepped. In the last two modes the call after a last step therefore moves
it by an arbitrary action; the episode that this began is dropped, and another is begun by a reset of that one alone.
Letters in shapes: n environments.
"""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from threading import Thread
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int, Int64, Shaped

from derex.envs.host.memory import HostSteps
from derex.envs.host.pool import WorkerFailed
from derex.envs.host.worker import Key, episode_seed
from derex.envs.multitask import ObservationPadding
from derex.types import Box, EnvironmentSpec, TimeStep

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"


class VectorStreams:
    """n endless streams of episodes of one vector environment."""

    def __init__(
        self, vector: Any, spec: EnvironmentSpec, keys: Sequence[Key], begun: Int[np.ndarray, " n"] | int = 0
    ):
        """Wraps a vector environment.

        Args:
            vector: like a `gymnasium.vector.VectorEnv`, with observations and actions as in `spec`.
            spec: of one environment.
            keys: seed the episodes of each stream, if `vector.reset` takes seeds.
            begun: episodes of each that were begun before.
        """
        n = len(keys)
        if vector.num_envs != n:
            raise ValueError(f"keys: expected one for each of {vector.num_envs} environments, got {n}.")
        # NextStep is gymnasium's default, if the environment does not tell
        mode = (getattr(vector, "metadata", None) or {}).get("autoreset_mode", NEXT_STEP)
        self.mode = str(getattr(mode, "value", mode))
        if self.mode not in (NEXT_STEP, SAME_STEP, DISABLED):
            raise ValueError(
                f"vector: metadata['autoreset_mode'] is {mode!r}, expected {NEXT_STEP}, {SAME_STEP} or {DISABLED}."
            )
        self.vector, self.spec, self.keys = vector, spec, tuple(keys)
        self._takes = inspect.signature(vector.reset).parameters
        self.begun = np.zeros(n, np.int64) + begun
        self._steps = np.zeros(n, np.int64)
        self._last = np.zeros(n, bool)
        self._ended_itself = np.zeros(n, bool)  # not by our time limit

    def begin(self) -> TimeStep:
        """Returns the first steps of all streams."""
        n = len(self.keys)
        seeds = self._seeds(np.ones(n, bool))
        observation, _ = self.vector.reset(seed=seeds) if "seed" in self._takes else self.vector.reset()
        zeros, ones = np.zeros(n, np.float32), np.ones(n, np.float32)
        return TimeStep(self._checked(observation), zeros, ones, np.zeros(n, bool), np.ones(n, bool))

    def step(self, actions: Shaped[np.ndarray, "n *action"]) -> TimeStep:
        """Returns the next steps; after a last step it is the first of another episode, whatever the action."""
        first, waiting = self._last, self._last & self._ended_itself
        if self.mode == DISABLED and waiting.any():
            self._reset(waiting, [None] * len(self.keys))
        if isinstance(self.spec.action, Box):
            actions = np.clip(actions, self.spec.action.low, self.spec.action.high)
        observation, reward, terminated, truncated, info = self.vector.step(actions)
        ended = np.asarray(terminated, bool) | np.asarray(truncated, bool)
        if self.mode == SAME_STEP and ended.any():
            observation = _insert_final(observation, info["final_obs"], ended)
        begun = first & waiting if self.mode == NEXT_STEP else np.zeros_like(first)
        self.begun[begun] += 1
        late = first & ~begun
        if late.any():
            others = self._reset(late, self._seeds(late))
            observation = jax.tree.map(partial(_select, late), others, observation)
        self._steps = np.where(first, 0, self._steps + 1)
        terminated = np.asarray(terminated, bool) & ~first
        limit = self._steps >= self.spec.horizon
        truncated = (np.asarray(truncated, bool) | limit) & ~terminated & ~first
        self._last, self._ended_itself = terminated | truncated, ended & ~first
        reward = np.where(first, 0, reward).astype(np.float32)
        return TimeStep(
            self._checked(observation), reward, 1 - terminated.astype(np.float32), truncated, first
        )

    def close(self) -> None:
        """Closes the vector environment."""
        self.vector.close()

    def _reset(self, mask: Bool[np.ndarray, " n"], seeds: list[int | None]) -> Any:
        """Begins another episode where `mask` is True; returns all observations."""
        if "options" not in self._takes:
            raise ValueError(
                f"vector: {self.spec.name} needs resets of single environments: its autoreset_mode is {self.mode} "
                f"or it has no time limit of {self.spec.horizon} steps itself; but its reset takes no "
                "options={'reset_mask': ...}. Use autoreset_mode NextStep and its own time limit."
            )
        return self.vector.reset(seed=seeds, options={"reset_mask": mask.copy()})[0]

    def _seeds(self, mask: Bool[np.ndarray, " n"]) -> list[int | None]:
        """Seeds of the next episodes where `mask` is True, which are counted as begun; else None."""
        seeds = [
            episode_seed(key, int(number)) if wanted else None
            for key, number, wanted in zip(self.keys, self.begun, mask, strict=True)
        ]
        self.begun[mask] += 1
        return seeds

    def _checked(self, observation: Any) -> Any:
        parts, n = jax.tree.leaves(self.spec.observation), len(self.keys)
        expected = [((n, *part.shape), np.dtype(part.dtype)) for part in parts]
        copied = jax.tree.map(np.array, observation)  # vector environments reuse their arrays
        came = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(copied)]
        if came != expected:
            raise ValueError(
                f"observation: expected {expected} as in the spec of {self.spec.name}, got {came}."
            )
        return copied


def _insert_final(observation: Any, final: Any, ended: Bool[np.ndarray, " n"]) -> Any:
    """The observations, replaced by the last one of the episode where one has ended.

    `final` is an array of objects, one observation for each environment, or a pytree of arrays.
    """
    observation = jax.tree.map(np.array, observation)
    objects = isinstance(final, np.ndarray) and final.dtype == object
    for place in np.flatnonzero(ended).tolist():
        last = final[place] if objects else jax.tree.map(lambda leaf: leaf[place], final)  # noqa: B023
        for leaf, replacement in zip(jax.tree.leaves(observation), jax.tree.leaves(last), strict=True):
            leaf[place] = replacement
    return observation


def _select(mask: Bool[np.ndarray, " n"], some: Any, others: Any) -> np.ndarray:
    return np.where(mask.reshape(-1, *(1,) * (np.ndim(some) - 1)), some, others)


class VectorPool:
    """Groups of streams, each a vector environment stepped in its own thread; has the interface of `Pool`."""

    restarts = 0
    """there are no workers to restart"""

    def __init__(
        self,
        make_many: Callable[[int, int], Any],
        keys: Sequence[Key],
        groups: tuple[int, ...],
        begun: Int[np.ndarray, " n"] | None = None,
        padding: ObservationPadding | None = None,
        timeout: float | None = None,
        notify: Callable[..., None] = lambda event, **details: None,
    ):
        """Makes a vector environment for each group by `make_many(n, seed)`; it has a `spec`.

        `padding` pads its observations to those of several tasks; `notify` is called at the fault that ends a run. The
        rest is as in `Pool`.
        """
        begun = np.zeros(len(keys), np.int64) if begun is None else np.asarray(begun)
        self.groups, self._padding, self._timeout, self._notify = groups, padding, timeout, notify
        self._streams: list[VectorStreams] = []
        self._asked: list[Future[TimeStep] | None] = [None] * len(groups)
        self._sent = [0.0] * len(groups)  # times of the monotonic clock
        ends = np.cumsum(groups)[:-1]
        try:
            for part, here in zip(np.split(np.arange(len(keys)), ends), np.split(begun, ends), strict=True):
                own = [keys[row] for row in part]
                vector = make_many(len(own), episode_seed(own[0], int(here[0])))
                self._streams.append(VectorStreams(vector, vector.spec, own, here))
        except BaseException:
            self.close()
            raise
        self.spec: EnvironmentSpec = self._streams[0].spec
        self.shortened = np.zeros(len(keys), bool)

    @property
    def begun(self) -> Int64[np.ndarray, " n"]:
        """Episodes begun by each stream; a copy."""
        return np.concatenate([streams.begun for streams in self._streams])

    def send(self, group: int, actions: Shaped[np.ndarray, "n *action"] | None = None) -> None:
        """As `Pool.send`."""
        streams = self._streams[group]
        self._sent[group] = time.monotonic()
        self._asked[group] = _run_in_thread(
            streams.begin if actions is None else partial(streams.step, np.array(actions))
        )

    def receive(
        self, group: int, into: HostSteps, before: tuple[Any, ...] | None = None
    ) -> Bool[np.ndarray, " n"]:
        """As `Pool.receive`; episodes are never truncated by a fault.

        Raises:
            WorkerFailed: the environment has raised, or has not answered in time.
        """
        asked = self._asked[group]
        assert asked is not None
        wait([asked], self._timeout)
        if not asked.done():
            raise self._failed(group, f"gave no answer within {self._timeout:g} s (--worker-timeout)")
        error = asked.exception()
        if isinstance(error, Exception):
            trace = "".join(traceback.format_exception(error))
            raise self._failed(group, f"raised {trace.strip().splitlines()[-1]}", trace) from error
        step, observation = asked.result(), asked.result().observation
        if self._padding is not None:
            observation = self._padding.pad(observation, np, len(step.first))
        for array, leaf in zip(into.observation, jax.tree.leaves(observation), strict=True):
            array[...] = leaf
        into.reward[...], into.discount[...] = step.reward, step.discount
        into.truncated[...], into.first[...] = step.truncated, step.first
        return np.zeros(len(step.first), bool)

    def close(self) -> None:
        """Closes all environments that do not hang; may be called again.

        The timeout of a group counts from its `send`: one that has timed out is not waited for again.
        """
        while self._streams:
            streams, asked, sent = self._streams.pop(), self._asked.pop(), self._sent.pop()
            if asked is None:
                streams.close()
                continue
            left = None if self._timeout is None else max(sent + self._timeout - time.monotonic(), 0.0)
            wait([asked], left)
            if asked.done():
                try:
                    streams.close()
                except Exception:
                    if asked.exception() is None:  # else the error of the step is the one to report
                        raise

    def _failed(self, group: int, why: str, trace: str = "") -> WorkerFailed:
        """Reports the fault and returns the error that ends the run."""
        details = {"worker": group, "why": why, "streams": self.groups[group], "env": self.spec.name}
        self._notify("worker failed", **details, trace=trace)
        return WorkerFailed(
            f"env: {self.spec.name} {why}. Vector environments run in this process and cannot be restarted."
            + (f" Its own traceback:\n{trace.rstrip()}" if trace else "")
        )


def _run_in_thread(step: Callable[[], TimeStep]) -> Future[TimeStep]:
    """Runs the step in a daemon thread: one that hangs does not keep the process from ending."""
    future: Future[TimeStep] = Future()

    def run() -> None:
        try:
            future.set_result(step())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="derex-vector", daemon=True).start()
    return future
