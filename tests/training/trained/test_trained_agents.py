"""Trained agents: restored, evaluated, filmed, each against the run's own network."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL.GifImagePlugin import GifImageFile

from derex import cli
from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork
from derex.agents.policy import make_policy
from derex.report.runs import find_runs
from derex.training import TrainConfig, restore_run, train
from derex.training.checkpoints import CheckpointError, Snapshot, flatten_paths, write_checkpoint
from derex.training.evaluate import evaluate, film_episode, save_evaluation, summarise
from derex.training.learner import make_training
from derex.training.trained import NETWORK, TrainedAgents, arrays_of, network_shape, restore_agents
from derex.types import Discrete, EnvironmentSpec

SEEDS = (3, 4)
OWN = "nowhere_to_be_found"

WriteRun = Callable[[Path, str, str], Path]


def exit_code(*arguments: Any) -> int:
    """The exit code as the shell would see it."""
    try:
        return cli.main(list(map(str, arguments)))
    except SystemExit as stop:
        return int(stop.code or 0)


def test_the_network_of_the_checkpoint_comes_back(
    runs: dict[str, Path], networks: Callable[..., AgentNetwork]
) -> None:
    for which, step in (("latest", 1024), ("best", 512), (512, 512), ("512", 512)):
        agents = restore_agents(runs["lstm"], which)
        assert (agents.step, agents.seeds, agents.problems) == (step, SEEDS, ())
        expected = arrays_of(networks("rooms-chain-2-hidden", agents.agent, SEEDS, step))
        found = arrays_of(agents.network)
        assert expected.keys() == found.keys()
        assert all(np.array_equal(expected[name], found[name]) for name in expected)
        one = arrays_of(agents.network_of(4))
        assert all(np.array_equal(expected[name][1], one[name]) for name in expected)
    assert agents.best_seed() == 4
    assert agents.scores() == {3: 3.5, 4: 4.5}  # up to the checkpoint's step
    assert OWN not in sys.modules


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, write_run: WriteRun) -> None:
    folder = write_run(tmp_path / "a", "catch", "feed-forward")
    manifest = folder / "checkpoints" / "1024" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"step"', b'"stop"'))
    agents = restore_agents(folder)
    assert agents.step == 512
    assert "manifest.json has changed" in agents.problems[0]


def test_what_does_not_fit_is_refused(tmp_path: Path, runs: dict[str, Path], write_run: WriteRun) -> None:
    with pytest.raises(ValueError, match="holds no run of derex train"):
        restore_agents(tmp_path)
    with pytest.raises(CheckpointError, match="Available steps"):
        restore_agents(runs["lstm"], 7)
    with pytest.raises(ValueError, match="has the seeds 3, 4; got 0"):
        restore_agents(runs["gaussian"]).network_of(0)
    folder = write_run(tmp_path / "a", "catch", "feed-forward")
    content = json.loads((folder / "config.json").read_text())
    content["config"]["agent"]["width"] = 16
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"agent\.width was 8, now 16. Restore config"):
        restore_agents(folder)
    state = {f"{NETWORK}/w": np.zeros(1, np.float32)}  # as another version may have saved it
    write_checkpoint(
        folder / "checkpoints" / "2048", Snapshot(2048, state, {}, {}, {}, None, content["config"])
    )
    with pytest.raises(CheckpointError, match=r"does not fit its config: .* expected \(2, 16"):
        restore_agents(folder)
    content["config"]["agent"]["wings"] = 2
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"this version of derex does not read: .*wings"):
        restore_agents(folder)


@pytest.mark.slow
def test_a_real_run_has_its_network_where_it_is_looked_for(tmp_path: Path) -> None:
    agent = AgentConfig(core="feed-forward", width=8, unroll=4, epochs=1, minibatches=1)
    config = TrainConfig("catch", tmp_path / "a", method="vmpo", steps=64, seeds=2, streams=8, agent=agent)
    train(config)
    restored, agents = restore_run(tmp_path / "a"), restore_agents(tmp_path / "a")
    assert (agents.step, agents.seeds) == (restored.step, (0, 1)) == (64, (0, 1))
    expected, found = arrays_of(restored.state.learner.trained.network), arrays_of(agents.network)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert find_runs([tmp_path])[0].env == "catch"


def test_training_keeps_the_network_where_it_is_looked_for(tmp_path: Path) -> None:
    config = TrainConfig("catch", tmp_path, method="vmpo", streams=8, agent=AgentConfig(width=8, unroll=4))
    training = make_training(config)
    state = jax.eval_shape(training.init, jax.random.key(0))
    paths = {path: leaf.shape for path, leaf in flatten_paths(state).items()}
    shape = network_shape(training.streams.spec.observation, training.policy, config.agent)
    own = {f"{NETWORK}/{path}": leaf.shape for path, leaf in flatten_paths(shape).items()}
    assert own == {name: shape for name, shape in paths.items() if name.startswith(NETWORK)}


# --- evaluation ------------------------------------------------------------------------------------------------------


def test_exactly_so_many_whole_episodes(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden rooms: episodes that succeed are short, and none of the long ones is missing."""
    from derex.training import evaluate as module

    monkeypatch.setattr(module, "MOST_STREAMS", 4)  # three rounds, the last with one too many
    agents = restore_agents(runs["lstm"])
    played = evaluate(agents, 11, seed=5)
    assert played.returns.shape == played.lengths.shape == (2, 11)
    assert np.array_equal(played.returns, (played.lengths < 50) | (played.returns == 1))
    assert set(np.unique(played.returns)) <= {0.0, 1.0}
    assert played.lengths.max() <= 50
    again = evaluate(agents, 11, seed=5)
    assert np.array_equal(played.lengths, again.lengths)
    summary = summarise(agents, played)
    assert [row["seed"] for row in summary["seeds"]] == [3, 4]
    assert summary["seeds"][0]["success"]["value"] == played.returns[0].mean()
    assert summary["over_seeds"]["length"]["value"] == pytest.approx(played.lengths.mean())


class Lottery:
    """An episode lasts one step or nine, as often the one as the other; each step returns 1."""

    spec = EnvironmentSpec("lottery", jax.ShapeDtypeStruct((1,), jnp.float32), Discrete(2), horizon=9)

    def reset(self, key):
        left = jnp.where(jax.random.uniform(key) < 0.5, 1, 9)
        return left, jnp.zeros(1)

    def step(self, state, action, key):
        return state - 1, jnp.zeros(1), jnp.float32(1), state == 1


def test_quick_episodes_are_not_favoured() -> None:
    """Streams that played on until there are enough would count nine short episodes for each long one."""
    agent = AgentConfig(core="feed-forward", width=2)
    shape = network_shape(Lottery.spec.observation, make_policy(Lottery.spec.action), agent)
    network = jax.tree.map(lambda leaf: jnp.ones((1, *leaf.shape)), shape)
    agents = TrainedAgents(Path(), {}, Lottery(), agent, network, (0,), 0)
    played = evaluate(agents, 600, seed=1)
    assert set(np.unique(played.lengths)) == {1, 9}
    assert np.array_equal(played.returns, played.lengths)
    assert abs(np.mean(played.lengths == 9) - 0.5) < 0.07
    assert "success" not in summarise(agents, played)["seeds"][0]


def test_greedy_is_another_policy(runs: dict[str, Path]) -> None:
    agents = restore_agents(runs["gaussian"])
    drawn, greedy = (evaluate(agents, 3, greedy=greedy) for greedy in (False, True))
    assert not np.array_equal(drawn.returns, greedy.returns)
    assert np.all(greedy.lengths == 100)


def test_evaluations_are_added_under_their_step(tmp_path: Path) -> None:
    entry = {"episodes": 5, "greedy": False, "seed": 0, "x": 1}
    for step, change in ((20, {}), (100, {}), (20, {"greedy": True}), (20, {"x": 2})):
        save_evaluation(tmp_path, step, entry | change)
    content = json.loads((tmp_path / "eval.json").read_text())
    assert list(content) == ["20", "100"]
    assert [(one["greedy"], one["x"]) for one in content["20"]] == [(True, 1), (False, 2)]


def test_eval_from_the_command_line(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "a", "catch", "feed-forward")
    assert exit_code("eval", folder, "--episodes", 40, "--seed", 1) == 0
    text = capsys.readouterr().out
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["3", "4", "all"]
    (entry,) = json.loads((folder / "eval.json").read_text())["1024"]
    assert entry["seeds"][0]["length"] == {"value": 9.0, "low": 9.0, "high": 9.0}
    assert {"episodes": 40, "greedy": False, "seed": 1}.items() <= entry.items()


# --- films -----------------------------------------------------------------------------------------------------------


def test_a_film_is_one_whole_episode(runs: dict[str, Path]) -> None:
    agents = restore_agents(runs["feed-forward"])
    filmed = film_episode(agents.environment, agents.network_of(3), seed=0)
    assert [one.step for one in filmed] == list(range(10))
    assert [one.last for one in filmed] == [False] * 9 + [True]
    assert {one.episode_return for one in filmed[:-1]} == {0.0}
    assert filmed[-1].episode_return == (1.0 if filmed[-1].success else -1.0)
    other = film_episode(agents.environment, agents.network_of(3), seed=0, number=1)
    assert any(not np.array_equal(a.picture, b.picture) for a, b in zip(filmed, other, strict=True))


def test_video_from_the_command_line(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.gif"
    assert exit_code("video", runs["feed-forward"], "--out", out, "--episodes", 2, "--greedy") == 0
    captured = capsys.readouterr()
    assert captured.out == f"seed 4 at step 1024, 20 pictures; in\n  {out}\n"
    assert "episode 2: 9 steps, return" in captured.err
    with GifImageFile(out) as image:
        assert image.n_frames == 20


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("eval", "{run}", "--episodes", "0"), "--episodes: expected 1 to 10000000, got 0"),
        (("eval", "{run}", "--seed", "-1"), "--seed: expected 0"),
        (("eval", "{run}", "--checkpoint", "7"), "Available steps"),
        (("eval", "{run}", "--checkpoint", "newest"), "--checkpoint: expected latest, best, or a step"),
        (("eval", "{out}"), "holds no run of derex train"),
        (("eval",), "folder of the run (required)"),
        (("video", "{run}"), "--out"),
        (("video", "{run}", "--out", "{out}/a.avi"), "ends in .gif or .mp4"),
        (("video", "{run}", "--out", "{out}/a.gif", "--fps", "0"), "--fps: expected 1 to 50"),
        (("video", "{run}", "--out", "{out}/a.gif", "--scale", "9"), "--scale: expected 1 to 8"),
        (("video", "{run}", "--out", "{out}/a.gif", "--episodes", "0"), "--episodes: expected 1 to 100"),
        (("video", "{run}", "--out", "{out}/a.gif", "--agent", "9"), "has the seeds 3, 4; got 9"),
        (("video", "{out}", "--out", "{out}/a.gif"), "holds no run of derex train"),
        (("export", "{run}", "--out", "{run}"), "is not empty and holds no exported agent"),
        (("export", "{run}", "--out", "{run}/config.json"), "is a file; give a folder"),
        (("export", "{run}", "--out", "{out}", "--agent", "9"), "has the seeds 3, 4; got 9"),
        (("export", "{run}", "--out", "{out}", "--checkpoint", "3"), "Available steps"),
    ],
)
def test_bad_input_is_2_and_nothing_is_written(
    arguments: tuple[str, ...],
    says: str,
    runs: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, out = runs["feed-forward"], tmp_path / "out"
    out.mkdir()
    before = sorted(run.rglob("*"))
    assert exit_code(*(word.format(run=run, out=out) for word in arguments)) == 2
    captured = capsys.readouterr()
    assert says in " ".join(captured.err.replace("│", " ").split())
    assert captured.out == ""
    assert sorted(run.rglob("*")) == before
    assert not any(out.iterdir())


def test_a_foreign_eval_json_is_refused_before_the_work(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "a", "catch", "feed-forward")
    (folder / "eval.json").write_text('{"1024": "mine"}')
    assert exit_code("eval", folder) == 2
    assert "eval.json is damaged or not of derex eval; move it away" in capsys.readouterr().err
    assert (folder / "eval.json").read_text() == '{"1024": "mine"}'
