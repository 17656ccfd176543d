"""Who runs what and where: streams shared out over workers, and workers over cores.

Returns, lengths and successes of the episodes of host streams: what `EpisodeStatistics` is to JAX environments.

Letters in shapes: n streams.

Streams of host environments in worker processes, stepped in groups: while one steps,
inference runs on the other half.

A worker that dies, hangs or raises is started again. The episodes that were open in it are cut where they were last
seen: their next step repeats that observation with reward 0 and `truncated`, and the one after begins another episode.
Letters in shapes: n streams of a group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Int64, Shaped

from derex.envs.host.memory import HostSteps, SharedMemory, make_row_layout
from derex.envs.host.process import CLOSING_SECONDS, Fault, WorkerProcess
from derex.envs.host.worker import Assignment, Key, packed
from derex.envs.interface import HostEnvironment
from derex.envs.wrappers import EpisodeSums
from derex.types import EnvironmentSpec


def count_workers(wanted: int | None, streams: int) -> int:
    """As many as are wanted, or one for each core; at most one for each stream."""
    return min(wanted or len(_cores()) or os.cpu_count() or 1, streams)


def assign_rows(groups: tuple[int, ...], workers: int) -> list[dict[int, Int[np.ndarray, " n"]]]:
    """The rows of each worker, by group: every group over as many workers as it can keep busy."""
    members: list[dict[int, Any]] = [{} for _ in range(workers)]
    begin = 0
    for group, size in enumerate(groups):
        parts = np.array_split(np.arange(begin, begin + size), min(workers, size))
        for place, rows in enumerate(parts):
            # Small groups follow each other around the workers.
            members[(place if size >= workers else begin + place) % workers][group] = rows
        begin += size
    return [each for each in members if each]


def worker_cores(workers: int) -> list[int | None]:
    """A core for each worker to stay on, where every core gets equally many; else the system had better move them.

    An engine in a process of its own, such as ViZDoom's, and its worker wait for each other in turn. Moved about, they
    wake each other across cores many times a step, which costs a good part of a short one.
    """
    cores = _cores()
    even = bool(cores) and workers % len(cores) == 0
    return [cores[number % len(cores)] if even else None for number in range(workers)]


def _cores() -> list[int]:
    """Those that this process may use; none where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class EpisodeCounter:
    """Counts episodes as they end.

    Not counted, however they end: a first episode whose time limit was shortened, and one that was cut by a fault, of
    which nobody knows what it would have come to.
    """

    def __init__(
        self, shortened: Bool[np.ndarray, " n"], success_return: float | Float[np.ndarray, " n"] | None
    ):
        """`shortened` says whose first episode has less than the whole time limit; success is of all or of each."""
        n = len(shortened)
        self._threshold = np.inf if success_return is None else success_return
        self._whole = ~shortened
        self._begun = np.zeros(n, bool)
        self._return, self._length = np.zeros(n), np.zeros(n, np.int64)
        self._sums = _nothing(n)

    def add(self, step: HostSteps, cut: Bool[np.ndarray, " n"]) -> None:
        """One step of all streams, and which episodes a fault has cut there."""
        self._return += step.reward
        self._length += 1
        if step.first.any():
            self._whole |= step.first & self._begun  # no episode but the very first is shortened
            self._begun |= step.first
            self._return[step.first], self._length[step.first] = 0.0, 0
        last = step.last
        if not last.any():  # as a rule
            return
        counted, sums = last & self._whole & ~cut, self._sums
        success = counted & (self._return >= self._threshold)
        self._sums = EpisodeSums(
            sums.episodes + counted,
            sums.returns + np.where(counted, self._return, 0.0),
            sums.lengths + np.where(counted, self._length, 0),
            sums.successes + success,
        )

    def taken(self) -> EpisodeSums:
        """What was counted since this was last asked for, of each stream; numpy arrays."""
        sums, self._sums = self._sums, _nothing(len(self._whole))
        return sums


def _nothing(n: int) -> EpisodeSums:
    none, zero = np.zeros(n, np.int64), np.zeros(n)
    return EpisodeSums(none, zero, none, none)  # type: ignore[arg-type]


LONGEST_TIMEOUT = 1_000_000  # seconds
GIVEN_BACK = 50  # steps of a worker that give one restart back

Source = Callable[[], HostEnvironment]


class WorkerFailed(ChildProcessError):
    """A worker had to be started again more often than is allowed, or what steps many in this process has failed."""


@dataclass(frozen=True)
class PoolOptions:
    """How streams are run."""

    workers: int | None = None
    """processes; none: one for each core, at most one for each stream"""
    timeout: float = 60.0
    """seconds without an answer after which a worker counts as hanging"""
    restarts: int = 10
    """how often a worker may be started again in a row; `GIVEN_BACK` steps of it give one back"""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(
                f"workers: expected at least 1, or none for one on each core; got {self.workers}."
            )
        if not 0 < self.timeout <= LONGEST_TIMEOUT:
            raise ValueError(
                f"worker_timeout: expected seconds, more than 0 and at most {LONGEST_TIMEOUT}; got {self.timeout:g}."
            )
        if self.restarts < 0:
            raise ValueError(f"worker_restarts: expected 0 or more, got {self.restarts}.")


class StreamSources(NamedTuple):
    """What is to be run; one entry for each stream, groups one after the other."""

    spec: EnvironmentSpec
    """of every environment"""
    sources: Sequence[Source]
    keys: Sequence[Key]
    """what the episodes of each are seeded from"""
    groups: tuple[int, ...]
    """how many streams each has"""


@dataclass
class _Worker:
    """A worker and what is known of it."""

    number: int
    core: int | None
    """on which it stays, if on any"""
    streams: tuple[Assignment, ...]
    rows: dict[int, Int[np.ndarray, " n"]]
    """of each group in which it has some"""
    process: WorkerProcess
    in_hand: float
    """restarts that it may still have"""
    asked: set[int] = field(default_factory=set)
    """groups whose step has not been taken from it yet"""
    answered: set[int] = field(default_factory=set)
    """those of them that are done"""
    faulty: set[int] = field(default_factory=set)
    """groups in which episodes are cut, or will be with their next step"""


class Pool:
    """All streams of a run, from their first step on; closed by `close`."""

    def __init__(
        self,
        streams: StreamSources,
        options: PoolOptions,
        tell: Callable[..., None] = lambda event, **details: None,
        *,
        elapsed: Int[np.ndarray, " n"] | None = None,
        begun: Int[np.ndarray, " n"] | None = None,
    ):
        """Starts all workers and waits for their environments.

        Args:
            streams: what to run.
            options: how.
            tell: is told of every restart: an event's name, and details by name.
            elapsed: where the time limit's counter of each first episode starts; none: at 0.
            begun: how many episodes of each stream were begun before; they are not begun again.
        """
        self.spec, self.groups, self.options, self._tell = streams.spec, streams.groups, options, tell
        total = sum(streams.groups)
        if not total or min(streams.groups) < 1 or not total == len(streams.sources) == len(streams.keys):
            raise ValueError(
                f"streams: expected a source and a key for each stream of the groups {streams.groups}, at least one "
                f"stream in each; got {len(streams.sources)} sources and {len(streams.keys)} keys."
            )
        ends = np.cumsum(streams.groups)
        self._places = [slice(int(end) - size, int(end)) for end, size in zip(ends, self.groups, strict=True)]
        self._memory = SharedMemory(make_row_layout(streams.spec, total))
        self._rows = self._memory.rows
        self._parts = [self._rows.some(place) for place in self._places]
        self._rows.elapsed[:] = 0 if elapsed is None else elapsed
        self.shortened = self._rows.elapsed > 0
        """whose first episode has less than the whole time limit"""
        self._rows.episode[:] = 0 if begun is None else begun
        self._over = np.ones(total, bool)  # whose episode has ended, or none was begun
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
        """How many episodes of each stream were begun; a copy."""
        return self._rows.episode.copy()

    @property
    def processes(self) -> tuple[int, ...]:
        """Ids of the workers' processes."""
        return tuple(worker.process.pid for worker in self._workers)

    def send(self, group: int, actions: Shaped[np.ndarray, "n *action"] | None = None) -> None:
        """Has the streams of a group stepped; without actions, for the very first step of all."""
        if actions is not None:
            self._parts[group].action[...] = actions
        for worker in self._workers:
            if group in worker.rows:
                self._ask(worker, group)

    def receive(
        self, group: int, into: HostSteps, before: tuple[Any, ...] | None = None
    ) -> Bool[np.ndarray, " n"]:
        """Waits for the step that was sent for, and fills it in; says which episodes were cut by a fault.

        Args:
            group: which.
            into: arrays to fill.
            before: the observation of the step before; an episode that is cut by a fault ends with it.

        Raises:
            WorkerFailed: a worker had to be started again too often.
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
        """Ends all workers and gives the memory back; harmless when repeated."""
        processes = [worker.process for worker in self._workers]
        if self._spare is not None:
            self._spare.kill()
        for process in processes:
            process.close()
        deadline = time.monotonic() + CLOSING_SECONDS
        for process in processes:
            process.wait(deadline)
        for process in processes:
            process.kill()
        self._workers, self._spare = [], None
        self._memory.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- workers -----------------------------------------------------------------------------------------------------

    def _start(self, streams: StreamSources) -> None:
        sources = {id(source): packed(source) for source in streams.sources}
        shares = assign_rows(self.groups, count_workers(self.options.workers, sum(self.groups)))
        for number, (members, core) in enumerate(zip(shares, worker_cores(len(shares)), strict=True)):
            assigned = tuple(
                Assignment(sources[id(streams.sources[row])], streams.keys[row], row, group)
                for group, rows in members.items()
                for row in rows.tolist()
            )
            process = WorkerProcess(self._memory)
            in_hand = float(self.options.restarts)
            self._workers.append(_Worker(number, core, assigned, members, process, in_hand))
            process.begin(assigned, core)
        for worker in self._workers:
            try:
                worker.process.wait_until_ready(self.options.timeout)
            except Fault as fault:
                self._restart(worker, fault)

    def _ask(self, worker: _Worker, group: int) -> None:
        """Asks a worker to step a group, but for the episodes that it knows nothing of: those are cut here."""
        if worker.asked == worker.answered:  # it had nothing to do
            worker.process.heard = time.monotonic()
        worker.asked.add(group)
        if group in worker.faulty and self._cut_orphans(worker, group):
            worker.answered.add(group)
        else:
            worker.process.ask(group)

    def _cut_orphans(self, worker: _Worker, group: int) -> bool:
        """Cuts the episodes that were open in a process before; whether that is all there is to step."""
        rows = worker.rows[group]
        cut = self._orphan[rows] & ~self._over[rows]
        self._orphan[rows] = False
        self._cut[rows] = self._rows.skip[rows] = cut
        if not cut.any():
            worker.faulty.discard(group)
        return bool(cut.all())

    def _wait(self, worker: _Worker, group: int) -> None:
        """Until it has stepped the group, by whatever process."""
        while group not in worker.answered:
            try:
                done = worker.process.answer(self.options.timeout, lambda: self._episodes(worker))
            except Fault as fault:
                self._restart(worker, fault)
                continue
            worker.answered.add(done)
            if worker.in_hand < self.options.restarts:
                earned = np.count_nonzero(~self._cut[worker.rows[done]]) / GIVEN_BACK
                worker.in_hand = min(worker.in_hand + earned, float(self.options.restarts))
        worker.asked.discard(group)
        worker.answered.discard(group)

    def _episodes(self, worker: _Worker) -> int:
        """How many its streams have begun."""
        return sum(int(self._rows.episode[rows].sum()) for rows in worker.rows.values())

    def _restart(self, worker: _Worker, fault: Fault) -> None:
        """Another process for the worker, which has the steps under way to do."""
        while True:
            self._charge(worker, fault)
            worker.process.kill()
            worker.process = self._spare or WorkerProcess(self._memory)
            self._spare = None
            worker.process.begin(worker.streams, worker.core)
            self._spare = WorkerProcess(self._memory)  # to be there for the next time
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

    def _charge(self, worker: _Worker, fault: Fault) -> None:
        details = {"worker": worker.number, "why": fault.why, "streams": len(worker.streams)}
        if worker.in_hand < 1:
            self._tell("worker failed", **details, trace=fault.trace)
            raise WorkerFailed(
                f"env: a worker of {self.spec.name} {fault.why}, and may not be started again more than "
                f"{self.options.restarts} times in a row (--worker-restarts)."
                + (f" Its own traceback:\n{fault.trace.rstrip()}" if fault.trace else "")
            )
        worker.in_hand -= 1
        self.restarts += 1
        self._tell("worker restarted", **details, trace=fault.trace)
