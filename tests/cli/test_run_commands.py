"""`derex plot` and `derex envs`: from the command line to tables and files."""

import importlib
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from derex import cli
from derex._text import install_command
from derex.cli.envs import action_text, list_suites
from derex.envs import make, names, registry
from derex.envs.registry import SUITES
from derex.types import MultiDiscrete


def exit_code(*arguments: str) -> int:
    """The exit code as the shell would see it."""
    try:
        return cli.main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two seeds, the last line torn."""
    folder = tmp_path / "run"
    folder.mkdir()
    config = {"env": "catch", "method": "derex", "form": "states", "seed": 0, "seeds": 2}
    (folder / "config.json").write_text(json.dumps({"command": "train", "config": config}))
    lines = [
        {"step": step, "seed": seed, "return": step / 100 + seed, "success": None}
        for step in (100, 200)
        for seed in (0, 1)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + '{"step": 30')
    return folder


def table(text: str) -> list[list[str]]:
    """The cells of a printed table, its head first."""
    head, _, *rows = text.splitlines()
    return [line.split() for line in (head, *rows) if line]


def test_plot_prints_final_scores(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(run.parent.rglob("*"))
    assert exit_code("plot", str(run)) == 0
    _, row = table(capsys.readouterr().out)
    assert row == ["catch", "derex,", "states", "2", "200", "2.5", "[2,", "3]", "2.5", "2"]
    assert exit_code("plot", str(run), "--last", "100") == 0
    _, row = table(capsys.readouterr().out)
    assert row[5:8] == ["2", "[1.5,", "2.5]"]
    assert sorted(run.parent.rglob("*")) == before


@pytest.mark.parametrize("name", ["curves.png", "curves.html"])
def test_plot_writes_where_it_is_told(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run.parent / "new" / name
    assert exit_code("plot", str(run.parent), "--out", str(out), "--label", "folder") == 0
    assert capsys.readouterr().out.endswith(f"\n  {out}\n")
    assert out.stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("{run}", "--out", "{run}/a.pdf"), "ends in .png or .html"),
        (("{run}", "--last", "0"), "--last: expected percent above 0 and up to 100; got 0."),
        (("{run}", "--out", "{folder}.png"), "is a folder"),
        (("{run}", "--metric", "sucess"), "no run has 'sucess'"),
        (("{run}", "--metric", "success"), "no run has 'success'"),
        (("{run}/nowhere",), "dirs: "),
        (("{folder}.png",), "no run of derex train"),
        ((), "expected at least one folder"),
        (("{run}", "--lable", "folder"), "--label"),
    ],
)
def test_plot_refuses_and_writes_nothing(
    arguments: tuple[str, ...], says: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run.parent / "folder"
    folder.with_suffix(".png").mkdir()
    before = sorted(run.parent.rglob("*"))
    assert exit_code("plot", *(word.format(run=run, folder=folder) for word in arguments)) == 2
    captured = capsys.readouterr()
    assert says in " ".join(captured.err.replace("│", " ").split())
    assert captured.out == ""
    assert sorted(run.parent.rglob("*")) == before


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(command, "--help") == 0
    text = capsys.readouterr().out
    assert f"usage: derex {command}" in text
    assert f"examples:\n  derex {command}" in text


def test_train_help_begins_with_ten_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that people use; all others follow in named groups."""
    assert exit_code("train", "--help") == 0
    first, _, others = capsys.readouterr().out.partition(" logging options ")
    ten = ["env", "out", "method", "form", "preset", "steps", "seeds", "streams", "overwrite", "resume"]
    assert re.findall(r"^. --([\w.-]+)", first, re.MULTILINE) == ten
    assert all(f" {group} options " in others for group in ("workers", "numerics", "agent", "representation"))


def test_envs_lists_all_that_can_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("envs", "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["environments"]] == list(names())
    for each in found["environments"]:
        spec = make(each["example"]).spec
        assert (each["horizon"], each["states"]) == (spec.horizon, spec.n_states)
        assert each["success_return"] == spec.success_return
        assert 10 < len(each["summary"]) < 60
    by_name = {each["name"]: each for each in found["environments"]}
    assert by_name["four-rooms-pixels"]["observation"] == "uint8 (30, 30, 3)"
    assert by_name["catch"]["actions"] == "one of 3"
    assert by_name["point-mass"]["actions"] == "2 numbers in [-1, 1]"
    assert [suite["name"] for suite in found["suites"]] == list(SUITES)
    assert all(suite["example"].startswith(f"{suite['name']}:") for suite in found["suites"])
    assert action_text(MultiDiscrete((2, 3))) == "one of 2 × 3"


def test_envs_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("envs") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in names())
    assert all(f"{suite}:" in text for suite in SUITES)


def test_a_suite_that_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "is_installed", lambda suite: False)
    found = {suite["name"]: suite for suite in list_suites()}
    assert not any(suite["installed"] for suite in found.values())
    assert found["gymnax"]["install"] == install_command("gymnax")
    assert found["babyai"]["install"] == install_command("minigrid")
    assert found["dmlab"]["install"] == "no package; see docs/environments.md"


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_that_steps_many_at_once_says_so(suite: str) -> None:
    found = {each["name"]: each["runs"] for each in list_suites()}
    entry = SUITES[suite]
    threads = hasattr(importlib.import_module(entry.module), "make_many")
    assert found[suite] == (
        "on the accelerator" if not entry.host else "in threads" if threads else "in processes"
    )


def test_envs_lists_the_names_of_a_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("envs", "gymnax", "--json") == 0
    listed: list[str] = json.loads(capsys.readouterr().out)
    assert "gymnax:DeepSea-bsuite" in listed
    assert exit_code("envs", "gymnax") == 0
    assert capsys.readouterr().out.splitlines() == listed


def test_envs_of_an_unknown_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("envs", "gimnax") != 0
    assert "no suite 'gimnax'. Did you mean 'gymnax'?" in capsys.readouterr().err


def test_envs_of_a_missing_suite(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "craftax", None)
    monkeypatch.setattr(registry, "is_installed", lambda suite: False)
    assert exit_code("envs", "craftax") != 0
    assert f"craftax is not installed. {install_command('craftax')}" in capsys.readouterr().err


def test_an_environment_that_satisfies_the_interface_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("envs", "--check", "catch,recall-2") == 0
    text = capsys.readouterr().out
    assert "catch: passed\n  " in text
    assert "recall-2: passed\n  " in text


def test_a_step_of_five_values_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "five_values.py").write_text(
        "from derex.envs import make\n"
        "class Five:\n"
        "    inner = make('catch')\n"
        "    spec = inner.spec\n"
        "    def reset(self, key): return self.inner.reset(key)\n"
        "    def step(self, state, action, key): return (*self.inner.step(state, action, key), {})\n"
    )
    for command in (("envs", "--check", "jax:five_values:Five"), ("train", "--env", "jax:five_values:Five")):
        assert exit_code(*command, *(("--out", "a") if command[0] == "train" else ())) == 2
        error = capsys.readouterr().err
        assert "Five.step" in error
        assert "terminated" in error
    assert not (tmp_path / "a").exists()


def test_the_suites_are_extras() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = {suite.extra for suite in SUITES.values() if suite.extra}
    assert extras <= set(project["optional-dependencies"])


def test_a_suite_that_is_not_installed_is_2_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    assert cli.main(["train", "--env", "babyai:BabyAI-GoToObj-v0", "--out", str(tmp_path / "a")]) == 2
    assert install_command("minigrid") in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
