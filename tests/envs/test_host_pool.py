"""Streams in worker processes give what environments in this process give, step by step; and they clean up."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from pretend_envs import Pretend, spec_of  # type: ignore[missing-import]

from derex.envs.host import (
    EpisodeCounter,
    HostSteps,
    Pool,
    PoolOptions,
    StreamSources,
    WorkerFailed,
    allocate_steps,
)
from derex.envs.host.memory import SharedMemory, make_row_layout
from derex.envs.host.pool import assign_rows, count_workers, worker_cores
from derex.envs.host.worker import HostStream, episode_seed, pickle_source
from derex.types import EnvironmentSpec

KINDS: dict[str, dict[str, Any]] = {
    "terminated": {"length": 5},
    "truncated by itself": {"length": 4, "cut": True},
    "cut at the horizon": {"length": 100, "horizon": 6},
}


def single_stream(
    env: Pretend, key: tuple[int, ...], actions: Any, elapsed: int = 0
) -> list[tuple[Any, ...]]:
    """What a stream has to give: observation, reward, discount, truncated, first."""
    steps, number, last, time_limit = [], 0, True, 0
    for action in [np.zeros(()), *actions]:
        if last:
            seen = env.begin(episode_seed(key, number))
            time_limit, number, elapsed, last = elapsed, number + 1, 0, False
            steps.append((seen, 0.0, 1.0, False, True))
            continue
        seen, reward, terminated, truncated = env.act(np.clip(action, -1, 1) if env.box else action)
        time_limit += 1
        truncated = not terminated and (truncated or time_limit >= env.horizon)
        last = terminated or truncated
        steps.append((seen, reward, float(not terminated), truncated, False))
    return steps


def walked(pool: Pool, actions: Any) -> tuple[list[HostSteps], list[Any]]:
    """All steps of all groups side by side, and which were cut by faults."""
    steps, cuts = [], []
    before: list[Any] = [None] * len(pool.groups)
    ends = np.cumsum(pool.groups)
    for row in [None, *actions]:
        for g, end in enumerate(ends):
            pool.send(g, None if row is None else row[end - pool.groups[g] : end])
        parts, cut = [], []
        for g, size in enumerate(pool.groups):
            parts.append(allocate_steps(pool.spec, size))
            cut.append(pool.receive(g, parts[-1], before[g]))
            before[g] = parts[-1].observation
        steps.append(jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts))
        cuts.append(np.concatenate(cut))
    return steps, cuts


def streams_of(source: Callable[[], Any], groups: tuple[int, ...], spec: EnvironmentSpec) -> StreamSources:
    n = sum(groups)
    return StreamSources(spec, [source] * n, [(7, b) for b in range(n)], groups)


def assert_same(steps: list[HostSteps], row: int, expected: list[tuple[Any, ...]]) -> None:
    for step, (seen, *others) in zip(steps, expected, strict=True):
        for ours, theirs in zip(step.observation, jax.tree.leaves(seen), strict=True):
            np.testing.assert_array_equal(ours[row], theirs)
        came = step.reward[row], step.discount[row], step.truncated[row], step.first[row]
        assert came == pytest.approx(tuple(others))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_a_single_environment_with_resets(kind: str) -> None:
    env = Pretend(**KINDS[kind])
    memory = SharedMemory(make_row_layout(env.spec, 3))
    memory.rows.elapsed[1] = 2
    stream = HostStream(env, (7, 1), 1, memory.rows)
    actions = np.random.default_rng(0).integers(0, 3, 30)
    expected = single_stream(Pretend(**KINDS[kind]), (7, 1), actions, elapsed=2)
    firsts, rows = 0, memory.rows
    for action, (seen, reward, discount, truncated, first) in zip([0, *actions], expected, strict=True):
        memory.rows.action[1] = action
        stream.step()
        for ours, theirs in zip(rows.observation, jax.tree.leaves(seen), strict=True):
            np.testing.assert_array_equal(ours[1], theirs)
            assert not ours[[0, 2]].any()
        came = rows.reward[1], 1 - rows.terminated[1], rows.truncated[1], rows.first[1]
        assert came == (reward, discount, truncated, first)
        firsts += first
    assert rows.episode.tolist() == [0, firsts, 0]
    memory.close()


@pytest.mark.parametrize(("workers", "groups"), [(1, (3, 2)), (3, (3, 2)), (2, (4,))])
def test_streams_in_workers_are_single_environments(workers: int, groups: tuple[int, ...]) -> None:
    """Whoever steps them, and with whom; with vectors as actions, that are clipped."""
    n = sum(groups)
    actions = np.random.default_rng(1).normal(size=(40, n, 2)).astype(np.float32)
    source = partial(Pretend, length=9, horizon=7, box=True)
    elapsed = np.arange(n) % 7
    with Pool(streams_of(source, groups, source().spec), PoolOptions(workers), elapsed=elapsed) as pool:
        steps, cuts = walked(pool, actions)
        assert len(pool.processes) == workers
        assert pool.restarts == 0
    assert not np.any(cuts)
    for row in range(n):
        assert_same(steps, row, single_stream(source(), (7, row), actions[:, row], int(elapsed[row])))


def test_no_episode_is_begun_twice_when_streams_go_on() -> None:
    source = partial(Pretend, length=3)
    with Pool(streams_of(source, (2,), source().spec), PoolOptions(1), begun=np.array([5, 0])) as pool:
        steps, _ = walked(pool, np.zeros((8, 2), np.int32))
        np.testing.assert_array_equal(pool.begun, [8, 3])
    seeds = np.array([step.observation[0][:, 0] for step in steps if step.first.all()])
    expected = [
        [episode_seed((7, row), number) / 2**31 for row, number in ((0, 5 + i), (1, i))] for i in range(3)
    ]
    np.testing.assert_array_equal(seeds, np.array(expected, np.float32))


def test_seeds_of_episodes_differ_and_stay() -> None:
    assert episode_seed((0, 1, 2), 3) == 1949135841
    seeds = {episode_seed((0, seed, b), e) for seed in range(5) for b in range(20) for e in range(20)}
    assert len(seeds) > 1990
    assert all(0 <= seed < 2**31 for seed in seeds)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def is_running(process: int) -> bool:
    """A process that has ended but was not waited for does not run."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at /proc")
def test_signals_are_left_to_the_parent_and_closing_leaves_nothing_behind() -> None:
    before, shared = open_files(), set(Path("/dev/shm").iterdir())
    source = partial(Pretend, length=3)
    pool = Pool(streams_of(source, (2,), source().spec), PoolOptions(2))
    processes = pool.processes
    for process in processes:
        os.kill(process, signal.SIGINT)
        os.kill(process, signal.SIGTERM)
        assert os.getpgid(process) != os.getpgid(0)
    walked(pool, np.zeros((9, 2), np.int32))
    assert pool.restarts == 0
    pool.close()
    pool.close()
    del pool
    assert not any(is_running(process) for process in processes)
    assert open_files() == before
    assert set(Path("/dev/shm").iterdir()) <= shared


def children_of(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


PARENT = """
import sys
sys.path.insert(0, {tests!r})
from functools import partial
from pretend_envs import Pretend
from derex.envs.host import Pool, PoolOptions, StreamSources
source = partial(Pretend, fault="hang", at=0, engine=True)
pool = Pool(StreamSources(Pretend().spec, [source] * 2, [(0, 0), (0, 1)], (2,)), PoolOptions(2))
pool.send(0)
pool.send(0)  # now both hang
print(*pool.processes, flush=True)
import signal; signal.pause()
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere a busy worker ends when it listens"
)
def test_workers_die_with_a_killed_parent_even_while_they_hang() -> None:
    """And so do the processes that their environments have started. No script has to guard its main part."""
    code = PARENT.format(tests=str(Path(__file__).parent))
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    ) as parent:
        assert parent.stdout is not None
        processes = [int(word) for word in parent.stdout.readline().split()]
        assert len(processes) == 2
        engines = [child for process in processes for child in children_of(process)]
        assert len(engines) == 4  # with the shells that wait for the parent's end
        processes += engines
        assert all(is_running(process) for process in processes)
        parent.kill()
    deadline = time.monotonic() + 60
    while any(is_running(process) for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "workers: expected at least 1.*got 0"),
        ({"timeout": float("inf")}, "worker_timeout: expected seconds"),
        ({"timeout": 0.0}, "worker_timeout: expected seconds.*1000000.*got 0"),
        ({"timeout": float("nan")}, "worker_timeout: expected seconds"),
        ({"restarts": -1}, "worker_restarts: expected 0 or more, got -1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PoolOptions(**options)


def test_streams_that_do_not_fit_their_groups_are_refused() -> None:
    streams = streams_of(Pretend, (2, 2), spec_of())
    with pytest.raises(ValueError, match=r"a source and a key for each stream of the groups \(2, 3\)"):
        Pool(streams._replace(groups=(2, 3)), PoolOptions(1))
    with pytest.raises(ValueError, match="at least one stream in each"):
        Pool(streams._replace(groups=(4, 0)), PoolOptions(1))


def test_a_source_that_cannot_travel_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"source: .*lambda.* cannot be sent to another process.*functools.partial"
    ):
        pickle_source(lambda: Pretend())


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (partial(Pretend, wrong=True), "observation: expected float32 of shape .* got float64"),
        (partial(Pretend, length="x"), "TypeError|ValueError"),
    ],
)
def test_what_a_worker_says_is_told(source: Any, says: str) -> None:
    """As a mistake in an environment, not as a riddle."""
    events: list[Any] = []
    options = PoolOptions(1, restarts=0)
    with (
        pytest.raises(WorkerFailed, match=says) as caught,
        Pool(
            streams_of(source, (1,), spec_of()),
            options,
            lambda event, **details: events.append((event, details)),
        ) as pool,
    ):
        walked(pool, np.zeros((3, 1), np.int32))
    assert "Traceback (most recent call last)" in str(caught.value)
    assert "--worker-restarts" in str(caught.value)
    assert [event for event, _ in events] == ["worker failed"]


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("groups", [(1,), (4,), (2, 2), (5, 4), (8, 8), (1, 1, 1)])
def test_streams_are_shared_out_evenly(groups: tuple[int, ...], workers: int) -> None:
    workers = min(workers, sum(groups))
    members = assign_rows(groups, workers)
    assert len(members) == workers
    rows = np.sort(np.concatenate([rows for each in members for rows in each.values()]))
    np.testing.assert_array_equal(rows, np.arange(sum(groups)))
    for group, size in enumerate(groups):
        held = [len(each[group]) for each in members if group in each]
        assert max(held) - min(held) <= 1
        assert len(held) == min(workers, size)


@pytest.mark.parametrize(
    ("cores", "workers", "expected"),
    [
        ({0, 1}, 2, [0, 1]),
        ({3, 5}, 4, [3, 5, 3, 5]),
        ({0, 1}, 3, [None] * 3),  # one core would have more to do than the other
        ({0, 1, 2, 3}, 2, [None] * 2),
    ],
)
def test_workers_stay_on_a_core_each_where_all_cores_have_equally_many(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], workers: int, expected: list[int | None]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores, raising=False)
    assert worker_cores(workers) == expected
    assert count_workers(None, 100) == len(cores)
    assert count_workers(workers, 1) == 1


def test_cores_that_the_system_does_not_tell_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert worker_cores(2) == [None, None]
    assert count_workers(None, 100) == min(os.cpu_count() or 1, 100)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cores are chosen on Linux only")
def test_workers_are_where_they_should_be_and_one_whose_core_is_gone_is_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is started again stays on the core of the one before."""
    ours, gone = os.sched_getaffinity(0), 1023
    core = max(ours)
    monkeypatch.setattr("derex.envs.host.pool.worker_cores", lambda workers: [core, gone])
    with Pool(streams_of(Pretend, (2,), spec_of()), PoolOptions(2)) as pool:
        walked(pool, [])
        assert [os.sched_getaffinity(process) for process in pool.processes] == [{core}, ours]
        os.kill(pool.processes[0], signal.SIGKILL)
        before = allocate_steps(pool.spec, 2)
        pool.send(0, np.zeros(2, np.int32))
        pool.receive(0, allocate_steps(pool.spec, 2), before.observation)
        assert pool.restarts == 1
        assert os.sched_getaffinity(pool.processes[0]) == {core}


def test_episodes_are_counted_as_by_hand() -> None:
    """The shortened first one and the one that a fault cut are not."""
    counter = EpisodeCounter(np.array([True, False]), success_return=3.0)
    first, last, cut = (np.zeros((7, 2), bool) for _ in range(3))
    first[[0, 3], 0] = first[[0, 3, 5], 1] = True
    last[2] = last[4, 1] = last[6] = True
    cut[4, 1] = True
    for t in range(7):
        counter.add(
            HostSteps(
                (), np.full(2, 1.0 - first[t], np.float32), 1.0 - last[t].astype(np.float32), cut[t], first[t]
            ),
            cut[t],
        )
    sums = counter.take()
    np.testing.assert_array_equal(sums.episodes, [1, 2])
    np.testing.assert_array_equal(sums.lengths, [3, 2 + 1])
    np.testing.assert_array_equal(sums.returns, [3.0, 3.0])
    np.testing.assert_array_equal(sums.successes, [1, 0])
    assert not np.any(counter.take().episodes)
