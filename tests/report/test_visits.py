"""Visits over time: the bounded record, its file and its figure."""

from pathlib import Path

import numpy as np
import pytest

from derex.report import runs
from derex.report.figures import visitation_figure
from derex.report.runs import VisitLog, Visits, load_visits, save_visits

PLACES = np.array([[0, 0], [0, 1], [0, 1]])


def logged(intervals: int, most: int, monkeypatch: pytest.MonkeyPatch) -> Visits:
    """Two seeds, three states; in interval i each state of seed s is seen i + s times, with a bonus of 0.5."""
    monkeypatch.setattr(runs, "MOST_INTERVALS", most)
    log = VisitLog("here", (3, 4), 3, PLACES)
    for interval in range(intervals):
        counts = np.broadcast_to(interval + np.arange(2.0)[:, None], (2, 3))
        log.add(10 * (interval + 1), counts, counts * 0.5)
    return log.visits()


@pytest.mark.parametrize("intervals", [0, 1, 4, 5, 8, 9, 17, 100])
def test_neighbours_are_merged_and_nothing_is_lost(intervals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    visits = logged(intervals, 4, monkeypatch)
    width = 1
    while intervals > 4 * width:
        width *= 2
    ends = [*range(width, intervals, width), intervals] if intervals else []
    assert visits.steps.tolist() == [10 * end for end in ends]
    rows = [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    assert visits.counts[:, 1, 2].tolist() == [sum(interval + 1 for interval in row) for row in rows]
    assert np.array_equal(visits.bonuses, visits.counts * 0.5)


def test_many_states_leave_room_for_few_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MOST_NUMBERS", 100)
    assert VisitLog("here", (0,), 10, None).most == 10
    assert VisitLog("here", (0, 1), 10, None).most == 4
    assert VisitLog("here", (0,), 10_000, None).most == 2


def test_the_file_holds_the_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    visits = logged(3, 4, monkeypatch)
    read = load_visits(save_visits(visits, tmp_path / "a.npz"))
    assert (read.name, read.seeds) == ("here", (3, 4))
    for name in ("steps", "counts", "bonuses", "positions"):
        assert np.array_equal(getattr(read, name), getattr(visits, name)), name
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert np.load(tmp_path / "a.npz")["counts"].shape == (3, 2, 3)


def test_parts_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = logged(5, 6, monkeypatch).merged(2)
    assert parts.steps.tolist() == [20, 50]
    assert parts.counts[:, 0, 0].tolist() == [0 + 1, 2 + 3 + 4]
    assert len(logged(3, 4, monkeypatch).merged(7).steps) == 3


def test_counts_must_fit() -> None:
    with pytest.raises(ValueError, match=r"counts and bonuses: .* got"):
        Visits("here", (0, 1), np.array([5]), np.zeros((1, 1, 3)), np.zeros((1, 1, 3)), PLACES)


@pytest.mark.parametrize(("shape", "wide"), [((4, 4), False), ((2, 20), True)])
@pytest.mark.parametrize("bonus", [0.0, 1.0])
def test_the_picture(shape: tuple[int, int], wide: bool, bonus: float, tmp_path: Path) -> None:
    from matplotlib.image import imread

    places = np.argwhere(np.ones(shape))
    log = VisitLog("here", (0, 1), len(places), places)
    rng = np.random.default_rng(0)
    for interval in range(7):
        counts = rng.poisson(1.5, (2, len(places))).astype(float)
        log.add(1000 * (interval + 1), counts, bonus * counts * rng.random(counts.shape))
    height, width, _ = imread(visitation_figure(log.visits(), tmp_path / "a.png")).shape
    if wide:
        assert height > 400  # five flat maps, one below another
    else:
        assert width > 1500  # five maps side by side
    assert (height if not wide else width) > (600 if bonus else 300)


def test_states_without_places_cannot_be_drawn(tmp_path: Path) -> None:
    log = VisitLog("here", (0,), 3, None)
    log.add(10, np.ones((1, 3)), np.ones((1, 3)))
    with pytest.raises(ValueError, match="visits: expected states with positions"):
        visitation_figure(log.visits(), tmp_path / "a.png")
