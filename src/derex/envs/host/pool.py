"""Streams of host environments in worker processes, stepped in groups: inference runs on the other half meanwhile.

A worker that dies, hangs or raises is started again. The episodes that were open in it are truncated: their next step
repeats the last observation with reward 0 and `truncated`, and the one after begins another episode.
Letters in shapes: n streams, of a group where a function takes one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Int64, Shaped

from derex.envs.host.memory import HostSteps, SharedMemory, make_row_layout
from derex.envs.host.worker import CLOSING_SECONDS, Fault, Key, StreamSetup, WorkerProcess, pickle_source
from derex.envs.interface import HostEnvironment
from derex.envs.wrappers import EpisodeSums
from derex.types import EnvironmentSpec

LONGEST_TIMEOUT = 1_000_000  # seconds
GIVEN_BACK = 50  # steps of a worker after which it may be restarted once more

Source = Callable[[], HostEnvironment]


def count_workers(wanted: int | None, streams: int) -> int:
    """The number of workers: as many as are wanted, or one for each core; at most one for each stream."""
    return min(wanted or len(_cores()) or os.cpu_count() or 1, streams)


def assign_rows(groups: tuple[int, ...], workers: int) -> list[dict[int, Int[np.ndarray, " n"]]]:
    """The rows of each worker, by group; each group is divided among as many workers as possible."""
    members: list[dict[int, Any]] = [{} for _ in range(workers)]
    begin = 0
    for group, size in enumerate(groups):
        parts = np.array_split(np.arange(begin, begin + size), min(workers, size))
        for place, rows in enumerate(parts):
            # Small groups continue with the worker after the last one used.
            members[(place if size >= workers else begin + place) % workers][group] = rows
        begin += size
    return [each for each in members if each]


def worker_cores(workers: int) -> list[int | None]:
    """A core for each worker, if every core gets equally many; else None, and the system schedules them.

    A game engine in its own process, such as ViZDoom's, and its worker wait for each other in turn. On different cores
    they wake each other across cores many times a step, which takes a large part of a short step.
    """
    cores = _cores()
    even = bool(cores) and workers % len(cores) == 0
    return [cores[number % len(cores)] if even else None for number in range(workers)]


def _cores() -> list[int]:
    """The cores that this process may use; empty where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class EpisodeCounter:
    """Statistics of episodes of host streams: `EpisodeStatistics` for host environments.

    Two kinds of episodes are never counted: a first episode with a shortened time limit, and one truncated by a fault.
    """

    def __init__(
        self, shortened: Bool[np.ndarray, " n"], success_return: float | Float[np.ndarray, " n"] | None
    ):
        """`shortened`: whose first episode has less than the full time limit; `success_return`: of all or of each."""
        none, zero = np.zeros(len(shortened), np.int64), np.zeros(len(shortened))
        self._threshold = np.inf if success_return is None else success_return
        self._whole, self._begun = ~shortened, np.zeros_like(shortened)
        self._return, self._length = zero.copy(), none.copy()
        self._sums = EpisodeSums(none, zero, none, none)  # type: ignore[arg-type]

    def add(self, step: HostSteps, cut: Bool[np.ndarray, " n"]) -> None:
        """Adds one step of all streams; `cut`: which episodes a fault has truncated there."""
        self._return += step.reward
        self._length += 1
        if step.first.any():
            self._whole |= step.first & self._begun  # only the very first episode is shortened
            self._begun |= step.first
            self._return[step.first], self._length[step.first] = 0.0, 0
        last, sums = step.last, self._sums
        if not last.any():  # usually
            return
        counted = last & self._whole & ~cut
        self._sums = EpisodeSums(
            sums.episodes + counted,
            sums.returns + np.where(counted, self._return, 0.0),
            sums.lengths + np.where(counted, self._length, 0),
            sums.successes + (counted & (self._return >= self._threshold)),
        )

    def take(self) -> EpisodeSums:
        """Returns the sums of each stream since the last call, as numpy arrays."""
        sums, self._sums = self._sums, jax.tree.map(np.zeros_like, self._sums)
        return sums


class WorkerFailed(ChildProcessError):
    """A worker had to be restarted more often than is allowed, or a vector environment in this process has failed."""


@dataclass(frozen=True)
class PoolOptions:
    """How streams are run."""

    workers: int | None = None
    """processes; None: one for each core, at most one for each stream"""
    timeout: float = 60.0
    """seconds without an answer after which a worker counts as hanging"""
    restarts: int = 10
    """how often a worker may be restarted in a row; `GIVEN_BACK` steps allow one more"""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers: expected at least 1, or None for one per core; got {self.workers}.")
        if not 0 < self.timeout <= LONGEST_TIMEOUT:
            raise ValueError(
                f"worker_timeout: expected seconds in (0, {LONGEST_TIMEOUT}], got {self.timeout:g}."
            )
        if self.restarts < 0:
            raise ValueError(f"worker_restarts: expected 0 or more, got {self.restarts}.")


class StreamSources(NamedTuple):
    """The streams to run; one entry for each stream, group after group."""

    spec: EnvironmentSpec
    """of every environment"""
    sources: Sequence[Source]
    keys: Sequence[Key]
    """seed the episodes of each stream"""
    groups: tuple[int, ...]
    """number of streams of each group"""


@dataclass
class _Worker:
    """A worker and its state."""

    number: int
    core: int | None
    """to which it is pinned, if any"""
    streams: tuple[StreamSetup, ...]
    rows: dict[int, Int[np.ndarray, " n"]]
    """by group"""
    process: WorkerProcess
    restarts_left: float
    asked: set[int] = field(default_factory=set)
    """groups whose step has not been received yet"""
    answered: set[int] = field(default_factory=set)
    """those of them that are done"""
    faulty: set[int] = field(default_factory=set)
    """groups with episodes that are truncated now, or will be at their next step"""


class Pool:
    """Streams of host environments in worker processes; call `close` at the end."""

    def __init__(
        self,
        streams: StreamSources,
        options: PoolOptions,
        notify: Callable[..., None] = lambda event, **details: None,
        *,
        elapsed: Int[np.ndarray, " n"] | int = 0,
        begun: Int[np.ndarray, " n"] | int = 0,
    ):
        """Starts all workers and waits for their environments.

        Args:
            streams: what to run.
            options: how.
            notify: called at every restart with the name of the event, and details by name.
            elapsed: initial step count of each first episode, for its time limit.
            begun: episodes of each stream that were begun in an earlier run and are not repeated.
        """
        self.spec, self.groups, self.options, self._notify = streams.spec, streams.groups, options, notify
        total = sum(streams.groups)
        if not total or min(streams.groups) < 1 or not total == len(streams.sources) == len(streams.keys):
            raise ValueError(
                f"streams: expected a source and a key for each stream of the groups {streams.groups}, at least one "
                f"stream in each; got {len(streams.sources)} sources and {len(streams.keys)} keys."
            )
        ends = np.cumsum(streams.groups).tolist()
        self._places = [slice(end - size, end) for end, size in zip(ends, self.groups, strict=True)]
        self._memory = SharedMemory(make_row_layout(streams.spec, total))
        self._rows = rows = self._memory.rows
        self._parts = [jax.tree.map(itemgetter(place), rows) for place in self._places]
        rows.elapsed[:], rows.episode[:] = elapsed, begun
        self.shortened = rows.elapsed > 0
        """whose first episode has less than the full time limit"""
        self._over = np.ones(total, bool)  # whose episode has ended, or has not begun
        self._orphan, self._cut = np.zeros(total, bool), np.zeros(total, bool)
        self.restarts = 0
        """of all workers, so far"""
        self._spare: WorkerProcess | None = None
        self._workers: list[_Worker] = []
        try:
            self._start(streams)
        except BaseException:
            self.close()
            raise

    @property
    def begun(self) -> Int64[np.ndarray, " n"]:
        """Episodes begun by each stream; a copy."""
        return self._rows.episode.copy()

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(worker.process.pid for worker in self._workers)

    def send(self, group: int, actions: Shaped[np.ndarray, "n *action"] | None = None) -> None:
        """Starts a step of the streams of a group; without actions, the very first step."""
        if actions is not None:
            self._parts[group].action[...] = actions
        for worker in self._workers:
            if group in worker.rows:
                self._ask(worker, group)

    def receive(
        self, group: int, into: HostSteps, before: tuple[Any, ...] | None = None
    ) -> Bool[np.ndarray, " n"]:
        """Waits for the step of a group.

        Args:
            group: the number of the group.
            into: arrays to fill.
            before: the previous observation; an episode that is truncated by a fault ends with it.

        Returns:
            Which episodes were truncated by a fault.

        Raises:
            WorkerFailed: a worker had to be restarted too often.
        """
        for worker in self._workers:
            if group in worker.rows:
                self._wait(worker, group)
        shared, over = self._parts[group], self._over[self._places[group]]
        for array, part in zip(into.observation, shared.observation, strict=True):
            array[...] = part
        into.reward[...], into.first[...], into.truncated[...] = shared.reward, shared.first, shared.truncated
        np.subtract(1.0, shared.terminated, out=into.discount, dtype=np.float32)
        np.logical_or(shared.terminated, shared.truncated, out=over)
        cut = self._cut[self._places[group]].copy()
        if cut.any():
            assert before is not None
            for array, earlier in zip(into.observation, before, strict=True):
                array[cut] = earlier[cut]
            into.reward[cut], into.discount[cut], into.truncated[cut], into.first[cut] = 0.0, 1.0, True, False
            over[cut] = True
        return cut

    def close(self) -> None:
        """Ends all workers and frees the memory; may be called again."""
        processes = [worker.process for worker in self._workers]
        for process in processes:
            process.close()
        deadline = time.monotonic() + CLOSING_SECONDS
        for process in processes:
            process.wait(deadline)
        for process in [*processes, *filter(None, [self._spare])]:
            process.kill()
        self._workers, self._spare = [], None
        self._memory.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- workers -----------------------------------------------------------------------------------------------------

    def _start(self, streams: StreamSources) -> None:
        sources = {id(source): pickle_source(source) for source in streams.sources}
        shares = assign_rows(self.groups, count_workers(self.options.workers, sum(self.groups)))
        for number, (members, core) in enumerate(zip(shares, worker_cores(len(shares)), strict=True)):
            assigned = tuple(
                StreamSetup(sources[id(streams.sources[row])], streams.keys[row], row, group)
                for group, rows in members.items()
                for row in rows.tolist()
            )
            process = WorkerProcess(self._memory)
            restarts = float(self.options.restarts)
            self._workers.append(_Worker(number, core, assigned, members, process, restarts))
            process.begin(assigned, core)
        for worker in self._workers:
            try:
                worker.process.wait_until_ready(self.options.timeout)
            except Fault as fault:
                self._restart(worker, fault)

    def _ask(self, worker: _Worker, group: int) -> None:
        """Commands a worker to step a group; episodes of a previous process are truncated here instead."""
        if worker.asked == worker.answered:  # it was idle
            worker.process.heard = time.monotonic()
        worker.asked.add(group)
        if group in worker.faulty:
            rows = worker.rows[group]
            cut = self._orphan[rows] & ~self._over[rows]
            self._orphan[rows] = False
            self._cut[rows] = self._rows.skip[rows] = cut
            if not cut.any():
                worker.faulty.discard(group)
            if cut.all():
                worker.answered.add(group)
                return
        worker.process.ask(group)

    def _wait(self, worker: _Worker, group: int) -> None:
        """Waits until the group is stepped, by this process of the worker or by a restarted one."""
        while group not in worker.answered:
            try:
                done = worker.process.answer(self.options.timeout, lambda: self._episodes(worker))
            except Fault as fault:
                self._restart(worker, fault)
                continue
            worker.answered.add(done)
            if worker.restarts_left < self.options.restarts:
                earned = np.count_nonzero(~self._cut[worker.rows[done]]) / GIVEN_BACK
                worker.restarts_left = min(worker.restarts_left + earned, float(self.options.restarts))
        worker.asked.discard(group)
        worker.answered.discard(group)

    def _episodes(self, worker: _Worker) -> int:
        """Episodes begun by the streams of the worker."""
        return sum(int(self._rows.episode[rows].sum()) for rows in worker.rows.values())

    def _restart(self, worker: _Worker, fault: Fault) -> None:
        """Gives the worker a new process, which does the steps that were started."""
        while True:
            details = {"worker": worker.number, "why": fault.why, "streams": len(worker.streams)}
            if worker.restarts_left < 1:
                self._notify("worker failed", **details, trace=fault.trace)
                raise WorkerFailed(
                    f"env: a worker of {self.spec.name} {fault.why}, after {self.options.restarts} restarts in a row "
                    "(--worker-restarts)."
                    + (f" Its own traceback:\n{fault.trace.rstrip()}" if fault.trace else "")
                )
            worker.restarts_left -= 1
            self.restarts += 1
            self._notify("worker restarted", **details, trace=fault.trace)
            worker.process.kill()
            worker.process = self._spare or WorkerProcess(self._memory)
            self._spare = None
            worker.process.begin(worker.streams, worker.core)
            self._spare = WorkerProcess(self._memory)  # ready for the next fault
            try:
                worker.process.wait_until_ready(self.options.timeout)
                break
            except Fault as another:
                fault = another
        for rows in worker.rows.values():
            self._orphan[rows] = True
        worker.faulty = set(worker.rows)
        for group in sorted(worker.asked - worker.answered):
            self._ask(worker, group)
