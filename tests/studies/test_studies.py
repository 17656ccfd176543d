"""The studies, small: what they write, what they promise, and what they refuse."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from derex.report import load_comparison
from derex.studies.asymmetry import make_maze, value_error
from derex.studies.asymmetry import run as run_asymmetry
from derex.studies.common import claim_folder, fit_and_score, make_problem, named_map
from derex.studies.decomposition import run as run_decomposition
from derex.studies.definitions import (
    FIGURE,
    AsymmetryStudy,
    PixelsStudy,
    Setting,
    TabularStudy,
    UnseenStudy,
)
from derex.studies.unseen import run as run_unseen


@pytest.fixture(scope="module")
def four_rooms():
    return make_problem("four-rooms", 0, 50_000)


@pytest.mark.parametrize(("objective", "off_diagonal"), [("derex", 0.05), ("nested", 0.02)])
def test_tabular_fit_is_the_exact_decomposition(four_rooms, objective, off_diagonal):
    _, scores = fit_and_score(four_rooms, "tabular", Setting(objective, 16), 0, steps=1500)
    assert scores["captured_energy"] > 0.995
    assert scores["trace_ratio"] == pytest.approx(1.0, abs=0.02)
    assert scores["largest_off_diagonal"] < off_diagonal
    assert scores["spearman"] > scores["spearman_exact"] - 0.03


@pytest.mark.parametrize("control", ["untrained", "shuffled"])
def test_controls_capture_little(four_rooms, control):
    _, scores = fit_and_score(four_rooms, "tabular", Setting("derex", 16, control=control), 0, steps=300)
    assert scores["captured_energy"] < 0.6
    assert abs(scores["trace_ratio"]) < 0.3


def test_a_maze_with_one_way_doors_is_decomposed_exactly():
    problem = make_problem("maze", 7, 50_000)
    assert any(arrow in "".join(problem.world.map.rows) for arrow in "<>^v")
    _, scores = fit_and_score(problem, "tabular", Setting("nested", 16), 0, steps=2000)
    assert scores["captured_energy"] > 0.995


def test_figure_is_the_papers():
    assert FIGURE == ("derex", 2, 1.0, "")


@pytest.fixture(scope="module")
def tabular(tmp_path_factory):
    out = tmp_path_factory.mktemp("studies") / "tabular"
    return out, run_decomposition(TabularStudy.shortened(out=out))


def test_tabular_study_writes_everything(tabular):
    out, result = tabular
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["study"] == "tabular"
    assert metrics["config"]["quick"] is True
    assert {row["control"] for row in metrics["results"]} == {"", "untrained", "shuffled"}
    for row in metrics["results"]:
        assert {
            "captured_energy",
            "trace_ratio",
            "largest_off_diagonal",
            "spearman",
            "spearman_exact",
        } <= set(row)
    for name in (
        "tabular.png",
        "tabular_visitation.png",
        "tabular_colours.png",
        "tabular_representation.png",
    ):
        assert (out / name).stat().st_size > 3000
    assert result.page == out / "report.html"
    page = result.page.read_text()
    assert "Exact, counting" in page
    assert "Exact, visitation" in page
    assert "Control: shuffled" in page


def test_tabular_study_learns(tabular):
    out, _ = tabular
    learnt = [row for row in json.loads((out / "metrics.json").read_text())["results"] if not row["control"]]
    assert min(row["captured_energy"] for row in learnt) > 0.995
    comparison = load_comparison(out / "k16.npz")
    labels = [view.label for view in comparison.views]
    assert labels[0] == "De-Rex (derex), learnt"
    counting = next(view for view in comparison.views if view.label == "Exact, counting")
    assert comparison.spearman(counting) < -0.9  # the truncated counting geometry has the wrong sign


def test_study_resumes_its_own_folder_and_refuses_others(tabular, tmp_path):
    out, _ = tabular
    claim_folder(out, "tabular")
    with pytest.raises(FileExistsError, match="holds 'tabular'"):
        run_decomposition(PixelsStudy.shortened(out=out))
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        claim_folder(tmp_path, "tabular")
    with pytest.raises(NotADirectoryError, match="is a file"):
        claim_folder(tmp_path / "note.txt", "tabular")


def small_unseen(out: Path) -> UnseenStudy:
    return replace(UnseenStudy.shortened(out=out), encoders=("mlp",))


def test_unseen_room_gets_the_larger_bonus(tmp_path):
    run_unseen(small_unseen(tmp_path / "unseen"))
    row = json.loads((tmp_path / "unseen" / "metrics.json").read_text())["results"][0]
    assert row["unseen_states"] >= 20
    assert row["auroc"] > 0.9
    with pytest.raises(ValueError, match="--rooms"):
        run_unseen(replace(small_unseen(tmp_path / "other"), rooms=(0,)))


def test_asymmetry_study(tmp_path):
    study = AsymmetryStudy(out=tmp_path / "a", seeds=1, doors=(16,), transitions=200_000, steps=1000)
    result = run_asymmetry(study)
    summary = json.loads((tmp_path / "a" / "metrics.json").read_text())["summary"]
    assert [entry["doors"] for entry in summary] == [16]
    for entry in summary:
        assert entry["nested"][0] == pytest.approx(entry["exact-svd"][0], abs=0.005)
        assert entry["laplacian"][0] == pytest.approx(entry["exact-laplacian"][0], abs=0.03)
    assert result.page.exists()
    with pytest.raises(ValueError, match="--gamma"):
        run_asymmetry(replace(study, gamma=1.0, out=tmp_path / "b"))


def test_value_error_is_zero_for_features_that_span_the_values():
    rng = np.random.default_rng(0)
    values, d = rng.normal(size=(10, 3)), rng.dirichlet(np.ones(10))
    assert value_error(values @ rng.normal(size=(3, 3)) + 1.0, values, d) == pytest.approx(0.0, abs=1e-7)
    assert value_error(np.zeros((10, 1)), values, d) == pytest.approx(1.0)


def test_mazes_have_the_doors_that_were_asked_for():
    rows = "".join(make_maze(AsymmetryStudy(transitions=1000), 12, 0).world.map.rows)
    assert sum(rows.count(arrow) for arrow in "<>^v") == 12


def test_quick_keeps_what_the_user_chose(tmp_path):
    assert TabularStudy.shortened(seeds=2).seeds == 2
    assert TabularStudy.shortened().seeds == 1
    with pytest.raises(ValueError, match="maps: expected 'four-rooms'"):
        run_decomposition(TabularStudy.shortened(out=tmp_path / "t", maps=("four-room",)))
    assert not (tmp_path / "t").exists()


def test_unknown_map_is_refused(tmp_path):
    with pytest.raises(ValueError, match="maps: expected 'four-rooms'"):
        named_map("five-rooms", 0)
    with pytest.raises(ValueError, match="--seeds"):
        run_decomposition(TabularStudy(out=tmp_path / "t", seeds=0))


@pytest.mark.slow
def test_pixels_reach_their_target():
    problem = make_problem("rooms", 0, 50_000)
    _, scores = fit_and_score(problem, "conv", Setting("derex", 16), 0, steps=1500)
    assert scores["captured_energy"] > 0.98
    assert scores["spearman"] > scores["spearman_exact"] - 0.03
