"""One agent, several tasks: training, metrics of each task, resuming, evaluation, films, curves."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from derex.agents.config import AgentConfig
from derex.cli import main
from derex.envs import registry
from derex.envs.multitask import assign_tasks
from derex.envs.wrappers import EpisodeSums
from derex.report.learning_curves import runs_of_task
from derex.report.runs import find_runs
from derex.training import TrainConfig, make_training, read_metrics, restore_run, train
from derex.training.checkpoints import find_checkpoint, load_arrays
from derex.training.evaluate import evaluate, film_episode, summarise
from derex.training.host import HostTraining
from derex.training.logging import flatten_line
from derex.training.metrics import IntervalSums, average_tasks, make_lines
from derex.training.trained import restore_agents
from derex.types import Discrete, EnvironmentSpec

AGENT = AgentConfig(core="feed-forward", width=8, unroll=4, epochs=1, minibatches=2, learning_rate=0.03)
STREAMS = 8
STEPS = STREAMS * AGENT.unroll
ROOMS = "recall-1,rooms-chain-1"
FAKES = ("fakes:small", "recall-1", "fakes:large")
TIMES = ("steps_per_second", "seconds")


@pytest.fixture(scope="module", autouse=True)
def fakes() -> Iterator[None]:
    """The suite `fakes`, for this process and its workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "envs")
        patch.setitem(registry.SUITES, "fakes", registry.Suite("pretend_tasks", "", "", "", True))
        yield


def tiny(out: Path, env: str = ROOMS, iterations: int = 6, **changes: Any) -> TrainConfig:
    config = TrainConfig(
        env,
        out,
        method="vmpo",
        steps=iterations * STEPS,
        seeds=2,
        streams=STREAMS,
        log_every=3 * STEPS,
        agent=AGENT,
        workers=2,
    )
    return replace(config, **changes)


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [{name: of for name, of in line.items() if name not in TIMES} for line in read_metrics(folder)]


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JAX tasks; six iterations without a stop."""
    folder = tmp_path_factory.mktemp("runs") / "rooms"
    train(tiny(folder))
    return folder


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two fakes in workers, and a JAX task beside them."""
    folder = tmp_path_factory.mktemp("runs") / "mixed"
    train(tiny(folder, ",".join(FAKES), 9))
    return folder


# --- metrics ---------------------------------------------------------------------------------------------------------


def spec_of(name: str, success: float | None) -> EnvironmentSpec:
    return EnvironmentSpec(name, jax.ShapeDtypeStruct((1,), np.float32), Discrete(2), 9, success)


def sums_of(*rows: list[Any]) -> EpisodeSums:
    """Of one seed."""
    return EpisodeSums(*(np.array([row]) for row in rows))  # type: ignore[arg-type]


def reading_of(specs: list[EnvironmentSpec], episodes: EpisodeSums) -> IntervalSums:
    one, none = np.ones(1), np.zeros((1, 1))
    return IntervalSums(
        one, 0 * one, {}, none, none, episodes, {}, assign_tasks(specs, episodes.episodes.shape[1])
    )


def test_every_task_counts_alike_however_many_episodes_it_has() -> None:
    """Of five streams, three play the quick task."""
    episodes, returns, lengths, successes = (
        [4, 1, 4, 1, 2],
        [4.0, 9, 2, 7, 4],
        [8, 50, 8, 70, 4],
        [4, 1, 2, 0, 4],
    )
    sums = sums_of(episodes, returns, lengths, successes)
    specs = [spec_of("quick", 1.0), spec_of("slow", 8.0)]
    (line,) = make_lines(reading_of(specs, sums), specs[0], 96, (5,), {"seconds": 1.0})
    quick = {"return": 1.0, "success": 1.0, "episode_length": 2.0, "episodes": 10}
    slow = {"return": 8.0, "success": 0.5, "episode_length": 60.0, "episodes": 2}
    assert line["tasks"] == {"quick": quick, "slow": slow}
    assert (line["return"], line["success"], line["episode_length"]) == (4.5, 0.75, 31.0)
    assert (line["episodes"], line["tasks_counted"]) == (12, 2)
    json.dumps(line, allow_nan=False)


def test_tasks_without_episodes_or_without_success_are_left_out() -> None:
    sums = sums_of([2, 0, 4], [4.0, 0, 2], [8, 0, 8], [1, 0, 0])
    specs = [spec_of("a", 1.0), spec_of("b", 1.0), spec_of("c", None)]
    (line,) = make_lines(reading_of(specs, sums), specs[0], 96, (5,), {})
    assert line["tasks"]["b"] == {"return": None, "success": None, "episode_length": None, "episodes": 0}
    assert line["tasks"]["c"]["success"] is None
    assert (line["return"], line["success"], line["tasks_counted"]) == (1.25, 0.5, 2)


def test_levels_of_deepmind_lab_are_scored_relative_to_people() -> None:
    def row(value: float | None) -> dict[str, Any]:
        return {"return": value, "success": None, "episode_length": 1.0, "episodes": value is not None}

    line = average_tasks(
        {
            "dmlab:rooms_watermaze": row(4.065 + 0.5 * (54.0 - 4.065)),
            "dmlab:rooms_collect_good_objects_train@9": row(0.073 + 3.0 * (10.0 - 0.073)),
            "dmlab:natlab_fixed_large_map": row(None),
            "catch": row(1.0),
        }
    )
    tasks = line["tasks"]
    assert tasks["dmlab:rooms_watermaze"]["human_normalised"] == pytest.approx(50.0)
    assert tasks["dmlab:natlab_fixed_large_map"]["human_normalised"] is None
    assert "human_normalised" not in tasks["catch"]
    assert line["human_normalised"] == pytest.approx(175.0)
    assert line["human_normalised_capped"] == pytest.approx(75.0)
    assert "human_normalised" not in average_tasks({"catch": row(1.0)})


def test_a_level_by_itself_is_scored_relative_to_people_too() -> None:
    sums = sums_of([2, 0], [2 * 29.0325, 0], [8, 0], [0, 0])
    reading = reading_of([spec_of("x", None)], sums)._replace(assigned=None)
    (line,) = make_lines(reading, spec_of("dmlab:rooms_watermaze@9", None), 96, (5,), {})
    assert (line["return"], line["human_normalised"]) == (pytest.approx(29.0325), pytest.approx(50.0))
    (line,) = make_lines(reading, spec_of("catch", None), 96, (5,), {})
    assert "human_normalised" not in line


def test_loggers_get_the_numbers_of_each_task() -> None:
    line = {
        "step": 3,
        "seed": 0,
        "return": 1.5,
        "spectrum": [0.5],
        "tasks": {"a": {"return": 2, "success": None}},
    }
    assert list(flatten_line(line)) == [("return", 1.5), ("spectrum/00", 0.5), ("tasks/a/return", 2.0)]


# --- JAX tasks -------------------------------------------------------------------------------------------------------


def test_jax_tasks_train_as_one(rooms: Path) -> None:
    lines = read_metrics(rooms)
    assert len(lines) == 4
    for line in lines:
        assert list(line["tasks"]) == ["recall-1", "rooms-chain-1"]
        assert line["tasks"]["recall-1"]["episode_length"] == 3.0
        assert line["episodes"] == sum(task["episodes"] for task in line["tasks"].values())
        means = [task["return"] for task in line["tasks"].values() if task["return"] is not None]
        assert line["return"] == pytest.approx(np.mean(means), abs=1e-6)
    assert not (rooms / "visitation.npz").exists()


def test_a_run_that_is_continued_is_the_same_to_the_last_bit(rooms: Path, tmp_path: Path) -> None:
    train(tiny(tmp_path, iterations=3))
    train(tiny(tmp_path))
    assert without_times(tmp_path) == without_times(rooms)
    ours, theirs = (load_arrays(find_checkpoint(folder))["state"] for folder in (tmp_path, rooms))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    restore_run(tmp_path)


def test_each_task_is_evaluated(rooms: Path) -> None:
    agents = restore_agents(rooms)
    assert list(agents.tasks) == ["recall-1", "rooms-chain-1"]
    played = evaluate(agents, 5, seed=1)
    assert played.returns.shape == (2, 10)
    assert np.all(played.lengths[:, :5] == 3)
    summary = summarise(agents, played)
    recall, chain = (summary["tasks"][name]["seeds"] for name in agents.tasks)
    for row, one, other, returns in zip(summary["seeds"], recall, chain, played.returns, strict=True):
        assert one["return"]["value"] == pytest.approx(returns[:5].mean())
        assert one["length"]["value"] == 3.0
        assert row["return"]["value"] == pytest.approx(
            (one["return"]["value"] + other["return"]["value"]) / 2
        )
        assert 0 <= row["success"]["low"] <= row["success"]["value"] <= row["success"]["high"] <= 1


def test_the_command_prints_a_row_for_each_task(rooms: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(rooms), "--episodes", "2"]) == 0
    printed = capsys.readouterr().out
    for name in ("recall-1", "rooms-chain-1", "mean over tasks"):
        assert printed.count(name) == 3  # each seed and all
    assert "2 episodes of each seed and task" in printed
    (entry,) = json.loads((rooms / "eval.json").read_text()).popitem()[1]
    assert list(entry["tasks"]) == ["recall-1", "rooms-chain-1"]


def test_curves_of_one_task_and_of_each(rooms: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = runs_of_task(find_runs([rooms]), "recall-1")
    assert one.env == "recall-1"
    expected = [line["tasks"]["recall-1"]["success"] for line in read_metrics(rooms)]
    assert [line["success"] for line in one.lines] == expected
    assert main(["plot", str(rooms), "--metric", "success", "--task", "all"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("recall-1", "rooms-chain-1"))
    assert main(["plot", str(rooms), "--task", "recall-2"]) == 2
    assert "no run has 'recall-2'. Did you mean 'recall-1'" in capsys.readouterr().err


def test_episodes_of_all_tasks_are_filmed_in_turn(rooms: Path, tmp_path: Path) -> None:
    agents = restore_agents(rooms)
    network = agents.network_of(0)
    recall, chain, again = (film_episode(agents.environment, network, 0, number) for number in range(3))
    assert [len(filmed) for filmed in (recall, again)] == [4, 4]  # every episode is three steps long
    assert chain[-1].last
    assert chain[0].picture.shape != recall[0].picture.shape
    film = tmp_path / "film.gif"
    assert main(["video", str(rooms), "--episodes", "2", "--out", str(film)]) == 0
    assert film.stat().st_size > 0


@pytest.mark.parametrize("env", ["recall-1,recall-2,recall-3", ",".join(FAKES)])
def test_too_few_streams_are_refused_before_anything_is_written(env: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="streams: expected at least one for each of the 3 tasks, got 2"):
        train(tiny(out, env, streams=2))
    assert not out.exists()


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("recall-1,", "empty item"),
        ("recall-1,recall-1", "more than once"),
        ("recall-1,recal-2", "there is no environment 'recal-2'. Did you mean 'recall-2'"),
        ("recall-1,catch", r"Discrete\(n=4\) in recall-1; Discrete\(n=3\) in catch"),
        (
            "fakes:small,four-rooms-pixels,recall-1",
            "in four-rooms-pixels and an array of float32 .5,. in recall-1",
        ),
        ("fakes:small,gimnax:x", "there is no suite 'gimnax'. Did you mean 'gymnax'"),
    ],
)
def test_lists_that_one_agent_cannot_play_are_refused(env: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_training(tiny(Path("x"), env))


COMPARE = """
import json
from pathlib import Path
import jax, numpy as np
from derex.agents.config import AgentConfig
from derex.training import TrainConfig, make_training
from derex.training.learner import data_mesh, placed

agent = AgentConfig(width=8, unroll=4, epochs=1, minibatches=2)
env = "recall-1,rooms-chain-1,recall-2"  # 3, 3 and 2 of eight streams: the first two cannot be split in two
training = make_training(TrainConfig(env, Path("x"), "vmpo", streams=8, agent=agent))

def run(devices):
    mesh = data_mesh(jax.devices()[:devices])
    state = placed(training, training.init_seeds((0, 1)), mesh)
    for _ in range(2):
        state = placed(training, training.advance(state, 1), mesh)
    return state

one, two = run(1), run(2)
gap = max(
    float(np.max(np.abs(np.asarray(a, float) - np.asarray(b, float))))
    for a, b in zip(*(jax.tree.leaves(state.learner.trained) for state in (one, two)), strict=True)
)
tasks = two.actor.environment.streams.tasks
rows = [task.steps.addressable_shards[0].data.shape[1] for task in tasks]
reward = two.actor.time_step.reward.addressable_shards[0].data.shape[1]
print(json.dumps({"gap": gap, "rows": rows, "reward": reward, "compiled": training.advance._cache_size()}))
"""


@pytest.mark.slow
def test_two_devices_learn_what_one_learns(quick_process: dict[str, str]) -> None:
    """States of tasks whose streams cannot be split are on both; all else is split as ever."""
    environment = quick_process | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    answer = subprocess.run(
        [sys.executable, "-c", COMPARE], env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["gap"] < 1e-5
    assert (found["rows"], found["reward"], found["compiled"]) == ([3, 3, 1], 4, 2)


# --- host tasks ------------------------------------------------------------------------------------------------------


def test_host_tasks_train_as_one_with_jax_ones_among_them(mixed: Path) -> None:
    lines = read_metrics(mixed)
    assert len(lines) == 6
    for line in lines[2:]:  # once all first, shortened episodes are over
        small, recall, large = (line["tasks"][name] for name in FAKES)
        assert (small["return"], small["episode_length"], small["success"]) == (3.0, 3.0, 0.0)
        assert (large["return"], large["episode_length"], large["success"]) == (10.0, 5.0, 1.0)
        assert recall["episode_length"] == 3.0
        assert line["return"] == pytest.approx((13.0 + recall["return"]) / 3, abs=1e-5)
        assert line["worker_restarts"] == 0
    assert [line["seed"] for line in lines] == [0, 1] * 3


def test_seeds_have_the_same_tasks_in_the_same_streams(mixed: Path) -> None:
    """The checkpoint counts episodes of each stream: those of one task are as many, up to the first, shortened one."""
    training = make_training(tiny(Path("x"), ",".join(FAKES)))
    assert isinstance(training, HostTraining)
    arrays = load_arrays(find_checkpoint(mixed))["state"]
    (begun,) = (array for name, array in arrays.items() if name.endswith("begun"))
    assert begun.shape == (2, STREAMS)
    small, recall, large = (begun[:, k::3] for k in range(3))
    assert small.min() >= recall.min() > large.max()  # 36 steps in episodes of 4, 4 and 6


def test_host_tasks_are_evaluated_one_by_one(mixed: Path) -> None:
    agents = restore_agents(mixed)
    summary = summarise(agents, evaluate(agents, 3))
    rows = {name: summary["tasks"][name]["seeds"][1] for name in FAKES}
    assert [rows[name]["return"]["value"] for name in (FAKES[0], FAKES[2])] == [3.0, 10.0]
    assert [rows[name]["success"]["value"] for name in (FAKES[0], FAKES[2])] == [0.0, 1.0]
