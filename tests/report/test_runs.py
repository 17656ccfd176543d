"""Reading run folders: torn and damaged lines, nested folders, folders of other programs."""

import json

import pytest

from derex.report.runs import find_runs, parse_line, read_lines, split_lines


def test_an_incomplete_last_line_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "seed": 0}\n{"step": 2, "se')
    assert read_lines(path) == ([{"step": 1, "seed": 0}], 0)
    with path.open("a") as file:
        file.write('ed": 0}\n')
    assert [line["step"] for line in read_lines(path)[0]] == [1, 2]


def test_damaged_lines_are_counted_and_later_lines_win(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'{"step": 2, "seed": 0, "x": 1}\n\xff\xfe{\n[1]\n{"seed": 0}\n{"step": 2, "seed": 0, "x": 3}\n'
    )
    assert read_lines(path) == ([{"step": 2, "seed": 0, "x": 3}], 3)
    assert read_lines(tmp_path / "none.jsonl") == ([], 0)


def test_strict_reading_names_what_a_line_lacks(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 2, "seed": 0}\n[1]\n{"step"')
    whole, other = split_lines(path)
    assert parse_line(whole) == {"step": 2, "seed": 0}
    with pytest.raises(ValueError, match=r"expected step, seed, return .* got \{\"step\": 2"):
        parse_line(whole, required=("step", "seed", "return"))
    with pytest.raises(ValueError, match=r"expected step, seed .* got \[1\]"):
        parse_line(other)


def test_find_runs_searches_folders_and_finds_each_run_once(write_run, tmp_path):
    a, b = write_run("all/x/a", {0: [1.0]}), write_run("all/b", {0: [1.0]})
    write_run("all/b/checkpoints/inside", {0: [1.0]})
    (tmp_path / "all" / "config.json").write_text('{"command": "other"}')
    assert [run.folder for run in find_runs([tmp_path / "all"])] == [b, a]
    assert [run.folder for run in find_runs([a, tmp_path / "all", a])] == [a, b]


def test_runs_that_have_not_begun_are_left_out(write_run, tmp_path):
    a, b = write_run("a", {0: [1.0]}), write_run("b", {0: [1.0]})
    (b / "metrics.jsonl").unlink()
    assert [run.folder for run in find_runs([tmp_path])] == [a]
    with pytest.raises(ValueError, match="has a line of metrics yet"):
        find_runs([b])


@pytest.mark.parametrize("content", [None, "{", "[]", json.dumps({"command": "train"})])
def test_find_runs_refuses_other_folders(content, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match="contains no run of derex train"):
        find_runs([tmp_path])
    with pytest.raises(ValueError, match="is not a folder"):
        find_runs([tmp_path / "nowhere"])
