"""Records and figures of the partially observed four rooms."""

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from derex.report import (
    BeliefTrack,
    GridMap,
    HistoryCloud,
    StateBonus,
    beliefs_figure,
    bonus_maps_figure,
    slices_figure,
)
from derex.report.panels import belief_panel, slice_panel

GRID = GridMap(
    "tiny", ("#####", "#...#", "#.#.#", "#####"), np.array([[1, 1], [1, 2], [1, 3], [2, 1], [2, 3]])
)
OTHER = GridMap("other", ("....",), np.array([[0, 0], [0, 1], [0, 2], [0, 3]]))


def cloud(k: int = 3, m: int = 60, title: str = "p = 0.3") -> HistoryCloud:
    rng = np.random.default_rng(k)
    return HistoryCloud(title, GRID, rng.integers(0, GRID.n, m), rng.normal(size=(m, k)))


def track(steps: int = 30, **changes) -> BeliefTrack:
    rng = np.random.default_rng(1)
    beliefs = tuple((label, rng.dirichlet(np.full(GRID.n, 0.3), steps)) for label in ("decoded", "exact é"))
    fields: dict[str, Any] = {
        "title": "p = 0.6",
        "map": GRID,
        "frames": rng.integers(0, 256, (4, 6, 7, 3), dtype=np.uint8),
        "frame": rng.integers(0, 4, steps),
        "state": rng.integers(0, GRID.n, steps),
        "beliefs": beliefs,
    }
    return BeliefTrack(**{**fields, **changes})


def bonuses(count: int) -> list[StateBonus]:
    values = np.array([1.0, 2.0, np.nan, 4.0, 3.0])
    return [StateBonus(f"p = {number}", values, 0.5) for number in range(count)]


D = np.array([4.0, 3.0, 0.0, 1.0, 2.0])


def test_records_are_checked():
    with pytest.raises(ValueError, match=r"representation: .* k >= 2"):
        HistoryCloud("c", GRID, np.zeros(3, int), np.zeros((3, 1)))
    with pytest.raises(ValueError, match=r"state: .* each of the 3 histories; got 2"):
        HistoryCloud("c", GRID, np.zeros(2, int), np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"state: .* 0 to 4; got \[5\]"):
        HistoryCloud("c", GRID, np.array([0, 5, 1]), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="state: expected integers"):
        HistoryCloud("c", GRID, np.array([0.5, 1.0]), np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"representation: .* histories \[1\].* leave them out"):
        HistoryCloud("c", GRID, np.zeros(2, int), np.array([[0, 0], [np.inf, 0]]))
    with pytest.raises(ValueError, match=r"spearman: .* got 2"):
        StateBonus("b", np.zeros(5), 2.0)
    for wrong in (np.zeros(2), np.zeros((2, 0))):
        with pytest.raises(ValueError, match="representation"):
            HistoryCloud("c", GRID, np.zeros(2, int), wrong)


def test_tracks_are_checked():
    good = track()
    with pytest.raises(ValueError, match="frames: expected uint8"):
        track(frames=good.frames.astype(float))
    with pytest.raises(ValueError, match=r"frame: .*`frames`, 0 to 3; got \[4\]"):
        track(frame=np.full(30, 4))
    with pytest.raises(ValueError, match=r"state: .* 30 steps of frame; got 29"):
        track(state=good.state[:-1])
    with pytest.raises(ValueError, match=r"beliefs: 'a': .* \(30, 5\); got \(30, 4\)"):
        track(beliefs=(("a", np.full((30, 4), 0.25)),))
    with pytest.raises(ValueError, match=r"beliefs: 'a': .* sum to 1; .* at steps \[0 .* softmax"):
        track(beliefs=(("a", np.full((30, 5), 2.0)),))
    with pytest.raises(ValueError, match=r"beliefs: 'a': .* sum to 1"):
        track(beliefs=(("a", np.full((30, 5), np.nan)),))
    with pytest.raises(ValueError, match="labels that differ"):
        track(beliefs=good.beliefs[:1] * 2)
    with pytest.raises(ValueError, match="at least one"):
        track(beliefs=())


def test_limits_hold_the_bulk_and_leave_far_outliers_out():
    points = np.random.default_rng(0).uniform(-1, 1, (1000, 2))
    plain = HistoryCloud("c", GRID, np.zeros(1000, int), points).limits()
    assert np.all((plain[:, 0] < points.min(axis=0)) & (plain[:, 1] > points.max(axis=0)))
    points[0] = 1e6
    far = HistoryCloud("c", GRID, np.zeros(1000, int), points).limits()
    assert np.all(far[:, 1] < 2)
    flat = HistoryCloud("c", GRID, np.zeros(3, int), np.full((3, 2), 7.0)).limits()
    np.testing.assert_array_equal(flat, [[6.5, 7.5]] * 2)


def test_slices_show_the_features_in_their_states_colours():
    ax, shown = Figure().subplots(), cloud(4)
    slice_panel(ax, shown, (0, 2))
    (points,) = ax.collections
    offsets = np.asarray(points.get_offsets())
    assert {tuple(p) for p in offsets} == {tuple(p) for p in shown.representation[:, [0, 2]]}
    order = [int(np.flatnonzero(shown.representation[:, 0] == x)[0]) for x, _ in offsets]
    colours = np.asarray(points.get_facecolor())[:, :3]
    assert len(np.unique(colours, axis=0)) == GRID.n
    for state in range(GRID.n):
        assert len(np.unique(colours[shown.state[order] == state], axis=0)) == 1


def test_belief_panel_draws_roots_of_probabilities():
    ax, p = Figure().subplots(), np.array([0.04, 0.25, 0.0, 0.46, 0.25])
    picture = np.asarray(belief_panel(ax, GRID, p, state=4).get_array())
    np.testing.assert_allclose(picture[GRID.positions[:, 0], GRID.positions[:, 1]], np.sqrt(p))
    np.testing.assert_array_equal(np.asarray(ax.lines[0].get_xydata()), [[3, 2]])  # column, row


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: slices_figure([cloud(2), cloud(3), cloud(4)], path),
        lambda path: slices_figure([cloud(2)], path),
        lambda path: bonus_maps_figure(GRID, D, bonuses(2), path),
        lambda path: bonus_maps_figure(GRID, D, bonuses(5), path),
        lambda path: beliefs_figure(track(), path, times=(0, 10, 29)),
    ],
)
def test_figures_show_something_and_are_the_same_every_time(draw, tmp_path):
    first, second = draw(tmp_path / "new" / "a.png"), draw(tmp_path / "b.png")
    assert first.read_bytes() == second.read_bytes()
    assert imread(first)[..., :3].std() > 0.05


def test_figures_have_a_row_for_each_part(tmp_path):
    heights = [imread(slices_figure([cloud()] * rows, tmp_path / "s.png")).shape[0] for rows in (1, 2, 3)]
    assert heights[2] - heights[1] == heights[1] - heights[0] > 0
    narrow, wide = (imread(slices_figure([cloud(k)], tmp_path / "s.png")).shape[1] for k in (2, 3))
    assert narrow < wide
    one, two = (imread(bonus_maps_figure(GRID, D, bonuses(k), tmp_path / "b.png")).shape for k in (3, 4))
    assert one[0] < two[0]
    assert one[1] > two[1]


def test_figures_name_what_is_wrong(tmp_path):
    for times in ((0, 30), (-1, 3), ()):
        with pytest.raises(ValueError, match="times: expected steps 0 to 29"):
            beliefs_figure(track(), tmp_path / "x.png", times=times)
    with pytest.raises(ValueError, match="clouds: expected at least one"):
        slices_figure([], tmp_path / "x.png")
    other = HistoryCloud("o", OTHER, np.zeros(3, int), np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"clouds: .*'tiny' and 'other'.* make a figure for each"):
        slices_figure([cloud(), other], tmp_path / "x.png")
    with pytest.raises(ValueError, match="bonuses"):
        bonus_maps_figure(GRID, D, [], tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"bonuses: 'p = 0': .* 4 states of the map; got 5"):
        bonus_maps_figure(OTHER, np.ones(4), bonuses(1), tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"d: .* each of the 5 states"):
        bonus_maps_figure(GRID, np.ones(4), bonuses(1), tmp_path / "x.png")
    for wrong in (-D, np.where(D > 3, np.nan, D), np.where(D > 3, np.inf, D)):
        with pytest.raises(ValueError, match="d: expected finite"):
            bonus_maps_figure(GRID, wrong, bonuses(1), tmp_path / "x.png")
    assert not list(tmp_path.iterdir())
