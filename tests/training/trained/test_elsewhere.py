"""Trained agents in other environments than their own: which they can play, and how they are scored there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from derex.cli import main
from derex.envs.suites.dmlab import human_normalised
from derex.training.evaluate import evaluate, save_evaluation
from derex.training.trained import playing, restore_agents

WriteRun = Callable[[Path, str, str], Path]
TWO = "dmlab:rooms_collect_good_objects_train,dmlab:rooms_watermaze"
HELD_OUT = "dmlab:rooms_collect_good_objects_test"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stand-in of DeepMind Lab, for this process and its workers."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "envs" / "standins")
    monkeypatch.setenv("DEREX_DMLAB_CACHE", str(tmp_path / "cache"))


def entries(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "eval.json").read_text())["1024"]


def scored(row: dict[str, Any], level: str) -> None:
    """Relative to people of that level, value and bounds alike."""
    for part, value in row["return"].items():
        assert row["human_normalised"][part] == pytest.approx(human_normalised(level, value))


def test_trained_on_levels_and_scored_on_held_out_ones(
    lab: None, tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", TWO, "feed-forward")
    asked = ["eval", str(folder), "--episodes", "2"]
    assert main(asked) == 0
    assert main([*asked, "--on", f"{HELD_OUT},dmlab:rooms_watermaze"]) == 0
    assert f"of each seed and task on {HELD_OUT},dmlab:rooms_watermaze at step" in capsys.readouterr().out
    assert main([*asked, "--on", HELD_OUT]) == 0
    own, held_out, single = entries(folder)
    assert [each["env"] for each in (own, held_out, single)] == [
        TWO,
        f"{HELD_OUT},dmlab:rooms_watermaze",
        HELD_OUT,
    ]
    assert list(own["tasks"]) == TWO.split(",")
    assert list(held_out["tasks"]) == [HELD_OUT, "dmlab:rooms_watermaze"]
    for name, task in held_out["tasks"].items():
        scored(task["seeds"][0], name)
    scored(single["seeds"][1], "rooms_collect_good_objects")
    means = [task["seeds"][0]["human_normalised"]["value"] for task in held_out["tasks"].values()]
    assert held_out["seeds"][0]["human_normalised"]["value"] == pytest.approx(np.mean(means))
    assert "human_normalised_capped" in held_out["seeds"][0]


def test_what_is_played_goes_by_its_name(lab: None, tmp_path: Path, write_run: WriteRun) -> None:
    """Where an agent of one task plays several."""
    agents = restore_agents(write_run(tmp_path / "run", "recall-2", "lstm"))
    elsewhere = playing(agents, "recall-3,recall-1")
    played = evaluate(elsewhere, 3)
    assert list(elsewhere.tasks) == ["recall-3", "recall-1"]
    np.testing.assert_array_equal(played.lengths, [[5, 5, 5, 3, 3, 3]] * 2)
    assert (elsewhere.env, elsewhere.on, agents.on) == ("recall-2", "recall-3,recall-1", None)


def test_an_agent_of_several_tasks_plays_what_fits_into_their_parts(
    tmp_path: Path, write_run: WriteRun
) -> None:
    """rooms-chain-1 shows more numbers than recall-2, which are 0 there as they were in training."""
    agents = restore_agents(write_run(tmp_path / "run", "recall-1,rooms-chain-1", "feed-forward"))
    elsewhere = playing(agents, "recall-2")
    seen = elsewhere.tasks["recall-2"].spec.observation
    assert seen == agents.environment.spec.observation
    assert np.all(evaluate(elsewhere, 2).lengths == 4)


@pytest.mark.parametrize(
    ("env", "on", "said"),
    [
        (TWO, "dmlab:rooms_watermaze@9", r"its actions are Discrete\(n=9\), the run's Discrete\(n=15\)"),
        (TWO, "catch", "it shows 'observation', .*which the run never saw; its actions are"),
        ("recall-2", "dmlab:rooms_watermaze", r"it shows 'image', .*it does not show 'observation', "),
        ("recall-2", "rooms-chain-2", r"it shows 'observation' as .*, the run saw .*\(5,\)"),
        ("recall-2", "recal-2", "^on: there is no environment 'recal-2'. Did you mean 'recall-2'"),
        ("recall-2", "recall-3,recall-3", "^on: .*more than once"),
        ("recall-1,rooms-chain-1", "rooms-chain-2", "^on: rooms-chain-2 does not fit agents that were tr"),
    ],
)
def test_what_does_not_fit_is_refused_by_what_differs(
    env: str, on: str, said: str, lab: None, tmp_path: Path, write_run: WriteRun
) -> None:
    agents = restore_agents(write_run(tmp_path / "run", env, "feed-forward"))
    with pytest.raises(ValueError, match=said):
        playing(agents, on)


def test_evaluations_on_other_environments_stand_beside_each_other(tmp_path: Path) -> None:
    """One of an earlier version does not say what was played: the run's own."""
    (tmp_path / "config.json").write_text('{"config": {"env": "catch"}}')
    for entry in ({}, {"env": "recall-1"}, {"env": "catch", "x": 1}):
        save_evaluation(tmp_path, 1024, {"episodes": 5, "greedy": False, "seed": 0} | entry)
    assert [(entry["env"], entry.get("x")) for entry in entries(tmp_path)] == [
        ("recall-1", None),
        ("catch", 1),
    ]
