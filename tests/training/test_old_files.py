"""Files that version 0.1.0 wrote still load and give its numbers: runs, an exported agent, models.

tests/data/v0_1_0/expected.json holds the numbers.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import derex
from derex.cli import main
from derex.training import read_metrics, restore_run

OLD = Path(__file__).parents[1] / "data" / "v0_1_0"
EXPECTED = json.loads((OLD / "expected.json").read_text())
TIMES = ("steps_per_second", "seconds")


def assert_close(found: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Compares nested values; floats to single precision unless told otherwise."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(found[name], value, rtol, atol)
    elif expected is None or isinstance(expected, str | bool):
        assert found == expected
    else:
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=rtol, atol=atol)


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [{name: of for name, of in line.items() if name not in TIMES} for line in read_metrics(folder)]


@pytest.mark.parametrize("name", ["run-vmpo", "run-derex"])
def test_runs_are_restored_evaluated_and_resumed(name: str, tmp_path: Path) -> None:
    folder, expected = tmp_path / name, EXPECTED[name]
    shutil.copytree(OLD / name, folder)
    restored = restore_run(folder)
    assert (restored.step, restored.problems) == (32, ())
    assert without_times(folder) == expected["metrics"]

    assert main(["eval", str(folder), "--episodes", "4"]) == 0
    evaluated = json.loads((folder / "eval.json").read_text())
    (old,), (new,) = expected["eval --episodes 4"]["32"], evaluated["32"]
    for measure in ("return", "success", "length"):
        assert_close(new["seeds"][0][measure]["value"], old["seeds"][0][measure]["value"])

    assert main(["train", "--resume", str(folder), "--steps", "64"]) == 0
    for line, before in zip(without_times(folder), expected["train --resume --steps 64"], strict=True):
        # In the first updates σ is near 0 and the bonus divides by it: other sums give other digits.
        assert_close(line, before, rtol=0.02, atol=1e-4)


def test_an_exported_agent_acts_as_before() -> None:
    agent = derex.load_agent(OLD / "agent")
    memory = agent.initial()
    for t, step in enumerate(EXPECTED["agent"]):
        observation = np.array(step["observation"], np.float32)
        assert_close(agent.parameters(observation, memory, step["first"]), step["parameters"])
        drawn, _ = agent.act(observation, memory, step["first"], key=jax.random.key(t))
        assert_close(drawn, step["drawn with jax.random.key(t)"])
        action, memory = agent.act(observation, memory, step["first"])
        assert_close(action, step["action"])


def assert_same_model(model: Any, rows: Any, expected: dict[str, Any]) -> None:
    assert_close(model.singular_values_, expected["singular_values"])
    for name in ("transform", "bonus"):
        for found, before in zip(getattr(model, name)(rows), expected[name], strict=True):
            assert_close(found, before)


@pytest.mark.parametrize("name", ["tabular.derex", "linear.derex"])
def test_models_of_pairs(name: str) -> None:
    expected = EXPECTED[name]
    rows = np.array(expected["X"], expected["dtype"])
    assert_same_model(derex.DeRex.load(OLD / name), rows, expected)


def test_a_model_of_histories() -> None:
    expected = EXPECTED["history.derex"]
    observations = [np.array(episode, np.float32) for episode in expected["observations"]]
    actions = [np.array(episode) for episode in expected["actions"]]
    model = derex.HistoryDeRex.load(OLD / "history.derex")
    assert_same_model(model, derex.Trajectories.from_episodes(observations, actions), expected)
    memory = model.initial_memory()
    for t, (f, bonus) in enumerate(expected["step on episode 0: f, bonus"]):
        previous = None if t == 0 else int(actions[0][t - 1])
        memory, *found = model.step(memory, observations[0][t : t + 1], [previous])
        assert_close(np.ravel(found[0]), f)
        assert_close(np.ravel(found[1]), bonus)
