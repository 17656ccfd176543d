"""Atomic writes: a file is whole or not there."""

import errno
import io
import os

import pytest

from derex.report import files


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
