"""Learning curves of many runs: groups, curves, scores and notes."""

import math
from dataclasses import replace

import numpy as np
import pytest

from derex.report import learning_curves
from derex.report.learning_curves import (
    check_metric,
    curve_of,
    group_runs,
    notes_on,
    score_rows,
    write_curves,
)
from derex.report.runs import find_runs


def groups_in(folder, label: learning_curves.Label = "method"):
    return group_runs(find_runs([folder]), label)


def test_runs_of_a_method_and_form_are_joined(write_run, tmp_path):
    write_run("a", {0: [1.0, 2.0]}, method="derex", form="states")
    write_run("b", {5: [3.0, 4.0]}, method="derex", form="states")
    write_run("c", {0: [0.0, 0.0]}, method="derex", form="belief")
    write_run("d", {0: [0.0, 9.0]}, env="cartpole", method="vmpo")
    groups = groups_in(tmp_path)
    assert [(one.env, one.label, len(one.runs)) for one in groups] == [
        ("catch", "derex, states", 2),
        ("catch", "derex, belief", 1),
        ("cartpole", "vmpo", 1),
    ]
    assert [(one.colour, one.dash) for one in groups] == [(0, 0), (0, 1), (1, 0)]
    curve = curve_of(groups[0], "return")
    assert curve.x.tolist() == [100, 200]
    assert curve.mean.tolist() == [2.0, 3.0]
    assert (curve.low.tolist(), curve.high.tolist()) == ([1.0, 2.0], [3.0, 4.0])


def test_folders_can_be_kept_apart(write_run, tmp_path):
    write_run("x/a", {0: [1.0]})
    write_run("y/a", {0: [1.0]})
    assert [one.label for one in groups_in(tmp_path, "folder")] == ["x/a", "y/a"]
    assert [one.label for one in groups_in(tmp_path / "x", "folder")] == ["a"]


def test_copies_of_a_run_count_once(write_run, tmp_path):
    """By the one that came farthest; seeds that only one has all count."""
    write_run("a", {0: [1.0], 1: [2.0]})
    write_run("b", {0: [1.0, 5.0], 2: [3.0, 3.0]}, keep=9)
    write_run("c", {0: [7.0, 7.0]}, agent={"width": 16})
    (group,) = groups_in(tmp_path)
    assert group.finals("return").tolist() == [2.0, 5.0, 3.0, 7.0]
    assert group.copies == 1
    (note,) = [note for note in notes_on([group]) if "count once" in note]
    assert "1 left out" in note
    assert all(one.copies == 0 for one in groups_in(tmp_path, "folder"))


@pytest.mark.parametrize("tasks", [5, {"catch": 5}, [1]])
def test_tasks_that_are_none_are_left_out(tasks, write_run, tmp_path):
    folder = write_run("a", {0: [1.0]})
    runs = [replace(run, lines=[run.lines[0] | {"tasks": tasks}]) for run in find_runs([folder])]
    with pytest.raises(ValueError, match=r"task: no run has 'all'\. No run has several tasks"):
        learning_curves.runs_of_task(runs, "all")


def test_lines_at_other_steps_are_put_on_one_grid(write_run, tmp_path):
    write_run("a", {0: [0.0, 2.0, 4.0]}, every=100)
    write_run("b", {1: [10.0, 20.0]}, every=150)
    curve = curve_of(groups_in(tmp_path)[0], "return")
    assert curve.x.tolist() == [100, 150, 200, 300]
    assert curve.mean.tolist() == pytest.approx([0.0, (1 + 10) / 2, (2 + 10 + 10 / 3) / 2, (4 + 20) / 2])


def test_a_step_without_the_number_is_a_gap(write_run, tmp_path):
    write_run("a", {0: [None, 1.0], 1: [None, 3.0]})
    assert [math.isnan(value) for value in curve_of(groups_in(tmp_path)[0], "return").mean] == [True, False]


def test_long_runs_are_thinned_by_means(write_run, tmp_path, monkeypatch):
    monkeypatch.setattr(learning_curves, "MOST_POINTS", 2)
    write_run("a", {0: [1.0, 3.0, None, 5.0]})
    curve = curve_of(groups_in(tmp_path)[0], "return")
    assert (curve.x.tolist(), curve.mean.tolist()) == ([200, 400], [2.0, 5.0])


def test_scores_over_all_environments_only_where_scales_agree(write_run, tmp_path):
    write_run("a", {0: [0.5], 1: [0.7]})
    write_run("b", {0: [0.1], 1: [0.3]}, env="cartpole")
    rows = score_rows(groups_in(tmp_path), "return")
    assert rows == [
        ["catch", "vmpo", "2", "100", "0.6 [0.5, 0.7]", "0.6", "0.5"],
        ["cartpole", "vmpo", "2", "100", "0.2 [0.1, 0.3]", "0.2", "0.1"],
    ]
    for path in tmp_path.rglob("metrics.jsonl"):
        path.write_text(path.read_text().replace("return", "success"))
    assert [row[0] for row in score_rows(groups_in(tmp_path), "success")] == ["catch", "cartpole", "all"]
    assert score_rows(groups_in(tmp_path), "return")[0][4:] == ["–", "–", "–"]


def test_scores_of_runs_that_are_not_done_say_so(write_run, tmp_path):
    write_run("a", {0: [0.5]}, steps=100)
    write_run("b", {0: [0.5]}, steps=2000, env="cartpole")
    assert [row[3] for row in score_rows(groups_in(tmp_path), "return")] == ["100", "100 of 2k"]


def test_what_a_reader_has_to_know_is_said(write_run, tmp_path):
    write_run("a", {0: [0.5]}, seed=0, log_every=3)
    write_run("b", {1: [0.7]}, seed=1, log_every=4)
    assert notes_on(groups_in(tmp_path)) == []
    write_run("d", {3: [0.7]}, seed=3, agent={"width": 8, "option_of_a_later_version": 1})
    assert notes_on(groups_in(tmp_path)) == []
    write_run("c", {2: [0.7, 0.8]}, agent={"width": 16})
    with (tmp_path / "c" / "metrics.jsonl").open("a") as file:
        file.write("?\n")
    joins, lengths, damaged = notes_on(groups_in(tmp_path))
    assert "differ in agent.width; --label folder" in joins
    assert "between 100 and 200 steps" in lengths
    assert "1 damaged" in damaged


def test_metrics_that_cannot_be_drawn_are_refused(write_run, tmp_path):
    write_run("a", {0: [0.5]})
    runs = find_runs([tmp_path])
    check_metric(runs, "return")
    with pytest.raises(ValueError, match=r"metric: .* is a list, expected a number"):
        check_metric(runs, "spectrum")
    with pytest.raises(ValueError, match=r"no run has 'retrun'. Did you mean 'return'\? There are: return"):
        check_metric(runs, "retrun")


def test_pictures_and_pages_are_written(write_run, tmp_path):
    write_run("a", {seed: [0.5, seed / 4] for seed in range(4)})
    groups = groups_in(tmp_path)
    assert write_curves(groups, "return", tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    page = write_curves(groups, "return", tmp_path / "a.html").read_text()
    assert all(
        text in page for text in ("Learning curves", "catch: return", "the 95 % bootstrap interval", "0.375")
    )
    assert np.isfinite(curve_of(groups[0], "return").mean).all()
