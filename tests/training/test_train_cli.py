"""`derex train` from the command line to the files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from derex import cli
from derex.agents import AgentConfig
from derex.cli.train import parse_config
from derex.representations.states import StatesConfig
from derex.training import DivergedError, Stopped, load_config, read_metrics, run
from derex.training.presets import exploration_agent, exploration_form

TINY = ("--streams", "16", "--agent.width", "16", "--agent.unroll", "8", "--agent.epochs", "1")
TINY = (*TINY, "--agent.minibatches", "2", "--agent.core", "feed-forward")


def exit_code(*arguments: str) -> int:
    """The exit code as the shell would see it."""
    try:
        return cli.main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.slow
def test_a_run_without_numbered_states(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "a"
    run = ("train", "--env", "catch", "--method", "vmpo", "--steps", "1e3", "--log-every", "512", *TINY)
    assert exit_code(*run, "--out", str(out)) == 0
    captured = capsys.readouterr()
    head, _, row = (line.split() for line in captured.out.splitlines()[:3])
    assert head[:4] == ["seed", "step", "return", "success"]
    assert row[:2] == ["0", "1024"]
    assert captured.out.endswith(f"results in\n  {out}\n")
    lines = read_metrics(out)
    assert [line["step"] for line in lines] == [512, 1024]
    assert all(-1 <= line["return"] <= 1 and 0 <= line["success"] <= 1 for line in lines)
    assert all(line["episode_length"] == 9 for line in lines)
    assert not {"spectrum", "states_seen", "bonus_rank_correlation"} & set(lines[0])
    assert sorted(path.name for path in out.iterdir()) == ["checkpoints", "config.json", "metrics.jsonl"]
    assert load_config(out).agent.width == 16

    assert exit_code(*run, "--out", str(out)) == 0
    assert "already finished, at step 1024" in capsys.readouterr().err
    assert exit_code(*run, "--out", str(out), "--agent.gamma", "0.5") == 2
    assert "agent.gamma was 0.99, now 0.5" in capsys.readouterr().err
    assert exit_code("train", "--resume", str(out), "--steps", "2e3") == 0
    assert "resumes from step 1024" in capsys.readouterr().err
    assert [line["step"] for line in read_metrics(out)] == [512, 1024, 1536, 2048]
    assert exit_code(*run, "--out", str(out), "--overwrite") == 0
    assert len(read_metrics(out)) == 2


def test_a_run_with_numbered_states(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "a"
    options = ("--representation.decomposition.k", "4", "--representation.width", "16")
    run = ("train", "--env", "rooms-chain-2", "--form", "states", "--steps", "256", "--seeds", "2", *TINY)
    assert exit_code(*run, *options, "--representation.training.steps", "2", "--out", str(out)) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:4]]
    assert [row[:2] for row in rows] == [["0", "256"], ["1", "256"]]
    assert len(read_metrics(out)) == 2 * 2
    names = {"checkpoints", "config.json", "metrics.jsonl", "visitation.npz", "visitation.png"}
    assert {path.name for path in out.iterdir()} == names
    assert (
        json.loads((out / "config.json").read_text())["config"]["representation"]["decomposition"]["k"] == 4
    )


def test_a_run_that_diverges_is_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*arguments: object) -> None:
        raise DivergedError("training diverged by step 8")

    monkeypatch.setattr(run, "train", diverge)
    assert exit_code("train", "--env", "catch", "--out", "a") == 2
    assert "derex: error: training diverged by step 8" in capsys.readouterr().err


@pytest.mark.parametrize(("signal_name", "code"), [("Ctrl-C", 130), ("SIGTERM", 0)])
def test_a_stopped_run_has_the_exit_code_of_its_signal(
    signal_name: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise Stopped("stopped at step 8", signal_name)

    monkeypatch.setattr(run, "train", stop)
    assert exit_code("train", "--env", "catch", "--out", "a") == code
    assert "stopped at step 8" in capsys.readouterr().err


def test_what_may_change_when_a_run_is_resumed_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("train", "--resume", "runs/a", "--help") == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("--resume", "--steps", "--log-every", "--save-every", "--keep"))
    assert "--agent.gamma" not in text
    assert "derex train --resume runs/catch --steps 2e7" in text


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (
            (),
            ("--representation.tests", "--representation.training.steps", "--agent.width", "--seeds", "1e7"),
        ),
        (("--form", "states"), ("--representation.lambda-b", "--representation.decomposition.k")),
        (("--method", "derex", "--form", "belief"), ("--representation.weight", "w_loss")),
        (("--method=rnd",), ("--representation.normalise, --representation.no-normalise",)),
    ],
)
def test_help_shows_the_options_of_the_method(
    arguments: tuple[str, ...], shown: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("train", *arguments, "--help") == 0
    text = capsys.readouterr().out
    assert all(option in text for option in shown)
    assert "examples:\n  derex train --env" in text
    assert ("--representation.tests" in text) == (
        "states" not in arguments and "--method=rnd" not in arguments
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--env", "catc"), "there is no environment 'catc'. Did you mean 'catch'?"),
        (("--env", "rooms-chain-0"), "expected 1 to 1000"),
        (("--env", "catch", "--method", "drex"), "Did you mean 'derex'?"),
        (
            ("--env", "catch", "--form", "state"),
            "derex has the forms histories, states, belief; got 'state'.",
        ),
        (("--env", "catch", "--method", "nowhere:Representation"), "could not be imported"),
        (("--env", "catch", "--preset", "explore"), "no preset 'explore'. Did you mean 'exploration'?"),
    ],
)
def test_bad_names_are_one_line_and_2(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert exit_code("train", *arguments, "--out", str(tmp_path / "a")) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith("derex: error: ")
    assert says in captured.err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--env", "catch"), "--out"),
        (("--out", "a"), "--env"),
        (("--env", "catch", "--out", "a", "--agent.wdth", "3"), "--agent.width"),
        (("--env", "catch", "--out", "a", "--steps", "0"), "steps: expected a whole number"),
        (("--resume", "nowhere"), "nowhere holds no run of derex train"),
        (("--resume", "nowhere", "--seeds", "3"), "--seeds"),
        (("--env", "catch", "--out", "a", "--keep", "0"), "keep: expected at least 1"),
        (("--env", "catch", "--out", "/proc/nowhere/a"), "cannot be written to"),
        (("--env", "catch", "--out", "a", "--representation.k", "3"), "--representation"),
    ],
)
def test_bad_options_are_2(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("train", *arguments) == 2
    assert says in capsys.readouterr().err


def test_a_preset_gives_defaults_that_options_override() -> None:
    asked = ("--preset", "exploration", "--env", "rooms-chain-8", "--form", "states", "--out", "a")
    config = parse_config([*asked, "--agent.unroll", "16", "--representation.lambda-b", "0.5"])
    expected = exploration_form("rooms-chain-8", "derex", "states")
    assert config.agent == replace(exploration_agent("rooms-chain-8"), unroll=16)
    assert isinstance(expected, StatesConfig)
    assert config.representation == replace(expected, lambda_b=0.5)
    assert config.resolved().agent == config.agent
    assert parse_config(["--env", "rooms-chain-8", "--out", "a"]).agent == AgentConfig()
