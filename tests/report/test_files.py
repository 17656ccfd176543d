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
    make = files.tempfile.mkstemp

    def full(prefix, **options):
        if "card" in prefix:
            raise OSError(errno.ENOSPC, "No space left on device")
        return make(prefix=prefix, **options)

    monkeypatch.setattr(files.tempfile, "mkstemp", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_together({path: b"new" for path in old})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_check_place_refuses_what_is_not_writable(tmp_path, monkeypatch):
    """A folder must be writable itself; a file, or what does not exist yet, needs a writable folder above it."""
    inside = tmp_path / "folder"
    inside.mkdir()
    (tmp_path / "file").write_text("")
    closed = {tmp_path}
    monkeypatch.setattr(files.os, "access", lambda path, mode: path not in closed)
    files.check_place(inside, "--out")
    files.check_place(inside / "new" / "newer", "--out")
    for path in (tmp_path, tmp_path / "file", tmp_path / "new" / "newer"):
        with pytest.raises(PermissionError, match=f"--out: {tmp_path} is not writable"):
            files.check_place(path, "--out")
    files.check_place(files.Path("/"), "--out")
    closed.add(files.Path("/"))
    with pytest.raises(PermissionError, match="--out: / is not writable"):
        files.check_place(files.Path("/"), "--out")
