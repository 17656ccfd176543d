"""Exported agents: they act as the run's own network does, say what they are, and refuse what does not fit."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import derex
from derex import cli
from derex.agents.rollout import act, init_memory
from derex.report.files import DamagedFileError
from derex.training.export import export_agent, load_agent
from derex.training.trained import restore_agents

OWN = "nowhere_to_be_found:Method"
KINDS = ("feed-forward", "lstm", "gaussian")


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_agent_acts_as_the_runs_network(kind: str, runs: dict[str, Path], tmp_path: Path) -> None:
    agents = restore_agents(runs[kind])
    agent = derex.load_agent(export_agent(agents, tmp_path / "model"))
    network, policy = agents.network_of(4), agents.policy
    spec, streams = agents.environment.spec, 3
    rng = np.random.default_rng(0)
    memory, own = agent.initial(streams), init_memory(network, policy, streams)
    single = agent.initial()
    step = jax.jit(act, static_argnums=1)
    for number in range(3):
        seen = rng.normal(size=(streams, *spec.observation.shape)).astype(np.float32)
        first = np.array([number == 0, False, number == 2])
        expected = step(network, policy, seen, jnp.asarray(first), own, None)
        parameters = agent.parameters(seen, memory, first)
        action, memory = agent.act(seen, memory, first)
        np.testing.assert_array_equal(parameters, expected.parameters)
        bounded = np.clip(expected.action, -1, 1) if kind == "gaussian" else expected.action
        np.testing.assert_array_equal(action, bounded)
        alone, single = agent.act(seen[1], single, first=number == 0)
        np.testing.assert_allclose(alone, action[1], rtol=1e-5)
        own = expected.memory
    assert np.ptp(parameters) > 0
    drawn = {tuple(np.ravel(agent.act(seen, memory, key=jax.random.key(i))[0])) for i in range(8)}
    assert len(drawn) > 1


def test_the_card_says_what_it_is(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = export_agent(restore_agents(runs["gaussian"], "best"), tmp_path / "model", seed=3)
    card = json.loads((folder / "card.json").read_text())
    assert (card["environment"], card["step"], card["seed"]) == ("point-mass", 512, 3)
    assert card["score"] == {"return": 3.5, "success": 0.5}
    assert card["action"] == {"kind": "box", "size": 2, "low": -1.0, "high": 1.0}
    assert card["observation"] == {"shape": [6], "dtype": "float32"}
    assert card["commit"]["id"] == "c" * 40
    assert card["config"]["method"] == OWN
    assert sorted(path.name for path in folder.iterdir()) == ["agent.safetensors", "card.json"]
    assert repr(load_agent(folder)) == "Agent('point-mass', seed=3, step=512)"


@pytest.mark.parametrize(
    ("observation", "streams", "says"),
    [
        (np.zeros(7, np.float32), 1, r"expected shape \(6,\) of one stream.* got \(7,\)"),
        (np.zeros((3, 6), np.float32), 2, r"streams, 2, side by side; got \(3, 6\)"),
        (np.zeros(6, np.float32), 2, r"memory is of 2 streams"),
        (np.zeros(6, np.uint8), 1, "expected float32, as the agent was trained on, got uint8"),
        (np.full(6, np.nan), 1, "got NaN or infinity"),
        ({"a": np.zeros(6)}, 1, "expected the parts"),
    ],
)
def test_other_observations_are_refused(
    observation: Any, streams: int, says: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    agent = load_agent(export_agent(restore_agents(runs["gaussian"]), tmp_path / "model"))
    with pytest.raises(ValueError, match=says):
        agent.act(observation, agent.initial(streams))


def test_lists_and_doubles_are_fine(runs: dict[str, Path], tmp_path: Path) -> None:
    agent = load_agent(export_agent(restore_agents(runs["gaussian"]), tmp_path / "model"))
    memory = agent.initial()
    for seen in ([0.5] * 6, np.full(6, 0.5)):
        assert np.array_equal(agent.act(seen, memory)[0], agent.act(np.full(6, 0.5, np.float32), memory)[0])


def test_damaged_exports_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = export_agent(restore_agents(runs["feed-forward"]), tmp_path / "model")
    weights, card = folder / "agent.safetensors", folder / "card.json"
    content, text = weights.read_bytes(), card.read_text()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedFileError, match=r"is not the file that card.json was written with"):
        load_agent(folder)
    weights.write_bytes(content)
    for old, new in (('"width": 8', '"width": 9'), ('"n": 3', '"n": 4'), ('"discrete"', '"os.system"')):
        assert old in text
        card.write_text(text.replace(old, new))
        with pytest.raises(DamagedFileError, match="is damaged"):
            load_agent(folder)
    card.write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(DamagedFileError, match="format version 2"):
        load_agent(folder)
    card.unlink()
    with pytest.raises(DamagedFileError, match="holds no agent"):
        load_agent(folder)


def test_export_from_the_command_line(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    for _ in range(2):  # an earlier export may be replaced
        assert cli.main(["export", str(runs["lstm"]), "--out", str(out), "--agent", "3"]) == 0
    assert f"derex.load_agent({str(out)!r})" in capsys.readouterr().out
    assert load_agent(out).card["seed"] == 3
