"""The command: help that can be read, errors that say what to do, exit codes that scripts can trust."""

import dataclasses
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from derex import __version__, cli
from derex.cli import parsing, studies
from derex.report import Table
from derex.studies.common import StudyResult
from derex.studies.definitions import StudyOptions


@dataclass(frozen=True)
class FakeStudy(StudyOptions):
    """Figure 0: a study for these tests."""

    out: Path = Path("results/fake")
    """folder for the results"""
    quick: bool = False
    """a short look"""
    seeds: int = 3
    """how many seeds"""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"--seeds: got {self.seeds}; give at least 1.")


ran: list[FakeStudy] = []
raises: list[BaseException] = []


def fake_run(config: FakeStudy) -> StudyResult:
    """Notes the config; raises what a test has put into raises."""
    if raises:
        raise raises[0]
    ran.append(config)
    rows = (("error [σ₁]", f"0.{config.seeds}25"), ("bonus", "1.50"))
    return StudyResult(config.out / "report.html", Table("Figure 0", ("what", "learnt"), rows))


@pytest.fixture(autouse=True)
def fake_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every study is the fake one."""
    ran.clear()
    raises.clear()
    monkeypatch.delenv("DEREX_TRACEBACK", raising=False)
    fake = studies.Study(f"{__name__}:FakeStudy", f"{__name__}:fake_run", "Figure 0: fake")
    monkeypatch.setattr(studies, "STUDIES", dict.fromkeys(studies.STUDIES, fake))


def exit_code(*arguments: str) -> int:
    """The exit code as the shell would see it."""
    try:
        return cli.main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"derex {__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("-h",), ("--help",)])
def test_help_names_every_command_within_80_columns(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {command} " in text for command in cli.COMMANDS)
    assert text.rstrip().endswith("derex reproduce tabular --quick")
    assert max(map(len, text.splitlines())) <= 84


def test_reproduce_help_lists_the_studies(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("reproduce", "--help") == 0
    text = capsys.readouterr().out
    assert [line.split()[0] for line in text.splitlines() if line.endswith("Figure 0: fake")] == [
        "tabular",
        "pixels",
        "unseen",
        "asymmetry",
        "pomdp",
        "exploration",
    ]


def test_reproduce_without_a_study_is_bad_input_and_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("reproduce") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "studies:" in captured.err


def test_a_studys_help_has_its_fields_then_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("reproduce", "tabular", "--help") == 0
    text = capsys.readouterr().out
    places = [
        text.index(part)
        for part in ("usage: derex reproduce tabular", "Figure 0: a study", "a short look", "examples:")
    ]
    assert places == sorted(places)
    assert "--no-quick" not in text
    assert not ran


def test_options_reach_the_study_and_its_numbers_are_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert exit_code("reproduce", "unseen", "--out", str(tmp_path), "--seeds", "7", "--quick") == 0
    assert ran == [FakeStudy(tmp_path, quick=True, seeds=7)]
    captured = capsys.readouterr()
    assert "error [σ₁]" in captured.out  # brackets are text, not markup
    assert "0.725" in captured.out
    assert f"  {tmp_path / 'report.html'}\n" in captured.out
    assert "unseen (quick)" in captured.err


def test_demo_runs_both_figures_quick_into_folders_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert exit_code("demo", "--out", str(tmp_path)) == 0
    assert ran == [FakeStudy(tmp_path / "tabular", quick=True), FakeStudy(tmp_path / "pixels", quick=True)]
    text = capsys.readouterr().out
    assert text.count("learnt") == 1  # one table
    assert text.count("0.325") == 2
    assert f"  {tmp_path / 'tabular' / 'report.html'}\n  {tmp_path / 'pixels' / 'report.html'}\n" in text


def test_tables_of_different_columns_are_joined(capsys: pytest.CaptureFixture[str]) -> None:
    one = StudyResult(Path("a.html"), Table("a", ("what", "learnt"), (("error", "0.25"),)))
    two = StudyResult(Path("b.html"), Table("b", ("what", "exact"), (("error", "0.75"),)))
    studies.show([("a", one), ("b", two)])
    head, _, first, second = (line.split() for line in capsys.readouterr().out.splitlines()[:4])
    assert head == ["study", "what", "learnt", "exact"]
    assert first == ["a", "error", "0.25"]
    assert second == ["b", "error", "0.75"]


@pytest.mark.parametrize("width", [20, 80, 120])
def test_a_narrow_terminal_loses_no_cell(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    columns = [f"a long head for column {place}" for place in range(9)]
    parsing.print_table(columns, [[f"0.{place}125" for place in range(9)]])
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert all(f"0.{place}125" in text for place in range(9))
    assert max(map(len, text.splitlines())) <= max(width, 9 * (6 + 2))


def test_wide_columns_wrap_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "22")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    parsing.print_table(["captured energy", "map"], [["0.25", "four-rooms"]])
    head, more, _, row, *_ = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert (head.split(), more.split()) == (["captured"], ["energy", "map"])
    assert row.split() == ["0.25", "four-rooms"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("demmo",), "there is no command 'demmo'. Did you mean 'derex demo'?"),
        (("tabluar",), "Did you mean 'derex reproduce tabular'?"),
        (("--verison",), "there is no option '--verison'. Did you mean 'derex --version'?"),
        (("qqq",), "Commands: demo, reproduce, train, envs, eval, video, plot, export, doctor."),
        (
            ("reproduce", "tabluar"),
            "there is no study 'tabluar'. Did you mean 'derex reproduce tabular'?",
        ),
        (("reproduce", "qqq"), "Studies: tabular, pixels, unseen, asymmetry, pomdp, exploration."),
        (("reproduce", "--quick", "tabular"), "name the study before its options"),
    ],
)
def test_bad_input_is_one_line_and_2(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("derex: error: ")
    assert says in captured.err
    assert not ran


def test_a_misspelt_option_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("reproduce", "tabular", "--sedes", "3") == 2
    text = capsys.readouterr().err
    assert "--seeds" in text
    assert not ran


def test_a_value_that_the_config_refuses_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("reproduce", "tabular", "--seeds", "0") == 2
    assert "--seeds: got 0; give at least 1." in capsys.readouterr().err
    assert not ran


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("k: got 0;\n  give at least 1."), "k: got 0; give at least 1."),
        (FileExistsError("--out: x is not empty"), "--out: x is not empty"),
        (NotADirectoryError("--out: x is a file"), "--out: x is a file"),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied"),
        (OSError(28, "No space left on device", "/x"), "/x: No space left on device"),
    ],
)
def test_what_a_study_refuses_is_one_line_and_2(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raises.append(error)
    assert exit_code("reproduce", "tabular") == 2
    assert capsys.readouterr().err.splitlines()[1:] == [f"derex: error: {line}"]
    monkeypatch.setenv("DEREX_TRACEBACK", "1")
    assert exit_code("reproduce", "tabular") == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback() -> None:
    raises.append(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["reproduce", "tabular"])


def test_ctrl_c_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    raises.append(KeyboardInterrupt())
    assert exit_code("demo") == 130
    assert "derex: stopped." in capsys.readouterr().err


def test_the_process_returns_the_exit_code() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "derex.cli", "reproduce", "tabluar"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    assert answer.stderr.startswith("derex: error: there is no study 'tabluar'.")


@pytest.mark.parametrize("arguments", [("--help",), ("train", "--help"), ("envs", "dmlab30")])
def test_a_reader_who_leaves_is_no_error(arguments: tuple[str, ...]) -> None:
    """As in `derex envs | head -1`: quiet, with the code that a shell has for SIGPIPE."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "derex.cli", *arguments],
            stdout=writes,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writes)
    assert (answer.returncode, answer.stderr) == (141, b"")


def test_other_pipes_that_break_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    raises.append(BrokenPipeError(32, "Broken pipe", "a worker's"))
    assert exit_code("demo") == 2
    assert "a worker's: Broken pipe" in capsys.readouterr().err


REAL = dict(studies.STUDIES)


@pytest.mark.parametrize("name", REAL)
def test_the_studies_are_where_the_table_says(name: str) -> None:
    config, run = _find(REAL[name].config), _find(REAL[name].run)
    assert callable(run)
    assert config.__dataclass_params__.frozen
    assert {"out", "quick", "seeds"} <= {field.name for field in dataclasses.fields(config)}
    assert config().quick is False
    assert config().out == Path("results") / name


def _find(path: str) -> Any:
    """The object at `module:attribute`; skips where the module is not written yet."""
    module, _, attribute = path.partition(":")
    file = Path(cli.__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
    if not file.exists():
        pytest.skip(f"{module} is not written yet")
    return getattr(import_module(module), attribute)
