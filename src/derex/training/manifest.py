"""What a checkpoint should hold: sizes and sha256 of its files, so that one changed byte is noticed.

manifest.json     files, arrays, config and progress
manifest.sha256   the manifest's own sum, as `sha256sum -c` reads it

A folder without both, or with other files than they say, is no checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from derex.report.files import write_atomically

MANIFEST, SUM = "manifest.json", "manifest.sha256"


class DamagedCheckpoint(ValueError):
    """A checkpoint that is not, or not all of, what was saved."""


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """The last thing to be written to a checkpoint: all of its files so far, and the content."""
    text = json.dumps(content | {"files": _described(folder)}, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / MANIFEST, text.encode())
    write_atomically(folder / SUM, _sum_of(text.encode()))
    for path in (*_files(folder), *_folders(folder), folder):
        flush(path)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, itself unchanged; whether the files are is `verify`'s to say.

    Raises:
        DamagedCheckpoint: it is missing or changed.
    """
    try:
        text, expected = (folder / MANIFEST).read_bytes(), (folder / SUM).read_bytes()
    except OSError as error:
        raise DamagedCheckpoint(f"{folder}: {error.strerror or error}: {MANIFEST} or {SUM}") from error
    if _sum_of(text) != expected:
        raise DamagedCheckpoint(f"{folder}: {MANIFEST} has changed since it was saved")
    return json.loads(text)


def verify(folder: Path) -> dict[str, Any]:
    """The manifest, once every file is what it says.

    Raises:
        DamagedCheckpoint: a file is missing, changed, or new.
    """
    content = read_manifest(folder)
    expected = content["files"]
    found = {str(path.relative_to(folder)) for path in _files(folder)} - {MANIFEST, SUM}
    for name in sorted(found ^ expected.keys()):
        what = "is missing" if name in expected else "does not belong to it"
        raise DamagedCheckpoint(f"{folder}: {name} {what}")
    for name, entry in expected.items():
        path = folder / name
        if path.stat().st_size != entry["size"] or _digest(path) != entry["sha256"]:
            raise DamagedCheckpoint(f"{folder}: {name} has changed since it was saved")
    return content


def flush(path: Path) -> None:
    """To the disk itself, a file or the names in a folder: a power cut leaves a checkpoint whole, or none."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _described(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "sha256": _digest(path)}
        for path in _files(folder)
    }


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_dir())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sum_of(text: bytes) -> bytes:
    return f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n".encode()
