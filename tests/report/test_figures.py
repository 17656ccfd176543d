"""Figures: files of the right size that show something, and the data they are drawn from."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from derex.decomposition.exact import decompose
from derex.decomposition.scores import bonus_rank_correlation
from derex.envs import FOUR_ROOMS, GridWorld
from derex.envs.drawing import frames
from derex.report import (
    Comparison,
    Curve,
    GridMap,
    RepresentationView,
    Table,
    curves_figure,
    four_panels,
    geometries_figure,
    load_comparison,
    reference_colours,
    save_comparison,
    save_panels,
    spearman,
    spectrum_figure,
)
from derex.report.files import DamagedFileError
from derex.report.palette import normalise
from derex.report.panels import bonus_panel, rarity_panel, representation_panel, visitation_panel

WORLD = GridWorld(FOUR_ROOMS)
GRID = GridMap("four rooms", FOUR_ROOMS.rows, np.array(FOUR_ROOMS.positions))


def joint(horizon: int = 100) -> np.ndarray:
    """Expected joint of a uniform random walk from the corner."""
    P = WORLD.transition_tensor().mean(axis=1)
    at, d = np.eye(WORLD.n_states)[WORLD.start], np.zeros(WORLD.n_states)
    for _ in range(horizon):
        d, at = d + at / horizon, at @ P
    return d[:, None] * P


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    A = joint()
    views = []
    for label, geometry in (("exact visitation", "visitation"), ("exact counting", "counting")):
        exact = decompose(A, 8, geometry)
        views.append(RepresentationView(label, exact.left, exact.singular_values, exact.bonus()))
    return Comparison("Four rooms", GRID, A.sum(axis=1), tuple(views))


def with_gaps(comparison: Comparison) -> Comparison:
    """The same with states never visited, and with NaN and infinity among the values."""
    d = comparison.d.copy()
    d[WORLD.rooms == 3] = 0
    view = comparison.views[0]
    bonus, features = view.bonus.copy(), view.representation.copy()
    bonus[d == 0], bonus[3], features[5] = np.inf, np.nan, np.nan
    return Comparison("gaps", GRID, d, (RepresentationView("gaps", features, view.singular_values, bonus),))


def assert_shows_something(path: Path, size: tuple[int, int] | None = None) -> None:
    picture = imread(path)[..., :3]
    assert picture.std() > 0.05
    assert len(np.unique((picture * 255).astype(int) @ [1 << 16, 1 << 8, 1])) > 30
    if size is not None:
        assert picture.shape[:2] == size


def test_spearman_agrees_with_the_scores(comparison):
    for view, sign in zip(comparison.views, (1, -1), strict=True):
        mine = comparison.spearman(view)
        assert mine == pytest.approx(bonus_rank_correlation(view.bonus, comparison.d), abs=1e-12)
        assert mine * sign > 0.9


def test_spearman_by_hand():
    # ranks 1, 2.5, 2.5, 4 against 2, 1, 3, 4: sums of products 3, of squares 4.5 and 5
    assert spearman(np.array([1, 5, 5, 9]), np.array([2, 1, 3, 4])) == pytest.approx(3 / np.sqrt(22.5))
    assert spearman(np.array([1, np.nan, 2]), np.array([0, 9, 3])) == pytest.approx(1.0)
    assert np.isnan(spearman(np.ones(4), np.arange(4)))
    assert np.isnan(spearman(np.array([]), np.array([])))


def test_reference_colours_tell_rooms_apart_and_are_smooth():
    colours = reference_colours(GRID.positions, GRID.shape)
    assert colours.shape == (104, 3)
    assert np.all((colours >= 0) & (colours <= 1))
    means = np.array([colours[WORLD.rooms == room].mean(axis=0) for room in range(4)])
    between = np.linalg.norm(means[:, None] - means[None], axis=-1)[~np.eye(4, dtype=bool)]
    steps = np.linalg.norm(np.subtract(*colours[GRID.edges()].transpose(1, 0, 2)), axis=1)
    assert between.min() > 0.3
    assert steps.max() < 0.2
    assert len(np.unique(colours, axis=0)) == 104


def test_normalise():
    values = np.array([2.0, np.inf, 4.0, np.nan, 3.0])
    np.testing.assert_array_equal(normalise(values), [0, np.nan, 1, np.nan, 0.5])
    np.testing.assert_array_equal(normalise(np.ones(3)), [0.5, 0.5, 0.5])
    assert np.all(np.isnan(normalise(np.full(2, np.inf))))


def test_edges_of_the_map_are_its_moves():
    moves = {(s, int(t)) for s in range(104) for t in WORLD.successors[s] if t != s}
    edges = {(int(a), int(b)) for a, b in GRID.edges()}
    assert edges | {(b, a) for a, b in edges} == moves


def test_bonus_panel_draws_the_bonus(comparison):
    ax = Figure().subplots()
    picture = np.asarray(bonus_panel(ax, GRID, comparison.views[0].bonus).get_array())
    shown = picture[GRID.positions[:, 0], GRID.positions[:, 1]]
    assert shown.min() == 0
    assert shown.max() == 1
    assert np.argmax(shown) == np.argmax(comparison.views[0].bonus)


def test_visitation_panel_draws_the_visitation(comparison):
    picture = np.asarray(visitation_panel(Figure().subplots(), GRID, comparison.d).get_array())
    np.testing.assert_allclose(picture[tuple(GRID.positions.T)], normalise(comparison.d))
    assert picture[tuple(GRID.positions[WORLD.start])] == 1


def test_representation_panel_draws_the_first_features(comparison):
    ax = Figure().subplots()
    representation_panel(ax, comparison, comparison.views[0])
    drawn = np.asarray(ax.collections[1].get_offsets())
    np.testing.assert_allclose(drawn, comparison.views[0].representation[:, :2])


def test_rarity_panel_leaves_out_what_was_never_visited(comparison):
    gaps, ax = with_gaps(comparison), Figure().subplots()
    rarity_panel(ax, gaps, gaps.views[0], "black")
    drawn = np.asarray(ax.collections[0].get_offsets())
    assert len(drawn) == np.sum((gaps.d > 0) & np.isfinite(gaps.views[0].bonus))


def test_four_panels(comparison, tmp_path):
    tabular = four_panels(comparison, tmp_path / "new" / "four.png")
    assert_shows_something(tabular, (582, 1893))
    pixels = Comparison("pixels", GRID, comparison.d, comparison.views, np.array(frames(WORLD)[40]))
    assert_shows_something(four_panels(pixels, tmp_path / "pixels.png"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "pixels.png"]  # no temporary files


def test_the_same_data_make_the_same_file(comparison, tmp_path):
    first, second = (four_panels(comparison, tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert first == second


def test_save_panels(comparison, tmp_path):
    paths = save_panels(comparison, tmp_path, "tabular")
    names = ["tabular_visitation", "tabular_colours", "tabular_representation", "tabular_bonus"]
    assert [path.stem for path in paths] == names
    assert len({imread(path).shape for path in paths}) == 1
    for path in paths:
        assert_shows_something(path)


def test_other_figures(comparison, tmp_path):
    assert_shows_something(geometries_figure(comparison, tmp_path / "geometries.png"))
    assert_shows_something(spectrum_figure(comparison, tmp_path / "spectrum.png"))
    x = np.linspace(0, 2e6, 30)
    curve = Curve("a $ b", x, np.sin(x), np.sin(x) - 1, np.sin(x) + 1)
    assert_shows_something(curves_figure([curve], tmp_path / "curves.png", "steps", "return", "title"))
    with pytest.raises(ValueError, match="curves"):
        curves_figure([], tmp_path / "none.png")


def test_figures_stand_gaps_and_flat_values(comparison, tmp_path):
    gaps = with_gaps(comparison)
    assert_shows_something(four_panels(gaps, tmp_path / "gaps.png"))
    n = GRID.n
    flat = RepresentationView("flat", np.zeros((n, 1)), np.zeros(1), np.full(n, np.inf))
    constant = Comparison("flat", GRID, np.full(n, 1 / n), (flat,))
    assert_shows_something(geometries_figure(constant, tmp_path / "flat.png"))
    assert_shows_something(four_panels(constant, tmp_path / "flat4.png"))
    many = RepresentationView("many", np.zeros((n, 50)), np.linspace(1, 0, 50), np.zeros(n))
    assert_shows_something(
        spectrum_figure(Comparison("many", GRID, constant.d, (many,)), tmp_path / "many.png")
    )


def same(a: Comparison, b: Comparison) -> None:
    assert (a.title, a.map.name, a.map.rows) == (b.title, b.map.name, b.map.rows)
    np.testing.assert_array_equal(a.map.positions, b.map.positions)
    np.testing.assert_array_equal(a.d, b.d)
    assert [view.label for view in a.views] == [view.label for view in b.views]
    for mine, other in zip(a.views, b.views, strict=True):
        for name in ("representation", "singular_values", "bonus"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))
    assert (a.frame is None) == (b.frame is None)
    if a.frame is not None and b.frame is not None:
        np.testing.assert_array_equal(a.frame, b.frame)
        assert b.frame.dtype == np.uint8


def test_round_trips(comparison, tmp_path):
    pixels = Comparison("pixels é", GRID, comparison.d, comparison.views, np.array(frames(WORLD)[0]))
    for original in (comparison, pixels, with_gaps(comparison)):
        same(original, load_comparison(save_comparison(tmp_path / "c.npz", original)))


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def test_loading_does_not_unpickle(tmp_path):
    path = tmp_path / "bomb.npz"
    np.savez(path, header=np.array([Bomb()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_comparison(path)
    np.savez(path, other=np.zeros(1))
    with pytest.raises(ValueError, match="header"):
        load_comparison(path)


@pytest.mark.parametrize("length", [0, 4, 200, -30])
def test_damaged_files_are_refused(comparison, tmp_path, length):
    path = save_comparison(tmp_path / "c.npz", comparison)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedFileError, match=r"path: .*c.npz .*`save_comparison`"):
        load_comparison(path)
    path.write_text("some text")
    with pytest.raises(DamagedFileError, match=r"path: .*Write it again\.$"):
        load_comparison(path)
    with pytest.raises(FileNotFoundError):
        load_comparison(tmp_path / "absent.npz")


def test_errors_name_the_argument(comparison):
    view = comparison.views[0]
    with pytest.raises(ValueError, match=r"positions.*inside the 1 x 2 map; got \[\[0, 2\]\]"):
        GridMap("m", ("..",), np.array([[0, 2]]))
    with pytest.raises(ValueError, match=r"positions.*wall"):
        GridMap("m", ("#.",), np.array([[0, 0]]))
    with pytest.raises(ValueError, match=r"positions.*each of the 2 states"):
        GridMap("m", ("..",), np.array([[0, 1], [0, 1]]))
    with pytest.raises(ValueError, match="rows"):
        GridMap("m", ("..", "."), np.array([[0, 0]]))
    with pytest.raises(ValueError, match="singular_values"):
        RepresentationView("v", np.zeros((3, 2)), np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match="bonus"):
        RepresentationView("v", np.zeros((3, 2)), np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match="d: expected finite"):
        Comparison("c", GRID, -comparison.d, (view,))
    with pytest.raises(ValueError, match=r"views: .* labels that differ"):
        Comparison("c", GRID, comparison.d, (view, view))
    with pytest.raises(ValueError, match="frame"):
        Comparison("c", GRID, comparison.d, (view,), np.zeros((3, 3, 3)))
    with pytest.raises(ValueError, match="row 1"):
        Table("t", ("a",), (("x",), ("y", "z")))


def test_importing_the_report_is_light():
    heavy = "{'jax', 'matplotlib', 'plotly', 'scipy'}"
    code = f"import sys, derex, derex.report; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
