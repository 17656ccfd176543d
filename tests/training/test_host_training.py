"""Training on host environments: the same learner, from what workers gathered with the policy of one update before."""

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from derex.agents.config import AgentConfig
from derex.agents.rollout import Rollout
from derex.cli import main
from derex.envs import registry
from derex.envs.host import WorkerFailed
from derex.training import Stopped, TrainConfig, make_training, read_metrics, restore_run, train
from derex.training.checkpoints import find_checkpoint, list_steps, load_arrays
from derex.training.evaluate import evaluate
from derex.training.host import HostLoop, HostRollout, HostTraining, join_groups
from derex.training.learner import TrainState, data_mesh, placed
from derex.training.trained import restore_agents

AGENT = AgentConfig(width=8, unroll=4, epochs=1, minibatches=2, learning_rate=0.03)
STREAMS, LENGTH, SEEDS = 6, 7, 2
STEPS = STREAMS * AGENT.unroll  # of an iteration
TIMES = ("steps_per_second", "seconds")


@pytest.fixture(scope="module", autouse=True)
def pretend() -> Iterator[None]:
    """The suite `pretend`, for this process and its workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "envs")
        patch.setitem(registry.SUITES, "pretend", registry.Suite("pretend_envs", "", "", "", True))
        yield


def tiny(out: Path, iterations: int = 6, env: str = f"length={LENGTH}", **changes: Any) -> TrainConfig:
    """A line after every other iteration."""
    config = TrainConfig(
        f"pretend:{env}",
        out,
        method="vmpo",
        steps=iterations * STEPS,
        seeds=SEEDS,
        streams=STREAMS,
        log_every=2 * STEPS,
        agent=AGENT,
        workers=2,
    )
    return replace(config, **changes)


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [{name: of for name, of in line.items() if name not in TIMES} for line in read_metrics(folder)]


def events_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six iterations without a stop."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(tiny(folder))
    return folder


def test_a_run_depends_on_its_seeds_alone(whole: Path, tmp_path: Path) -> None:
    """However many processes there are."""
    train(tiny(tmp_path, workers=3))
    assert without_times(tmp_path) == without_times(whole)
    ours, theirs = (load_arrays(find_checkpoint(folder))["state"] for folder in (tmp_path, whole))
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    lines = read_metrics(whole)
    assert [line["step"] // STEPS for line in lines] == [2, 2, 4, 4, 6, 6]
    assert {line["worker_restarts"] for line in lines} == {0}
    assert {line["episode_length"] for line in lines} <= {float(LENGTH), None}
    assert lines[0]["return"] != lines[1]["return"] or lines[2]["return"] != lines[3]["return"]  # other seeds


def replayed(rollout: Rollout, state: TrainState) -> Any:
    """What the network of a state makes of a rollout."""
    return jax.vmap(lambda network, of: network(of.trajectories, of.memory))(
        state.learner.trained.network, rollout
    )


@pytest.fixture(scope="module")
def unrolls() -> tuple[list[TrainState], list[Rollout], list[HostRollout], HostTraining]:
    """States before each of some updates, and what was learnt from in each."""
    config = tiny(Path("x"))
    training = make_training(config)
    assert isinstance(training, HostTraining)
    loop = training.open_loop(config, lambda event, **details: None)
    assert isinstance(loop, HostLoop)
    mesh = data_mesh()
    state = placed(training, training.init_seeds(config.all_seeds), mesh)
    states: list[TrainState] = [state]
    rollouts: list[Rollout] = []
    gathered: list[HostRollout] = []
    join = jax.jit(lambda groups: join_groups(training.streams.spec, groups))
    try:
        for _ in range(4):
            state = placed(training, loop.advance(state, 1, False, True), mesh)
            states.append(state)
            assert loop.ahead is not None
            gathered.append(loop.ahead)
            rollouts.append(jax.device_get(join(loop.ahead.groups)))
    finally:
        loop.close()
    return states, rollouts, gathered, training


def test_rollouts_are_of_the_policy_one_update_before(unrolls: Any) -> None:
    """Rollout i + 1 is collected while the update from rollout i is made: the network from before it acted."""
    states, rollouts, _, _ = unrolls
    for place, rollout in enumerate(rollouts):
        acted, later = (replayed(rollout, states[place + i]) for i in (0, 1))
        np.testing.assert_allclose(acted.policy[:, :, :-1], rollout.policy, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(acted.value, rollout.value, rtol=1e-4, atol=1e-5)
        assert np.abs(later.value - rollout.value).max() > 1e-3


def test_rollouts_hold_the_convention(unrolls: Any) -> None:
    """As those of JAX environments do: steps that follow each other, also from rollout to rollout."""
    _, rollouts, gathered, _ = unrolls
    steps = {
        name: np.concatenate([getattr(rollout, name) for rollout in rollouts], axis=2)
        for name in ("reward", "discount", "last", "valid", "action")
    }
    first = np.concatenate([rollout.trajectories.first[:, :, 1:] for rollout in rollouts], axis=2)
    np.testing.assert_array_equal(first[:, :, 1:], steps["last"][:, :, :-1])
    np.testing.assert_array_equal(steps["valid"], ~first)
    np.testing.assert_array_equal(steps["reward"], np.where(first, 0, steps["action"]))
    numbers = np.concatenate(
        [rollout.trajectories.observation["numbers"][:, :, 1:] for rollout in rollouts], axis=2
    )
    ended = steps["discount"] == 0
    assert ended.any()
    assert np.all(numbers[ended][:, 1] == LENGTH)
    assert np.all(numbers[first][:, 1] == 0)
    for before, after in pairwise(rollouts):
        for part in ("numbers", "picture"):
            ours, theirs = (of.trajectories.observation[part] for of in (before, after))
            np.testing.assert_array_equal(ours[:, :, -1], theirs[:, :, 0])
        np.testing.assert_array_equal(
            before.trajectories.previous_action[:, :, -1], after.trajectories.previous_action[:, :, 0]
        )
    seen = rollouts[0].trajectories.previous_action[:, :, 1:]
    encoded = np.where(first[:, :, : AGENT.unroll, None], 0, np.eye(3)[np.asarray(rollouts[0].action)])
    np.testing.assert_array_equal(seen, encoded)
    counted = np.sum([each.counts.sums.episodes for each in gathered], axis=0)
    assert counted.shape == (SEEDS, STREAMS)
    assert 0 < counted.sum() <= ended.sum()


class At:
    """Does something once an iteration is done."""

    def __init__(self, iteration: int, act: Callable[[], Any]):
        self.step, self.act = iteration * STEPS, act

    def compiled(self, seconds: float) -> None: ...

    def advanced(self, step: int, rate: float) -> None:
        if step == self.step:
            self.act()

    def logged(self, lines: list[dict[str, Any]]) -> None: ...


def test_a_stopped_run_goes_on_with_new_episodes(whole: Path, tmp_path: Path) -> None:
    """All that was learnt is there; open episodes are given up, and those of the log interval under way are kept."""
    log = tmp_path / "log"
    config = tiny(tmp_path / "run", env=f"length={LENGTH}+log={log}")
    with pytest.raises(Stopped, match=f"stopped by SIGTERM at step {3 * STEPS}"):
        train(config, At(3, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert list_steps(config.out)[-1] == 3 * STEPS
    assert without_times(config.out) == without_times(whole)[:2]
    before = len(log.read_text().splitlines())
    restored = restore_run(config.out)
    counts = restored.state.actor.environment
    begun, counted = np.asarray(counts.begun), np.asarray(counts.sums.episodes)
    assert begun.min() >= 1
    assert counted.sum() <= begun.sum() - begun.size  # open ones are not among them
    train(config)
    lines = read_metrics(config.out)
    assert [line["step"] // STEPS for line in lines] == [2, 2, 4, 4, 6, 6]
    assert [event["event"] for event in events_of(config.out)] == ["stopped", "resumed"]
    after = restore_run(config.out).state.actor.environment
    assert np.all(np.asarray(after.begun) > begun)
    later = [json.loads(line) for line in log.read_text().splitlines()[before:]]
    assert {line["event"] for line in later} == {"began", "ended"}


def test_workers_that_fail_now_and_then_do_not_stop_a_run(tmp_path: Path) -> None:
    """p = 0.005 a step; what is counted is what the environments say they finished, and no more."""
    log = tmp_path / "log"
    config = tiny(
        tmp_path / "run", 16, env=f"length={LENGTH}+fault=kill+chance=0.005+log={log}", log_every=4 * STEPS
    )
    train(config)
    lines, events = read_metrics(config.out), events_of(config.out)
    restarts = [event for event in events if event["event"] == "worker restarted"]
    assert len(restarts) == sum(line["worker_restarts"] for line in lines if line["seed"] == 0) > 0
    assert {event["why"] for event in restarts} == {"was killed by SIGKILL"}
    assert all({"time", "step", "worker", "streams"} <= set(event) for event in restarts)
    written = [json.loads(line) for line in log.read_text().splitlines()]
    ended = [line["return"] for line in written if line["event"] == "ended"]
    counted = sum(line["episodes"] for line in lines)
    total = sum(line["episodes"] * line["return"] for line in lines if line["episodes"])
    # First episodes of streams are not counted where their time limit was shortened, nor are those cut by a fault.
    assert len(ended) - SEEDS * STREAMS - len(restarts) * STREAMS <= counted <= len(ended)
    assert total <= sum(ended) + 1e-3
    assert len(ended) == len({line["seed"] for line in written if line["event"] == "ended"})


def test_past_the_limit_a_run_stops_with_a_checkpoint_and_the_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It can be resumed once the cause is removed."""
    config = tiny(tmp_path, env="length=20+fault=raise+at=10", worker_restarts=0)
    with pytest.raises(
        WorkerFailed, match=r"(?s)worker of pretend raised.*Its own traceback:.*in fail.*the dragon"
    ):
        train(config)
    saved = list_steps(tmp_path)[-1]
    assert saved in (
        2 * STEPS,
        3 * STEPS,
    )  # the tenth step is in the third rollout, collected while the second is learnt from
    assert [event["event"] for event in events_of(tmp_path)] == ["worker failed"]
    assert main(["train", "--resume", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "derex: error: env: a worker of pretend raised RuntimeError: the dragon is asleep" in said
    assert "\n  File " in said  # the traceback as it is, not on one line
    assert list_steps(tmp_path)[-1] > saved


def test_a_library_that_steps_many_and_raises_ends_a_run_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs within this process: there is no worker to start again, but there is what was learnt."""
    many: Any = importlib.import_module("pretend_many_tasks")
    monkeypatch.setitem(registry.SUITES, "many", registry.Suite("pretend_many_tasks", "", "", "", True))
    works, calls = many.make_many, []

    def breaking(name: str, n: int, seed: int) -> Any:
        vector = works(name, n, seed)
        steps = vector.step

        def step(actions: Any) -> Any:
            calls.append(len(actions))
            if len(calls) > 4 * AGENT.unroll:  # of two groups: in the third unroll
                raise RuntimeError("the dragon is asleep")
            return steps(actions)

        vector.step = step
        return vector

    monkeypatch.setattr(many, "make_many", breaking)
    config = replace(tiny(tmp_path), env="many:small")
    with pytest.raises(WorkerFailed, match=r"(?s)own name of small raised Runtime.*traceback:.*the dragon"):
        train(config)
    assert list_steps(tmp_path)[-1] == 2 * STEPS
    (event,) = events_of(tmp_path)
    assert (event["event"], event["step"]) == ("worker failed", STEPS)
    assert "the dragon is asleep" in event["trace"]


def test_evaluation_plays_whole_episodes(whole: Path) -> None:
    agents = restore_agents(whole)
    played = evaluate(agents, 11, seed=3)
    assert played.returns.shape == played.lengths.shape == (SEEDS, 11)
    assert np.all(played.lengths == LENGTH)
    assert len(np.unique(played.returns)) > 2
    again = evaluate(agents, 11, seed=3)
    np.testing.assert_array_equal(played.returns, again.returns)


def test_the_commands_eval_and_video(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(whole), "--episodes", "3", "--greedy"]) == 0
    entry = json.loads((whole / "eval.json").read_text())[str(6 * STEPS)][0]
    assert entry["seeds"][0]["length"]["value"] == LENGTH
    film = tmp_path / "film.gif"
    assert main(["video", str(whole), "--out", str(film)]) == 0
    assert f"{LENGTH + 1} pictures" in capsys.readouterr().out
    assert film.stat().st_size > 0
    assert main(["export", str(whole), "--out", str(tmp_path / "model")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["derex", "rnd", "laplacian"])
def test_every_kind_of_method_trains(method: str, tmp_path: Path) -> None:
    config = replace(tiny(tmp_path, 3), method=method)
    config = replace(config, agent=replace(config.agent, unroll=8))  # as long as the longest test
    train(config)
    assert np.isfinite([line["value_loss"] for line in read_metrics(tmp_path)]).all()


def test_the_parent_never_imports_an_environment_twice_for_its_spec() -> None:
    assert "pretend_envs" in sys.modules
    first, second = (make_training(tiny(Path("x"))).streams.spec for _ in range(2))
    assert first is second


def test_what_is_not_finite_skips_updates_and_reaches_no_environment(tmp_path: Path) -> None:
    """Real-valued actions of a recurrent agent: environments would refuse NaN, and its memory would keep it."""
    config = tiny(tmp_path, 4, env="length=9+box=1+nan_at=2", max_skipped=100)
    train(config)
    lines = read_metrics(tmp_path)
    assert sum(line["skipped_updates"] for line in lines) > 0
    assert all(line["worker_restarts"] == 0 for line in lines)
    assert not events_of(tmp_path) or all(
        event["event"] != "worker restarted" for event in events_of(tmp_path)
    )
