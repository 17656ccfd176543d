"""Run folders as they lie on a disk: torn, damaged, nested, somebody else's."""

import errno
import io
import json
import os

import pytest

from derex.report import files
from derex.report.runs import find_runs, read_lines


def test_a_torn_last_line_is_waited_for(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "seed": 0}\n{"step": 2, "se')
    assert read_lines(path) == ([{"step": 1, "seed": 0}], 0)
    with path.open("a") as file:
        file.write('ed": 0}\n')
    assert [line["step"] for line in read_lines(path)[0]] == [1, 2]


def test_damaged_lines_are_counted_and_later_lines_stand(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'{"step": 2, "seed": 0, "x": 1}\n\xff\xfe{\n[1]\n{"seed": 0}\n{"step": 2, "seed": 0, "x": 3}\n'
    )
    assert read_lines(path) == ([{"step": 2, "seed": 0, "x": 3}], 3)
    assert read_lines(tmp_path / "none.jsonl") == ([], 0)


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path, monkeypatch):
    class Full(io.BytesIO):
        def write(self, content):
            raise OSError(errno.ENOSPC, "No space left on device")

    def opened(handle, mode):
        os.close(handle)
        return Full()

    monkeypatch.setattr(files.os, "fdopen", opened)
    with pytest.raises(OSError, match="No space left") as caught:
        files.write_atomically(tmp_path / "a.png", b"...")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "a.png"))
    assert not any(tmp_path.iterdir())


def test_folders_are_searched_and_each_run_is_found_once(write_run, tmp_path):
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
def test_other_folders_are_refused(content, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match="holds no run of derex train"):
        find_runs([tmp_path])
    with pytest.raises(ValueError, match="is no folder"):
        find_runs([tmp_path / "nowhere"])
