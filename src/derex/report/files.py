"""Files that are either whole or not there: written beside their place, then moved into it."""

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
    """A file that is not, or not all of, what its writer wrote."""


def check_place(path: Path, option: str) -> None:
    """Refuses a place where nothing can be written, before the work whose result it is for.

    Args:
        path: of the file or folder to be.
        option: what it was given as.
    """
    place = path.absolute()
    above = next((parent for parent in place.parents if parent.exists()), place)
    there = place if place.is_dir() else above  # a file is replaced by another, for which its folder is asked
    if not there.is_dir():
        raise NotADirectoryError(f"{option}: {there} is a file, so that there can be no {path}.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"{option}: nothing can be written to {there}; choose another place.")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file of JSON; None where there is no such file, or something else in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Writes `content` to `path`, making its folder; a reader sees the old file or the new, never a part."""
    return write_together({Path(path): content})


def write_together(contents: Mapping[Path, bytes]) -> Path:
    """Writes files that belong together, all of them beside their places before any is moved there.

    So a disk that is full leaves the old ones. The last file says that all are there: the old one of its name goes
    before any is moved, unless it is the only one. Returns its path.
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
    """A new file beside `path` with the content; its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o666 & ~_umask())
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if (
            isinstance(error, OSError) and error.errno and error.filename is None
        ):  # a full disk does not say whose
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    return Path(temporary)


def write_npz(path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Path:
    """Writes an .npz file: arrays as they are, everything else as one JSON text; no pickle."""
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, header=text, **arrays)
    return write_atomically(path, buffer.getvalue())


def read_npz(path: str | Path, writer: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays that `write_npz` wrote.

    Nothing is unpickled, so a file from elsewhere can run no code.

    Args:
        path: the file.
        writer: the function that should have written it, for the error's text.

    Raises:
        DamagedFileError: the file is cut short, changed, or of somebody else.
    """
    with open(path, "rb") as opened:  # a file that cannot be read at all is another matter
        try:
            if not zipfile.is_zipfile(opened):
                raise ValueError("it is not a whole .npz file")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            if "header" not in arrays:
                raise ValueError("it has no header")
            header = json.loads(arrays.pop("header").tobytes())
            if not isinstance(header, dict):
                raise ValueError("its header is not a table")
        except Exception as error:  # a damaged archive can fail in any way
            raise DamagedFileError(
                f"path: {path} is damaged, or no file of `{writer}`: {error}. Write it again."
            ) from error
    return header, arrays


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
