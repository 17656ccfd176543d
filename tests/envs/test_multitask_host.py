"""Many host tasks as one, JAX ones among them, in workers or by libraries that step many at once."""

import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from derex.envs import registry
from derex.envs.host import (
    EpisodeCounter,
    JoinedPool,
    Pool,
    PoolOptions,
    allocate_steps,
    make_host_tasks,
    open_streams,
)
from derex.envs.host.tasks import JaxTask
from derex.envs.interface import DrawnHostEnvironment, HostEnvironment
from derex.envs.registry import expand_tasks, make
from derex.types import Amount, Box, Discrete

OPTIONS = PoolOptions(workers=2)
MIXED = ("fakes:small", "rooms-chain-1", "fakes:large")


@pytest.fixture(scope="module", autouse=True)
def fakes() -> Iterator[None]:
    """Both suites, for this process and its workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        for suite, module in (("fakes", "pretend_tasks"), ("fakes-many", "pretend_many_tasks")):
            patch.setitem(registry.SUITES, suite, registry.Suite(module, "", "", "", True))
        yield
    sys.modules.pop("pretend_many_tasks", None)


def walked(pool: Any, steps: int) -> list[Any]:
    """All steps of all groups, with action 1 throughout; each a `HostSteps` of all streams, and a count of episodes."""
    groups = range(len(pool.groups))
    seen: list[Any] = []
    before: list[Any] = [None] * len(groups)
    for t in range(steps):
        parts = []
        for g in groups:
            pool.send(g, None if t == 0 else np.ones(pool.groups[g], np.int32))
        for g in groups:
            into = allocate_steps(pool.spec, pool.groups[g])
            assert not pool.receive(g, into, before[g]).any()
            before[g] = into.observation
            parts.append(into)
        seen.append(jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts))
    return seen


def keys(n: int) -> list[tuple[int, ...]]:
    return [(0, 5, b) for b in range(n)]


def test_a_mixed_list_is_one_environment() -> None:
    task = make_host_tasks("mixed", MIXED)
    assert [each.name for each in task.tasks] == list(MIXED)
    assert [each.spec.name for each in task.tasks] == list(MIXED)
    assert {name: part.shape for name, part in task.spec.observation.items()} == {
        "numbers": (4,),
        "observation": make("rooms-chain-1").spec.observation.shape,
        "picture": (2, 2, 1),
    }
    assert task.spec.n_states == 0
    assert all(each.spec.observation == task.spec.observation for each in task.tasks)
    assert [each.spec.horizon for each in task.tasks] == [20, make("rooms-chain-1").spec.horizon, 20]
    pickle.dumps([each.source for each in task.tasks])


def test_streams_of_a_mixed_list_show_their_own_parts_and_nothing_else() -> None:
    task = make_host_tasks("mixed", MIXED)
    pool = open_streams(task, keys(7), (4, 3), OPTIONS)
    assert isinstance(pool, Pool)
    try:
        steps = walked(pool, 8)
    finally:
        pool.close()
    numbers, seen, picture = (
        np.stack([step.observation[part] for step in steps]) for part in range(3)
    )  # in the order of their names
    np.testing.assert_array_equal(numbers[:, 0::3, :2].max(axis=(1, 2)), [3, 2, 1, 0, 3, 2, 1, 0])
    np.testing.assert_array_equal(numbers[:, 2::3].max(axis=(1, 2)), [5, 4, 3, 2, 1, 0, 5, 4])
    assert not numbers[:, 0::3, 2:].any()
    assert not numbers[:, 1::3].any()
    assert np.all(picture[:, 2::3] == 9)
    assert not picture[:, 0::3].any()
    assert not picture[:, 1::3].any()
    assert np.all(seen[:, 1::3].sum(axis=-1) == 2)  # the row and the column where it is
    assert not seen[:, [0, 2, 3, 5, 6]].any()


def test_a_slow_task_has_as_many_steps_as_a_quick_one() -> None:
    """All streams take every step together; episodes are counted for each by its own threshold."""
    names = ("fakes:small", "fakes:slow", "fakes:large")
    task = make_host_tasks("x", names)
    pool = open_streams(task, keys(6), (6,), OPTIONS)
    counter = EpisodeCounter(np.zeros(6, bool), np.array([7, np.inf, 7, 7, np.inf, 7]))
    try:
        steps = walked(pool, 61)
        for step in steps:
            counter.add(step, np.zeros(6, bool))
    finally:
        pool.close()
    sums = counter.take()
    np.testing.assert_array_equal(
        sums.episodes, [15, 12, 10] * 2
    )  # of 4, 5 and 6 steps with their first ones
    np.testing.assert_array_equal(sums.lengths / sums.episodes, [3, 4, 5] * 2)
    np.testing.assert_array_equal(sums.returns / sums.episodes, [3, 2, 10] * 2)
    np.testing.assert_array_equal(sums.successes, [0, 0, 10] * 2)


def test_libraries_that_step_many_are_joined_with_workers() -> None:
    """The same steps as with workers alone, wherever a group holds all tasks."""
    plain = make_host_tasks("x", ("fakes:small", "fakes:slow", "fakes:large"))
    quick = make_host_tasks("x", ("fakes-many:small", "fakes:slow", "fakes-many:large"))
    seen = []
    for task, kind in ((plain, Pool), (quick, JoinedPool)):
        pool = open_streams(task, keys(7), (4, 3), OPTIONS, begun=np.full(7, 2))
        assert isinstance(pool, kind)
        try:
            seen.append(walked(pool, 13))
            np.testing.assert_array_equal(pool.begun, [6, 5, 5, 6, 5, 5, 6])
            assert pool.restarts == 0
            assert not pool.shortened.any()
        finally:
            pool.close()
    jax.tree.map(np.testing.assert_array_equal, *seen)


def test_where_a_group_lacks_a_task_all_are_in_workers() -> None:
    task = make_host_tasks("x", ("fakes-many:small", "fakes:large"))
    pool = open_streams(task, keys(2), (1, 1), OPTIONS)
    try:
        assert isinstance(pool, Pool)
        assert len(walked(pool, 3)) == 3
    finally:
        pool.close()


def test_streams_are_shared_out_by_their_numbers() -> None:
    """With two seeds in a group, stream b of each plays the same task; each first episode starts within its limit."""
    task = make_host_tasks("x", ("fakes:small", "fakes:large"))
    numbers = [0, 1, 0, 1, 2, 3, 2, 3]
    pool = open_streams(task, keys(8), (4, 4), OPTIONS, numbers=numbers)
    try:
        first = walked(pool, 1)[0]
    finally:
        pool.close()
    np.testing.assert_array_equal(first.observation[0][:, 0], [3, 5] * 4)
    assert first.first.all()


def test_first_episodes_are_staggered_within_their_own_time_limits() -> None:
    task = make_host_tasks("x", ("fakes:small", "rooms-chain-1"))
    pool = open_streams(task, keys(8), (8,), OPTIONS, stagger=True)
    pool.close()
    assert pool.shortened.any()


def test_a_jax_environment_is_a_host_environment() -> None:
    """The same seed gives the same episode, and it is one of the environment's."""
    one, other = JaxTask("rooms-chain-1"), JaxTask("rooms-chain-1")
    assert isinstance(one, HostEnvironment)
    assert isinstance(one, DrawnHostEnvironment)
    episodes = []
    for task in (one, other):
        seen = [task.begin(7)]
        for action in (3, 3, 1, 0):
            step = task.act(np.asarray(action, np.int32))
            assert isinstance(step.observation, np.ndarray)
            assert type(step.terminated) is bool
            seen.append(step.observation)
        episodes.append(np.stack(seen))
    np.testing.assert_array_equal(episodes[0], episodes[1])
    env = make("rooms-chain-1")
    _, expected = env.reset(jax.random.fold_in(jax.random.key(7), 0))
    np.testing.assert_array_equal(episodes[0][0], expected)
    assert one.picture().dtype == np.uint8


def test_the_previous_reward_is_seen_in_all() -> None:
    task = make_host_tasks("x", ("fakes-many:small", "fakes:large"), previous_reward=True)
    assert task.spec.observation["reward"] == Amount()
    pool = open_streams(task, keys(2), (2,), OPTIONS)
    try:
        steps = walked(pool, 3)
    finally:
        pool.close()
    np.testing.assert_array_equal([step.observation[-1] for step in steps], [[0, 0], [1, 2], [1, 2]])


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no environment 'catc'"):
        make_host_tasks("x", ("fakes:small", "catc"))
    with pytest.raises(ValueError, match=r"Discrete\(n=4\) in fakes:small; Discrete\(n=3\) in catch"):
        make_host_tasks("x", ("fakes:small", "catch"))


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A stand-in of DeepMind Lab, for workers too."""
    monkeypatch.syspath_prepend(Path(__file__).with_name("standins"))
    monkeypatch.setenv("DEREX_DMLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DEREX_DMLAB_DATASET", str(tmp_path))
    yield
    sys.modules.pop("deepmind_lab", None)


def test_dmlab30_is_one_environment_of_thirty_levels(lab: None) -> None:
    task = make_host_tasks("dmlab30", expand_tasks("dmlab30"))
    assert task.spec.action == Discrete(15)
    assert {name: part.shape for name, part in task.spec.observation.items()} == {
        "image": (72, 96, 3),
        "instruction": (32,),
    }
    assert len(task.tasks) == 30
    with pytest.raises(ValueError, match="at least one for each of the 30 tasks, got 29"):
        open_streams(task, keys(29), (29,), OPTIONS)
    pool = open_streams(task, keys(30), (30,), OPTIONS)
    try:
        steps = walked(pool, 3)
    finally:
        pool.close()
    assert steps[0].first.all()
    assert steps[2].observation[0].shape == (30, 72, 96, 3)


def test_babyai_8_is_one_environment() -> None:
    pytest.importorskip("minigrid")
    task = make_host_tasks("babyai-8", expand_tasks("babyai-8"))
    assert (task.spec.action, task.spec.success_return) == (Discrete(7), 0.05)
    assert list(task.spec.observation) == ["direction", "image", "mission"]


def test_hard8_is_one_environment_of_eight_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one server, named behind the @."""
    pytest.importorskip("dm_env_rpc")
    monkeypatch.syspath_prepend(Path(__file__).with_name("standins"))
    server = importlib.import_module("hard8_server").Server()
    try:
        task = make_host_tasks("hard8", expand_tasks(f"hard8@{server.address}"))
        assert isinstance(task.spec.action, Box)
        assert task.spec.action.size == 9
        pool = open_streams(task, keys(8), (8,), OPTIONS)
        try:
            pool.send(0)
            first = allocate_steps(pool.spec, 8)
            assert not pool.receive(0, first).any()
            pool.send(0, np.zeros((8, 9), np.float32))
            assert not pool.receive(0, allocate_steps(pool.spec, 8), first.observation).any()
        finally:
            pool.close()
    finally:
        server.stop()
    assert first.first.all()
