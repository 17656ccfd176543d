"""Progress where stderr is not a terminal: few lines, with the numbers that matter."""

import time

import pytest

from derex.progress import ProgressBar, short_count
from derex.training.logging import TrainingBar, TrainingProgress, summarise_lines


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that advances when told to."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_run_prints_a_line_every_half_minute(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressBar("catch [vmpo]") as bar:
        bar.start()
        progress = TrainingBar(bar, 1_000_000, seeds=2)
        assert isinstance(progress, TrainingProgress)
        progress.compiling()
        progress.compiled(12.0)
        lines = [{"return": 0.25, "success": None}, {"return": 0.75, "success": None}]
        for step in range(100_000, 800_001, 100_000):
            progress.advanced(step, 20_000.0)
            progress.logged(lines)
            clock[0] += 11
    captured = capsys.readouterr()
    assert captured.out == ""
    first, *rest = captured.err.splitlines()
    assert first.startswith("catch [vmpo]  compiling, usually ")
    assert rest == [
        "catch [vmpo]  400k/1M, 20k steps/s, 60 s left  return 0.5",
        "catch [vmpo]  700k/1M, 20k steps/s, 30 s left  return 0.5",
    ]


def test_bonus_and_spectrum_are_summarised() -> None:
    """Means over the seeds that have a number; the spectrum by its range over all of them."""
    first = {"return": 0.25, "success": None, "bonus": 1.0, "spectrum": [0.9, 0.5]}
    second = {"return": 0.75, "success": 0.5, "bonus": 2.0, "spectrum": [0.8, 0.125]}
    assert summarise_lines([first, second]) == "return 0.5  success 0.5  bonus 1.5  Σ̃ 0.12–0.90"
    assert summarise_lines([{"return": None, "success": None}]) == ""


def test_a_study_prints_the_result_of_each_fit(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressBar("study", 3) as bar:
        bar.finish()
        bar.start("fit [a]")
        for done in (10, 20, 30, 40):
            bar.update(done, 50, "loss 1")
            clock[0] += 20
        bar.finish("good")
    assert capsys.readouterr().err.splitlines() == [
        "study  fit [a]: 30/50, 0.5 steps/s, 40 s left  loss 1",
        "study  2/3  fit [a]: good",
    ]


def test_a_disabled_bar_prints_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("fit", enabled=False) as bar:
        bar.start()
        clock[0] += 100
        bar.update(1, 2, "loss 1")
        bar.finish("done")
    assert capsys.readouterr() == ("", "")


def test_short_count() -> None:
    assert [short_count(number) for number in (0, 950, 12_345, 4.5e6, 2e9)] == [
        "0",
        "950",
        "12.3k",
        "4.5M",
        "2B",
    ]
