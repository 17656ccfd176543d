"""Atomic writes: files are written beside their destination, then moved there."""

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


class DamagedFileError(ValueError):
    """A file that is incomplete, changed, or of another kind."""


def check_place(path: Path, option: str) -> None:
    """Refuses a file or folder, given as `option`, that cannot be written, before work is spent on its content."""
    place = path.absolute()
    above = next((parent for parent in place.parents if parent.exists()), place)
    there = place if place.is_dir() else above  # a file is replaced, which needs its folder
    if not there.is_dir():
        raise NotADirectoryError(f"{option}: {there} is a file, so {path} cannot be made.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"{option}: {there} is not writable; choose another folder.")


def read_json(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object; None if there is no such file, or something else in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Writes `content` to `path` and makes its folder; a reader sees the old file or the new one, never a part."""
    return write_together({Path(path): content})


def write_together(contents: Mapping[Path, bytes]) -> Path:
    """Writes files that belong together; if one cannot be written, for example on a full disk, all old ones stay.

    The last file marks the others as complete: its old version is removed before any is moved. Returns its path.
    """
    beside: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            beside[path] = _written_beside(path, content)
        last = list(beside)[-1]
        if len(beside) > 1:
            last.unlink(missing_ok=True)
        for path, temporary in beside.items():
            os.replace(temporary, path)
    except BaseException:
        for temporary in beside.values():
            temporary.unlink(missing_ok=True)
        raise
    return last


def _written_beside(path: Path, content: bytes) -> Path:
    """Writes a temporary file beside `path`; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o666 & ~_umask())
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:  # a full disk names no file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    return Path(temporary)


def write_npz(path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Path:
    """Writes an .npz file: arrays, and the header as JSON text; no pickle."""
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, header=text, **arrays)
    return write_atomically(path, buffer.getvalue())


def read_npz(path: str | Path, writer: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads the header and the arrays that `write_npz` wrote for the function `writer`, which errors name.

    Nothing is unpickled, so loading an untrusted file runs no code. Raises DamagedFileError if the file is incomplete,
    changed, or of another kind.
    """
    with open(path, "rb") as opened:  # a missing or unreadable file raises OSError
        try:
            if not zipfile.is_zipfile(opened):
                raise ValueError("it is not a complete .npz file")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            header = json.loads(arrays.pop("header", np.zeros(0, np.uint8)).tobytes() or b"null")
            if not isinstance(header, dict):
                raise ValueError("it has no header, or one that is not an object")
        except Exception as error:  # a damaged archive can fail in any way
            raise DamagedFileError(
                f"path: {path} is damaged, or not a file of `{writer}`: {error}. Write it again."
            ) from error
    return header, arrays


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
