"""Progress where there is no terminal: few lines, with what matters in them."""

import time

import pytest

from derex.studies.common import StudyProgress
from derex.training.logging import Progress, TrainProgress, news_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that goes when it is told to."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_run_speaks_every_half_minute(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with TrainProgress("catch [vmpo]", 1_000_000, 2) as progress:
        assert isinstance(progress, Progress)
        progress.compiled(12.0)
        lines = [{"return": 0.25, "success": None}, {"return": 0.75, "success": None}]
        for step in range(100_000, 800_001, 100_000):
            progress.advanced(step, 20_000.0)
            progress.logged(lines)
            clock[0] += 11
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "catch [vmpo]  400k/1M, 20k steps/s, 60 s left  return 0.5",
        "catch [vmpo]  700k/1M, 20k steps/s, 30 s left  return 0.5",
    ]


def test_bonus_and_spectrum_are_told() -> None:
    """Means over the seeds that have a number; the spectrum by its ends over all of them."""
    first = {"return": 0.25, "success": None, "bonus": 1.0, "spectrum": [0.9, 0.5]}
    second = {"return": 0.75, "success": 0.5, "bonus": 2.0, "spectrum": [0.8, 0.125]}
    assert news_of([first, second]) == "return 0.5  success 0.5  bonus 1.5  Σ̃ 0.12–0.90"
    assert news_of([{"return": None, "success": None}]) == ""


def test_a_study_speaks_of_each_fit(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with StudyProgress("study", 3) as progress:
        progress.skip()
        progress.start("fit [a]")
        for done in (10, 20, 30, 40):
            progress.within(done, 50, "loss 1")
            clock[0] += 20
        progress.finish("good")
    assert capsys.readouterr().err.splitlines() == [
        "study  fit [a]: update 30/50, 0.5/s, 40 s left, loss 1",
        "study  2/3  fit [a]: good",
    ]
