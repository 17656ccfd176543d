"""Named arrays and a JSON header in one file. Reading one never runs code from it.

The archive is a NumPy `.npz` (a zip with a checksum of every member), so that other tools can read it as well.
"""

import io
import json
import os
import uuid
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

HEADER = "header.json"


class DamagedError(ValueError):
    """A file that is not what its writer wrote."""

    def __init__(self, what: str):
        super().__init__(f"{what} Save the model again, or restore the file.")
        self.what = what


def storable(value: Any) -> np.ndarray:
    """As a type that NumPy's files know: bfloat16 and its like in single precision, cast back on load."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def write(target: Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Beside its final place first, then moved there: readers see all of it or none."""
    text = json.dumps(
        header | {"arrays": sorted(arrays)}, default=lambda value: value.item()
    )  # NumPy's scalars
    members = {HEADER: np.frombuffer(text.encode(), np.uint8), **arrays}
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path: the folder {target.parent} does not exist. Create it first.")
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **members)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def read(
    path: Path, format_: str, version: int, keys: set[str]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file of that format, at most of that version; every checksum verified."""
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                # Whole members: their checksums are compared at their ends.
                members = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
            arrays = {
                name: np.lib.format.read_array(io.BytesIO(member), allow_pickle=False)
                for name, member in members.items()
            }
            header = json.loads(arrays.pop(HEADER).tobytes())
            if header["format"] != format_:
                raise ValueError(f"its format is {header['format']!r}, expected {format_!r}")
            known = header["version"] > version or header.keys() >= keys | {"arrays"}
            if not known or (header["version"] <= version and header["arrays"] != sorted(arrays)):
                raise ValueError("its contents are not those of a model")
        except Exception as error:  # a damaged archive can fail in any way
            raise DamagedError(
                f"{path} is not a derex model, or it is damaged ({type(error).__name__}: {error})."
            ) from error
    if header["version"] > version:
        raise ValueError(
            f"{path} has format version {header['version']}; this derex reads up to {version}. Upgrade derex."
        )
    return header, arrays


def named_arrays(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if hasattr(leaf, "shape")]


def filled(
    skeleton: Any, start: str, arrays: dict[str, np.ndarray], path: Any, own_encoder: bool = True
) -> Any:
    """The skeleton with the arrays whose names have that start, names and shapes checked first.

    Where they do not fit, the user's own encoder is to blame, if the skeleton has one; else the file.
    """
    expected = {f"{start}{name}": leaf.shape for name, leaf in named_arrays(skeleton)}
    stored = {name: array.shape for name, array in arrays.items() if name.startswith(start)}
    wrong = sorted(name for name in stored.keys() | expected if stored.get(name) != expected.get(name))
    if wrong and not own_encoder:
        raise DamagedError(
            f"{path} is damaged: its arrays do not fit its header (first difference: {wrong[0].removeprefix(start)})."
        )
    if wrong:
        raise ValueError(
            f"{path}: its parameters do not fit the encoder (first difference: {wrong[0].removeprefix(start)}). "
            "Pass the module it was trained with: load(path, encoder=...)."
        )

    def fill(place: Any, leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        return jax.numpy.asarray(arrays[f"{start}{jax.tree_util.keystr(place)}"], leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, skeleton)
