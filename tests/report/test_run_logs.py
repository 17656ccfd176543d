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


def test_files_that_belong_together_are_replaced_together(tmp_path, monkeypatch):
    old = {tmp_path / "weights": b"old", tmp_path / "card": b"old"}
    assert files.write_together(old) == tmp_path / "card"
    written = files._written_beside

    def full(path, content):
        if path.name == "card":
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(path, content)

    monkeypatch.setattr(files, "_written_beside", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_together({path: b"new" for path in old})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_a_place_is_asked_whether_it_can_be_written_to(tmp_path, monkeypatch):
    """A folder itself; for a file, or what is not there yet, the folder that it is to be in."""
    inside = tmp_path / "folder"
    inside.mkdir()
    (tmp_path / "file").write_text("")
    closed = {tmp_path}
    monkeypatch.setattr(files.os, "access", lambda path, mode: path not in closed)
    files.check_place(inside, "--out")
    files.check_place(inside / "new" / "newer", "--out")
    for path in (tmp_path, tmp_path / "file", tmp_path / "new" / "newer"):
        with pytest.raises(PermissionError, match=f"--out: nothing can be written to {tmp_path};"):
            files.check_place(path, "--out")
    files.check_place(files.Path("/"), "--out")
    closed.add(files.Path("/"))
    with pytest.raises(PermissionError, match="nothing can be written to /;"):
        files.check_place(files.Path("/"), "--out")


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
