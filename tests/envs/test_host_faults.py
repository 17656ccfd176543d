"""Workers that die, hang or raise: their episodes end where they were last seen, the rest goes on as if nothing was."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledger import Ledger, written  # type: ignore[missing-import]
from pretend_envs import FAULTS, Pretend, spec_of  # type: ignore[missing-import]
from test_host_pool import assert_same, single_stream, walked  # type: ignore[missing-import]

from derex.envs.host import (
    EpisodeCounter,
    HostSteps,
    Pool,
    PoolOptions,
    StreamSources,
    WorkerFailed,
    allocate_steps,
)
from derex.envs.host.worker import episode_seed

WHY = {
    "raise": "raised RuntimeError: the dragon is asleep",
    "hang-up": "raised EOFError: the engine has hung up",
    "kill": "was killed by SIGKILL",
    "exit": "ended with exit code 3",
    "hang": "gave no answer within 2 s (--worker-timeout)",
}
TRACES = {
    "raise": "the dragon is asleep",
    "hang-up": "hung up",
    "kill": "",
    "exit": "",
    "hang": "in wait_for_ever",
}


def test_every_kind_of_fault_cuts_one_episode_and_no_more(tmp_path: Path) -> None:
    """Each in a worker of its own, once, at the fourth step of the first episode; the other streams are healthy.

    One worker of two streams fails while its other stream is between two episodes.
    """
    n = len(FAULTS)
    sources: list[Any] = [
        partial(Pretend, length=6, fault=fault, at=3, only_first=True, log=str(tmp_path / fault))
        for fault in FAULTS
    ]
    sources += [partial(Pretend, length=6)] * n
    keys = [(7, b) for b in range(2 * n)]
    told: list[Any] = []
    actions = np.random.default_rng(0).integers(0, 3, (20, 2 * n)).astype(np.int32)
    # Streams b and b + n share a worker, and are in different groups.
    with Pool(
        StreamSources(spec_of(), sources, keys, (n, n)),
        PoolOptions(n, timeout=2.0),
        lambda event, **details: told.append((event, details)),
    ) as pool:
        steps, cuts = walked(pool, actions)
        assert pool.restarts == n
        begun = pool.begun
    assert sorted(details["why"] for _, details in told) == sorted(WHY.values())
    assert {event for event, _ in told} == {"worker restarted"}
    for fault, why in WHY.items():
        (trace,) = [details["trace"] for _, details in told if details["why"] == why]
        assert TRACES[fault] in trace
    for row in range(2 * n):
        number = 0 if row < n else next(iter(np.flatnonzero([cut[row] for cut in cuts])), None)
        (at,) = np.flatnonzero([cut[row] for cut in cuts])
        assert at == 4 if row < n else at in (4, 5), number
        before, here, after = steps[at - 1], steps[at], steps[at + 1]
        for earlier, now in zip(before.observation, here.observation, strict=True):
            np.testing.assert_array_equal(now[row], earlier[row])
        assert (here.reward[row], here.discount[row], here.truncated[row], here.first[row]) == (
            0,
            1,
            True,
            False,
        )
        assert after.first[row]
        expected = single_stream(Pretend(length=6), (7, row), actions[: at - 1, row])
        assert_same(steps[:at], row, expected)
        numbers = after.observation[0][row]
        np.testing.assert_array_equal(numbers[0], np.float32(episode_seed((7, row), 1) / 2**31))
        later = [step.first[row] for step in steps[at + 1 :]]
        assert np.flatnonzero(later).tolist() == list(range(0, len(later), 7))
        assert begun[row] == 1 + len(range(0, len(later), 7))


def test_a_stream_between_two_episodes_is_not_cut(tmp_path: Path) -> None:
    """Its last step was delivered; after the restart comes the first of the next, as always."""
    log = str(tmp_path / "log")
    sources: list[Any] = [
        partial(Pretend, length=9, fault="exit", at=3, only_first=True, log=log),
        partial(Pretend, length=3),
    ]
    with Pool(StreamSources(spec_of(), sources, [(7, 0), (7, 1)], (2,)), PoolOptions(1)) as pool:
        steps, cuts = walked(pool, np.ones((8, 2), np.int32))
        assert pool.restarts == 1
    assert np.flatnonzero([cut[0] for cut in cuts]).tolist() == [4]
    assert not any(cut[1] for cut in cuts)
    assert [bool(step.first[1]) for step in steps] == [
        True,
        False,
        False,
        False,
        True,
        False,
        False,
        False,
        True,
    ]


def test_past_the_limit_it_stops_with_the_workers_own_traceback() -> None:
    told: list[str] = []
    source = partial(Pretend, fault="raise", at=1)
    with (
        pytest.raises(
            WorkerFailed, match=r"(?s)2 restarts in a row.*in fail.*RuntimeError: the dragon is asleep"
        ),
        Pool(
            StreamSources(spec_of(), [source], [(0,)], (1,)),
            PoolOptions(1, restarts=2),
            lambda event, **_: told.append(event),
        ) as pool,
    ):
        walked(pool, np.zeros((60, 1), np.int32))
    assert told == ["worker restarted", "worker restarted", "worker failed"]


def test_many_slow_beginnings_are_no_hanging() -> None:
    """Four of 0.6 s in one step, and a limit of 1 s."""
    sources = [partial(Pretend, slow=0.6)] * 4
    with Pool(StreamSources(spec_of(), sources, [(i,) for i in range(4)], (4,)), PoolOptions(1, 1.0)) as pool:
        walked(pool, np.zeros((3, 4), np.int32))
        assert pool.restarts == 0


def test_steps_give_restarts_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """One allowed, three needed, far enough apart."""
    monkeypatch.setattr("derex.envs.host.pool.GIVEN_BACK", 5)
    source = partial(Pretend, length=50, fault="exit", at=8)
    with Pool(StreamSources(spec_of(), [source], [(0,)], (1,)), PoolOptions(1, restarts=1)) as pool:
        walked(pool, np.zeros((30, 1), np.int32))
        assert pool.restarts == 3


@pytest.mark.parametrize("steps", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_under_constant_crashes_no_episode_is_counted_twice(steps: int, tmp_path: Path) -> None:
    """p = 0.005 a step; environments write down what they begin and finish, the parent what it sees: every episode is
    counted once, cut once, still open, or was begun by a worker that died before anybody saw it begin."""
    log, n = tmp_path / "episodes", 8
    sources: list[Any] = [
        partial(Pretend, length=11 + b, fault=("kill", "raise")[b % 2], chance=0.005, log=str(log))
        for b in range(n)
    ]
    groups = (4, 4)
    told: list[str] = []
    rng = np.random.default_rng(0)
    counters = [EpisodeCounter(np.zeros(size, bool), 2.5) for size in groups]
    ledger = Ledger([(3, b) for b in range(n)])

    def note(group: int, step: HostSteps, cut: Any) -> None:
        counters[group].add(step, cut)
        ledger.add(4 * group, step, cut)

    with Pool(
        StreamSources(spec_of(), sources, [(3, b) for b in range(n)], groups),
        PoolOptions(2),
        lambda event, **_: told.append(event),
    ) as pool:
        now = [allocate_steps(spec_of(), size) for size in groups]
        for g in range(2):
            pool.send(g)
            note(g, now[g], pool.receive(g, now[g]))
        for _ in range(steps // n):
            for g in range(2):
                pool.send(g, rng.integers(0, 3, groups[g]).astype(np.int32))
            for g in range(2):
                was_last, here = now[g].last, allocate_steps(spec_of(), groups[g])
                gone = pool.receive(g, here, now[g].observation)
                np.testing.assert_array_equal(here.first, was_last)
                assert not np.any(gone & (here.reward != 0))
                note(g, here, gone)
                now[g] = here
        begun = int(pool.begun.sum())
        restarts = pool.restarts
    assert restarts == len(told) > steps / 500
    ended = {line["seed"]: line for line in written(log, "ended")}
    began = [line["seed"] for line in written(log, "began")]
    assert len(began) == len(set(began)) == begun
    assert len(ended) == len(written(log, "ended"))
    counted, cut, still_open = (
        set(ledger.counted),
        set(ledger.cut),
        {seed for seed in ledger.open if seed >= 0},
    )
    seen = counted | cut | still_open
    assert len(seen) == len(ledger.counted) + len(ledger.cut) + len(still_open)
    assert seen <= set(began)
    # A worker may die with a last step that nobody has read yet: that episode is cut, and counted nowhere.
    assert counted <= set(ended) <= counted | cut
    # Or between the beginning of an episode and its answer: that one is followed by the next as if it had not been.
    unseen = set(began) - seen
    assert not unseen & set(ended)
    assert len(unseen) < restarts
    assert len(cut) <= restarts * n
    sums = [counter.take() for counter in counters]
    assert sum(each.episodes.sum() for each in sums) == len(counted)
    assert sum(each.returns.sum() for each in sums) == sum(ended[seed]["return"] for seed in counted)
    assert sum(each.lengths.sum() for each in sums) == sum(ended[seed]["length"] for seed in counted)
