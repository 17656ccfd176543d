"""Files that are either whole or not there: written beside their place, then moved into it."""

import io
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Writes `content` to `path`, making its folder; a reader sees the old file or the new, never a part."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


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
    """
    with np.load(path, allow_pickle=False) as file:
        if "header" not in file:
            raise ValueError(f"path: {path} is no file of `{writer}`; it has no header.")
        arrays = {name: file[name] for name in file.files}
    return json.loads(arrays.pop("header").tobytes()), arrays


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
