"""Training on environments whose workers keep failing: it completes, and every episode is accounted for by its seed."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_host_training import (  # type: ignore[missing-import]
    AGENT,
    events_of,
    pretend,  # noqa: F401 (a fixture: the suite by that name)
    tiny,
)

from derex.envs.host import Pool
from derex.training import TrainConfig, read_metrics, restore_run, train
from derex.training.host import TRAINING

STREAMS, UNROLL, WORKERS = 16, 16, 2
STEPS = STREAMS * UNROLL  # of an iteration
KILLED, RAISED = "was killed by SIGKILL", "raised RuntimeError: the dragon is asleep"
HUNG = "gave no answer within 2 s (--worker-timeout)"


def of_one_seed(out: Path, iterations: int, env: str, **changes: Any) -> TrainConfig:
    """Longer unrolls of more streams, for the sake of speed."""
    agent = replace(AGENT, unroll=UNROLL)
    config = tiny(out, env=env, seeds=1, streams=STREAMS, agent=agent, workers=WORKERS)
    return replace(config, steps=iterations * STEPS, log_every=iterations // 4 * STEPS, **changes)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Notes what a training receives from its workers; `shortened` says whose first episodes are not counted."""
    kept = importlib.import_module("ledger").Ledger([(TRAINING, 0, b) for b in range(STREAMS)])
    receive = Pool.receive

    def noting(pool: Pool, group: int, into: Any, before: Any = None) -> Any:
        kept.shortened = pool.shortened
        cut = receive(pool, group, into, before)
        kept.add(sum(pool.groups[:group]), into, cut)
        return cut

    monkeypatch.setattr(Pool, "receive", noting)
    return kept


def assert_accounted_for(config: TrainConfig, log: Path, ledger: Any) -> None:
    """What the run says it counted is, seed by seed, what the environments say they finished.

    They write down what they begin and finish, the training what it receives: every episode is counted once, cut once,
    still open, or was begun by a worker that died before anybody saw it begin.
    """
    written = importlib.import_module("ledger").written
    lines = read_metrics(config.out)
    restarts = [event for event in events_of(config.out) if event["event"] == "worker restarted"]
    assert len(restarts) == sum(line["worker_restarts"] for line in lines)
    assert all({"time", "step", "worker", "streams"} <= set(event) for event in restarts)
    assert np.isfinite([line["value_loss"] for line in lines]).all()
    assert lines[-1]["step"] == config.steps
    began = [line["seed"] for line in written(log, "began")]
    ended = {line["seed"]: line for line in written(log, "ended")}
    begun = np.asarray(restore_run(config.out).state.actor.environment.begun)
    assert len(began) == len(set(began)) == begun.sum()
    assert len(ended) == len(written(log, "ended"))
    seen = [*ledger.counted, *ledger.cut, *(seed for seed in ledger.open if seed >= 0)]
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(began)
    # A worker may die with a last step that nobody has read yet: that episode is cut, and counted nowhere.
    shortened = {seed for seed, short in zip(ledger.earliest, ledger.shortened, strict=True) if short}
    counted = set(ledger.counted) - shortened
    assert counted <= set(ended) <= set(seen) - set(ledger.open)
    # Or with first steps that nobody has read, at most one of each of its streams.
    unseen = set(began) - set(seen)
    assert len(unseen) <= len(restarts) * STREAMS / WORKERS
    assert sum(line["episodes"] for line in lines) == len(counted)
    for name, ours in (("return", "return"), ("episode_length", "length")):
        total = sum(line["episodes"] * line[name] for line in lines if line["episodes"])
        assert total == pytest.approx(sum(ended[seed][ours] for seed in counted), rel=1e-5)


@pytest.mark.parametrize("iterations", [4, pytest.param(400, marks=pytest.mark.slow)])
def test_under_constant_crashes_training_counts_no_episode_twice(
    iterations: int, tmp_path: Path, ledger: Any
) -> None:
    """p = 0.005 a step, for 1 024 steps and for 102 400; workers are killed, and raise."""
    log = tmp_path / "log"
    config = of_one_seed(tmp_path / "run", iterations, f"length=7+fault=kill|raise+chance=0.005+log={log}")
    train(config)
    assert_accounted_for(config, log, ledger)
    reasons = [event["why"] for event in events_of(config.out) if event["event"] == "worker restarted"]
    assert set(reasons) == {KILLED, RAISED}
    assert len(reasons) > config.steps / 500


def test_a_worker_that_hangs_does_not_stop_a_training(tmp_path: Path, ledger: Any) -> None:
    """In the first episode that is begun, or in one of each worker, where neither has seen the other's."""
    log = tmp_path / "log"
    env = f"length=7+fault=hang+at=3+only_first=1+log={log}"
    config = of_one_seed(tmp_path / "run", 4, env, worker_timeout=2.0)
    train(config)
    assert_accounted_for(config, log, ledger)
    events = events_of(config.out)
    assert {(event["event"], event["why"]) for event in events} == {("worker restarted", HUNG)}
    assert all("in wait_for_ever" in event["trace"] for event in events)
    assert 1 <= len(events) <= WORKERS
    assert ledger.cut
