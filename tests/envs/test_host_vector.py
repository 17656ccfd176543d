"""Vector environments in all three modes of resetting, step by step against single environments."""

import threading
from concurrent import futures
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from derex.envs.host import VectorPool, VectorStreams, WorkerFailed, allocate_steps
from derex.envs.host.worker import episode_seed
from derex.types import Discrete, EnvironmentSpec, TimeStep

N, STEPS = 3, 120
KEYS: list[tuple[int, ...]] = [(5, b) for b in range(N)]
LIMIT = 17  # of gymnasium itself


def make_one() -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=LIMIT)


def spec_of(horizon: int) -> EnvironmentSpec:
    return EnvironmentSpec("cart", jax.ShapeDtypeStruct((4,), np.float32), Discrete(2), horizon)


def actions_of(seed: int = 0) -> np.ndarray:
    """Some streams fall soon, others last to the limit."""
    rng = np.random.default_rng(seed)
    balanced = np.arange(STEPS) % 2
    return np.stack([balanced, rng.integers(0, 2, STEPS), np.ones(STEPS, int)], axis=1)


def single(key: tuple[int, ...], actions: np.ndarray, seeded: bool, horizon: int) -> list[tuple[Any, ...]]:
    """Observation, reward, discount, truncated and first of every step of one environment."""
    env, steps, number, last, taken = make_one(), [], 0, True, 0
    cut_by_us = False
    for action in [0, *actions]:
        if last:
            told = seeded or number == 0 or cut_by_us
            if cut_by_us:
                env.step(action)  # a vector environment cannot let it wait
            seen, _ = env.reset(seed=episode_seed(key, number) if told else None)
            number, taken, last, cut_by_us = number + 1, 0, False, False
            steps.append((seen, 0.0, 1.0, False, True))
            continue
        seen, reward, terminated, truncated, _ = env.step(int(action))
        taken += 1
        cut_by_us = not (terminated or truncated) and taken >= horizon
        last = terminated or truncated or cut_by_us
        steps.append((seen, float(reward), float(not terminated), not terminated and last, False))
    env.close()
    return steps


def assert_same(steps: list[TimeStep], row: int, expected: list[tuple[Any, ...]]) -> None:
    for step, (seen, reward, discount, truncated, first) in zip(steps, expected, strict=True):
        np.testing.assert_array_equal(step.observation[row], seen)
        came = step.reward[row], step.discount[row], step.truncated[row], step.first[row]
        assert came == (reward, discount, truncated, first)


@pytest.mark.parametrize("horizon", [500, 12])
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_streams_are_single_environments(mode: AutoresetMode, horizon: int) -> None:
    """Ended by the task, by gymnasium's limit, and by ours, which is lower the second time."""
    vector = SyncVectorEnv([make_one] * N, autoreset_mode=mode)
    streams = VectorStreams(vector, spec_of(horizon), KEYS)
    actions = actions_of()
    steps = [streams.begin(), *(streams.step(row) for row in actions)]
    streams.close()
    ends = np.array([[step.discount == 0, step.truncated] for step in steps])
    assert ends.any(axis=(0, 2)).all()  # both kinds are there
    for row in range(N):
        seeded = mode != AutoresetMode.NEXT_STEP
        assert_same(steps, row, single(KEYS[row], actions[:, row], seeded, horizon))
    firsts = np.sum([step.first for step in steps], axis=0)
    np.testing.assert_array_equal(streams.begun, firsts)


@pytest.mark.slow
def test_several_processes_of_gymnasium_give_the_same() -> None:
    """Never forked: JAX runs in this one."""
    steps, mode = [], AutoresetMode.SAME_STEP
    for vector in (
        SyncVectorEnv([make_one] * N, autoreset_mode=mode),
        AsyncVectorEnv([make_one] * N, autoreset_mode=mode, context="spawn"),
    ):
        streams = VectorStreams(vector, spec_of(500), KEYS)
        steps.append([streams.begin(), *(streams.step(row) for row in actions_of()[:40])])
        streams.close()
    for ours, theirs in zip(*steps, strict=True):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def with_spec(n: int, seed: int) -> Any:
    vector: Any = SyncVectorEnv([make_one] * n, autoreset_mode=AutoresetMode.SAME_STEP)
    vector.spec = spec_of(500)
    return vector


def test_a_pool_of_vectors_is_stepped_in_groups() -> None:
    pool = VectorPool(with_spec, KEYS, (2, 1))
    actions, steps = actions_of(), []
    for row in [None, *actions]:
        pool.send(0, None if row is None else row[:2])
        pool.send(1, None if row is None else row[2:])
        parts = [allocate_steps(pool.spec, size) for size in pool.groups]
        assert not any(pool.receive(g, part).any() for g, part in enumerate(parts))
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        steps.append(TimeStep(joined.observation[0], *joined[1:]))
    begun = pool.begun
    pool.close()
    pool.close()
    for row in range(N):
        assert_same(steps, row, single(KEYS[row], actions[:, row], True, 500))
    np.testing.assert_array_equal(begun, np.sum([step.first for step in steps], axis=0))


def test_bad_vectors_are_refused() -> None:
    vector = SyncVectorEnv([make_one] * N)
    with pytest.raises(ValueError, match="keys: expected one for each of 3 environments, got 2"):
        VectorStreams(vector, spec_of(500), KEYS[:2])
    wrong = spec_of(500)._replace(observation=jax.ShapeDtypeStruct((5,), np.float32))
    with pytest.raises(ValueError, match=r"observation: expected .*5.*cart.*got .*4"):
        VectorStreams(vector, wrong, KEYS).begin()
    vector.metadata = {"autoreset_mode": "Sometimes"}
    with pytest.raises(ValueError, match="'Sometimes', expected NextStep, SameStep or Disabled"):
        VectorStreams(vector, spec_of(500), KEYS)
    vector.close()


class NoOptions:
    """Resets itself, and cannot be told to."""

    num_envs, metadata = 1, {}

    def reset(self) -> Any:
        return np.zeros((1, 4), np.float32), {}

    def step(self, actions: Any) -> Any:
        return np.zeros((1, 4), np.float32), np.ones(1), np.zeros(1, bool), np.zeros(1, bool), {}


def test_a_limit_that_cannot_be_kept_is_an_error() -> None:
    streams = VectorStreams(NoOptions(), spec_of(2), [(0,)])
    streams.begin()
    assert streams.mode == "NextStep"
    assert not streams.step(np.zeros(1, int)).last
    assert streams.step(np.zeros(1, int)).truncated
    with pytest.raises(ValueError, match=r"reset_mask.*NextStep"):
        streams.step(np.zeros(1, int))


class Faulty(NoOptions):
    """Raises, or hangs until it is let go."""

    def __init__(self, fault: Any, closing: Any = lambda: None):
        self.spec, self.step, self.close = spec_of(9), fault, closing


def failed_pool(vector: Any, **options: Any) -> tuple[VectorPool, str, list[dict[str, Any]]]:
    """A pool after its first step, what it raised and what it told."""
    events: list[dict[str, Any]] = []
    told = lambda event, **details: events.append(details | {"event": event})  # noqa: E731
    pool = VectorPool(lambda n, seed: vector, [(0,)], (1,), notify=told, **options)
    into = allocate_steps(pool.spec, 1)
    pool.send(0)
    pool.receive(0, into)
    pool.send(0, np.zeros(1, int))
    with pytest.raises(WorkerFailed) as failure:
        pool.receive(0, into)
    return pool, str(failure.value), events


def test_what_a_vector_raises_is_told_with_its_traceback() -> None:
    """A time-out of its own is no answer that is late; that it cannot be closed afterwards is not what matters."""

    def asleep(actions: Any) -> Any:
        raise TimeoutError("the dragon is asleep")

    def broken() -> None:
        raise OSError("closed already")

    pool, said, (event,) = failed_pool(Faulty(asleep, broken), timeout=60.0)
    pool.close()
    assert "env: cart raised TimeoutError: the dragon is asleep" in said
    assert "Its own traceback:\nTraceback" in said
    assert ", in asleep" in said
    assert (event["event"], event["worker"], event["streams"], event["env"]) == (
        "worker failed",
        0,
        1,
        "cart",
    )
    assert event["why"] == "raised TimeoutError: the dragon is asleep"
    assert ", in asleep" in event["trace"]


def test_a_vector_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not closed; whoever closes it has waited already."""
    woken, closed, waited = threading.Event(), [], []

    def noting(asked: Any, timeout: float) -> Any:
        waited.append(timeout)
        return futures.wait(asked, timeout)

    monkeypatch.setattr("derex.envs.host.vector.wait", noting)
    hanging = Faulty(lambda actions: woken.wait(60), lambda: closed.append("closed"))
    pool, said, (event,) = failed_pool(hanging, timeout=0.5)
    pool.close()
    woken.set()
    assert "env: cart gave no answer within 0.5 s (--worker-timeout)" in said
    assert event["why"] == "gave no answer within 0.5 s (--worker-timeout)"
    assert waited == [0.5, 0.5, 0.0]
    assert not closed
