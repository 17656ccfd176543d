"""What a run refuses, and that nothing is touched by it: options, edited and damaged folders, code of others."""

import json
import math
import re
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

import derex.training.run
import derex.training.trained
from derex import load_agent
from derex._text import to_plain
from derex.agents.config import AgentConfig
from derex.cli import main
from derex.report.files import DamagedFileError
from derex.representations import Representation
from derex.representations.base import OptimisedTraining, no_auxiliary, track_nothing
from derex.representations.belief import BeliefConfig
from derex.representations.decomposed import DecompositionConfig
from derex.representations.histories import HistoriesConfig
from derex.representations.rnd import RndConfig
from derex.representations.states import StatesConfig
from derex.training import TrainConfig, load_config, restore_run, train
from derex.training.checkpoints import CheckpointError, write_manifest
from derex.training.config import check_types, from_plain
from derex.training.folder import FullDiskError
from derex.training.preflight import OtherRunError, OutOfMemoryError
from derex.training.trained import restore_agents

AGENT = AgentConfig(width=4, unroll=4, epochs=1, minibatches=1, core="feed-forward")
UPDATE = 4 * AGENT.unroll


def config_in(folder: Path, **changes: Any) -> TrainConfig:
    return replace(TrainConfig("catch", folder, "vmpo", streams=4, steps=2 * UPDATE, agent=AGENT), **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train(config_in(folder))
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """One that may be harmed."""
    return shutil.copytree(finished, tmp_path / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def edit(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((run / "config.json").read_text())
    change(content)
    (run / "config.json").write_text(json.dumps(content))


def edit_all(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Its checkpoints too, as if they had been saved so."""
    edit(run, change)
    for path in run.glob("checkpoints/*/manifest.json"):
        content = json.loads(path.read_text())
        change(content)
        path.unlink()
        path.with_suffix(".sha256").unlink()
        write_manifest(path.parent, content)


WRONG: list[tuple[type, str, Any]] = [
    (OptimisedTraining, "streams", 0),
    *((OptimisedTraining, name, value) for name in ("steps", "streams") for value in (-1, 10**9)),
    *((OptimisedTraining, name, x) for name in ("learning_rate", "clip") for x in (0.0, -1.0, math.nan, math.inf)),
    *((DecompositionConfig, "k", value) for value in (0, -1, 10**9)),
    *((DecompositionConfig, name, x) for name in ("sigma_floor", "episodic") for x in (-1.0, math.nan, math.inf)),
    *((DecompositionConfig, "statistics_decay", value) for value in (-1.0, 2.0, math.nan, math.inf)),
    *((DecompositionConfig, "limit", value) for value in (0.0, -1.0, math.nan)),
    *((form, "lambda_b", value) for form in (BeliefConfig, HistoriesConfig, StatesConfig, RndConfig)
      for value in (-1.0, math.nan, math.inf)),
    *((BeliefConfig, "weight", value) for value in (-1.0, math.nan, math.inf)),
    *((form, "width", value) for form in (HistoriesConfig, StatesConfig, RndConfig) for value in (0, -1, 10**9)),
    *((RndConfig, "k", value) for value in (0, -1)),
    (DecompositionConfig, "lambda_r", -1.0), (DecompositionConfig, "objective", "svd"),
    *((form, "tests", value) for form in (BeliefConfig, HistoriesConfig) for value in (0, "end")),
]  # fmt: skip
PLACES = {OptimisedTraining: "training.", DecompositionConfig: "decomposition."}


@pytest.mark.parametrize(("part", "name", "value"), WRONG)
def test_options_of_representations(part: type, name: str, value: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"^representation\.{PLACES.get(part, '')}{name}: expected .*got '?{value}"
    ):
        part(**{name: value})


@pytest.mark.parametrize("name", ["steps", "log_every", "streams", "seeds"])
def test_numbers_beyond_all_measure(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: expected .* at most"):
        config_in(tmp_path, **{name: 10**400})


@pytest.mark.parametrize("name", ["width", "unroll", "epochs", "minibatches"])
def test_numbers_of_agents_beyond_all_measure(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^agent\.{name}: expected at least 1 and at most"):
        from_plain(AgentConfig(), {name: 10**9})


def test_a_core_that_there_is_not(tmp_path: Path) -> None:
    config = TrainConfig("catch", tmp_path / "run", "vmpo", agent=AgentConfig(core="gru"))
    with pytest.raises(ValueError, match=r"^agent\.core: expected one of lstm, feed-forward; got 'gru'"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_an_infinite_limit_is_written_and_read() -> None:
    form = StatesConfig(DecompositionConfig(limit=math.inf))
    plain = json.loads(json.dumps(to_plain(form, "text"), allow_nan=False))
    assert from_plain(StatesConfig(), plain) == form


@dataclass(frozen=True)
class Broken:
    """A method whose networks cannot be made."""

    def build(self) -> Representation:
        return Representation(self._init, no_auxiliary, track_nothing, self._init, lambda state: {})

    def _init(self, *_: Any) -> Any:
        raise ValueError("size: this world is too large")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_mistake_that_shows_late_touches_nothing(overwrite: bool, run: Path, tmp_path: Path) -> None:
    before = contents(run)
    out = run if overwrite else tmp_path / "new"
    with pytest.raises(ValueError, match="this world is too large"):
        train(config_in(out, method="test_refused:Broken", overwrite=overwrite))
    assert contents(run) == before
    assert not (tmp_path / "new").exists()


def test_what_memory_cannot_hold_is_refused_before_the_old_run_is_touched(run: Path) -> None:
    before = contents(run)
    with pytest.raises(
        OutOfMemoryError, match=r"need [\d,]{15,} bytes.*this machine has .*Lower --agent.width"
    ):
        train(config_in(run, agent=replace(AGENT, width=2**20), overwrite=True))
    assert contents(run) == before


@pytest.mark.parametrize("case", ["new", "overwrite", "resume"])
def test_a_full_disk_is_noticed_before_anything_is_touched(
    case: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(run)
    assert train(config_in(run)).finished_before  # the control: what takes no room is done
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=1 << 30, free=0))
    out = tmp_path / "a" / "new" if case == "new" else run
    with pytest.raises(FullDiskError, match=r"--out: the disk of .* is full: .*Free some space"):
        train(config_in(out, steps=4 * UPDATE, overwrite=case == "overwrite"))
    assert contents(run) == before
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("error", [JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), MemoryError()])
def test_memory_that_runs_out_is_one_line(
    error: Exception, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(derex.training.learner.JaxTraining, "open_loop", fail)
    assert main(["train", "--resume", str(run), "--steps", str(4 * UPDATE)]) == 2
    said = capsys.readouterr().err
    assert "derex: error: out of memory: " in said
    assert "Lower --agent.width" in said
    monkeypatch.setattr(derex.training.trained, "load_arrays", fail)
    assert main(["eval", str(run)]) == 2
    assert "derex: error: out of memory: " in capsys.readouterr().err


@pytest.mark.parametrize("method", ["os:system", "json:JSONDecodeError", ":"])
def test_code_that_is_no_method(method: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^method: "):
        train(config_in(tmp_path / "new", method=method))


@pytest.mark.parametrize(
    "env", ["jax:evil:World", "dm_env:evil:world", "gymnasium:evil:World-v0", "catch,jax:evil:World"]
)
def test_environments_of_others_are_not_imported_unless_named(
    env: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    edit(run, lambda content: content["config"].update(env=env))
    for command in (["eval", str(run)], ["video", str(run), "--out", str(tmp_path / "a.gif")],
                    ["export", str(run), "--out", str(tmp_path / "model")],
                    ["train", "--resume", str(run), "--steps", "1000"]):  # fmt: skip
        assert main(command) == 2
        assert f"add --env {env}" in capsys.readouterr().err
    assert "evil" not in sys.modules
    with pytest.raises(SystemExit, match="it ran"):
        restore_agents(run, env=env)


def test_an_environment_of_ones_own_is_named_and_loaded(run: Path) -> None:
    own = "jax:derex.envs.diagnostic:Catch"
    edit_all(run, lambda content: content["config"].update(env=own))
    assert restore_agents(run, env=own).step == 2 * UPDATE
    assert load_config(run, env=own).env == own


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no config": lambda content: content.pop("config"),
    "no dict": lambda content: content.update(config=5),
    "no agent": lambda content: content["config"].pop("agent"),
    "an agent of another kind": lambda content: content["config"].update(agent=[]),
    "seeds in words": lambda content: content["config"].update(seeds="1"),
    "an environment that is a number": lambda content: content["config"].update(env=5),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_config(damage: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(run, DAMAGE[damage])
    before = contents(run)
    for command in (["eval", str(run)], ["train", "--resume", str(run), "--steps", "1000"]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "damaged" in said or "agent" in said
    assert contents(run) == before


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("steps", None, "steps: expected a number, got None"),
        ("streams", 8.0, "streams: expected a whole number, got 8.0"),
        ("seed", 0.5, "seed: expected a whole number, got 0.5"),
        ("keep", 2.5, "keep: expected a whole number, got 2.5"),
        ("deterministic", "no", "deterministic: expected true or false, got 'no'"),
        ("loggers", "wandb", "loggers: expected a list, got 'wandb'"),
        ("agent", {"width": 8.5}, "agent.width: expected a whole number, got 8.5"),
        ("agent", {"gamma": "high"}, "agent.gamma: expected a number, got 'high'"),
        ("agent", 5, "agent: expected AgentConfig, got 5"),
    ],
)
def test_options_of_another_type(name: str, value: Any, says: str, run: Path, tmp_path: Path) -> None:
    """In a file that was edited, and from Python."""
    edit(run, lambda content: content["config"].update({name: value}))
    with pytest.raises(ValueError, match=rf"config\.json is damaged: {re.escape(says)}\.$"):
        load_config(run)
    config = config_in(tmp_path, agent=replace(AGENT))
    place, (part, wrong) = (
        (config.agent, *value.items()) if isinstance(value, dict) else (config, (name, value))
    )
    object.__setattr__(
        place, part, wrong
    )  # in tests the types of arguments are checked before, and in other words
    with pytest.raises(ValueError, match=rf"^{re.escape(says)}\.$"):
        check_types(config)


def test_a_config_that_was_edited_is_refused_by_field(run: Path) -> None:
    edit(run, lambda content: content["config"]["agent"].update(gamma=0.19))
    before = contents(run)
    asked = replace(load_config(run), out=run, steps=4 * UPDATE)
    with pytest.raises(OtherRunError, match=r"config.json .*agent\.gamma was 0\.99, now 0\.19"):
        train(asked)
    assert contents(run) == before


def test_a_checkpoint_of_another_run_is_refused_by_field(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(run, lambda content: content["config"].update(seed=5))
    for command in (["eval", str(run)], ["video", str(run), "--out", str(tmp_path / "a.gif")],
                    ["export", str(run), "--out", str(tmp_path / "model")]):  # fmt: skip
        assert main(command) == 2
        assert "does not match the config.json of its run: seed was 0, now 5" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="seed was 0, now 5"):
        restore_run(run)


def test_a_run_of_an_older_version_goes_on(run: Path) -> None:
    """It had no field that was added later; but what config.json says since is held to the default."""
    edit_all(run, lambda content: content["config"]["agent"].pop("reward_floor"))
    edit_all(run, lambda content: content["config"].pop("max_skipped"))
    assert train(replace(load_config(run), out=run, steps=3 * UPDATE)).final[0]["step"] == 3 * UPDATE
    edit(run, lambda content: content["config"]["agent"].update(reward_floor=0.5))
    with pytest.raises(OtherRunError, match=r"agent\.reward_floor was 0\.0, now 0\.5"):
        train(replace(load_config(run), out=run, steps=4 * UPDATE))


@pytest.mark.parametrize(("command", "name"), [("video", "a.gif"), ("export", "model"), ("plot", "a.png")])
def test_results_that_would_have_no_place(
    command: str, name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said before the work is done."""
    (tmp_path / "file").write_text("mine")
    assert main([command, str(run), "--out", str(tmp_path / "file" / name)]) == 2
    assert f"--out: {tmp_path / 'file'} is a file" in capsys.readouterr().err


def test_an_exported_agent_without_its_parameters(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "model")]) == 0
    (tmp_path / "model" / "agent.safetensors").unlink()
    with pytest.raises(DamagedFileError, match="is damaged"):
        load_agent(tmp_path / "model")


def test_all_of_it_without_a_network(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained on, evaluated, filmed, drawn, exported, where no connection can be made; pages hold all they need."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("there is no network")

    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    page = tmp_path / "curves.html"
    assert main(["train", "--resume", str(run), "--steps", str(4 * UPDATE)]) == 0
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    assert main(["video", str(run), "--out", str(tmp_path / "film.gif")]) == 0
    assert main(["plot", str(run), "--out", str(page)]) == 0
    assert main(["export", str(run), "--out", str(tmp_path / "model")]) == 0
    assert load_agent(tmp_path / "model").card["step"] == 4 * UPDATE
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']?(?:https?:)?//", page.read_text())


def test_a_torn_last_line_of_a_finished_run_is_no_matter(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3')
    assert train(config_in(run)).final[0]["step"] == 2 * UPDATE


@pytest.mark.parametrize("text", ["", "not JSON\n", '{"step": 16, "seed": 0}\n'])
def test_damaged_metrics_of_a_finished_run(text: str, run: Path) -> None:
    (run / "metrics.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"metrics\.jsonl .*damaged.*--overwrite"):
        train(config_in(run))


def test_metrics_that_are_gone_are_missed(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 32, "seed": 0}\n')
    before = contents(run)
    with pytest.raises(ValueError, match=r"has a damaged line: expected step, seed, return, success"):
        train(config_in(run, steps=3 * UPDATE))
    assert contents(run) == before
    (run / "metrics.jsonl").unlink()
    train(config_in(run, steps=3 * UPDATE))
    assert (
        f'"missing metrics", "problem": "metrics.jsonl lacks lines of step {2 * UPDATE}'
        in (run / "events.jsonl").read_text()
    )


def test_beginning_again_leaves_nothing_of_the_old_run(run: Path) -> None:
    (run / "eval.json").write_text("{}")
    (run / "tensorboard").mkdir()
    (run / "mine.txt").write_text("mine")
    train(config_in(run, overwrite=True))
    assert not (run / "eval.json").exists()
    assert not (run / "tensorboard").exists()
    assert (run / "mine.txt").read_text() == "mine"
