"""Checkpoints of a run; not orbax's `CheckpointManager`, which cannot checksum a checkpoint before it gets its name.

DIR/checkpoints/<step>/arrays/           every array of the state and of the record of visits, written by orbax
DIR/checkpoints/<step>/manifest.json     sizes and sha256 of all files; paths, shapes and dtypes of all arrays; config
DIR/checkpoints/<step>/manifest.sha256   the checksum of the manifest, as `sha256sum -c` reads it

A folder without both manifest files, or with other files than they list, is not a checkpoint. Checkpoints are data
only: loading one runs no code that it contains.

docs/training.md promises that a flipped byte in any file is detected, and that SIGKILL at any moment leaves a valid
checkpoint: the manifest must be written after all other files and before the rename. After the last public hook,
`post_finalization_callback` (orbax 0.12), orbax still adds a time stamp and a success file, and then renames. If a save
fails, on a full disk, the manager leaves its files until it is next started; the same document promises their removal.
So orbax writes and reads the arrays; manifest, retention and background saving are here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from derex.report.files import write_atomically
from derex.training import folder as files
from derex.training.config import TrainConfig
from derex.training.folder import CHECKPOINTS, FullDiskError, free_bytes, megabytes
from derex.training.learner import Training, TrainState, check_streams, data_mesh, placed

MANIFEST, CHECKSUM, ARRAYS = "manifest.json", "manifest.sha256", "arrays"
STATE, VISITS_PART = "state", "visits"
SPARE_BYTES, SETTLING_SECONDS = 1 << 20, 5.0  # free besides a checkpoint; at most, after a failed write
OWN_NAMES = re.compile(r"\d+|\d+\.damaged|\.\d+(\.damaged)?\.(partial|removed)")
NO_SPACE = ("No space left", "Disk quota exceeded", "ENOSPC")


class CheckpointError(ValueError):
    """There is no suitable checkpoint."""


class DamagedCheckpointError(ValueError):
    """A checkpoint has changed since it was saved, or is incomplete."""


class SavingError(OSError):
    """A checkpoint could not be written."""


class Snapshot(NamedTuple):
    """A checkpoint in memory; its arrays are copies."""

    step: int
    """environment steps of each seed"""
    state: dict[str, np.ndarray]
    """by path in the tree; PRNG keys as their data"""
    dtypes: dict[str, str]
    """of the arrays of the state, as JAX names them"""
    visits: dict[str, np.ndarray]
    """the record of visits; empty if states are not numbered"""
    progress: dict[str, Any]
    """iterations done, iterations logged, times"""
    score: float | None
    """mean over seeds of success, or of return, in the last complete log interval; None before the first"""
    config: dict[str, Any]

    @property
    def size(self) -> int:
        """Upper bound of its bytes on disk."""
        return sum(array.nbytes for array in (*self.state.values(), *self.visits.values()))


class Checkpoint(NamedTuple):
    """A verified checkpoint on disk."""

    path: Path
    manifest: dict[str, Any]
    problems: tuple[str, ...]
    """of damaged checkpoints before it in the order of choice"""

    @property
    def step(self) -> int:
        """Environment steps of each seed."""
        return int(self.path.name)


def find_checkpoint(folder: str | Path, checkpoint: str | int = "latest") -> Checkpoint:
    """Finds the first intact checkpoint in the order of `checkpoint`: "latest", "best", or a step."""
    folder = Path(folder)
    steps = list_steps(folder)
    if not steps:
        raise CheckpointError(f"folder: {folder} has no checkpoint.")
    if checkpoint == "latest":
        order = steps[::-1]
    elif checkpoint == "best":
        order = sorted(steps, key=lambda step: (read_score(folder, step), step), reverse=True)
    elif str(checkpoint).isdecimal():
        order = [step for step in steps if step == int(checkpoint)]
    else:
        raise CheckpointError(f"checkpoint: expected latest, best, or a step; got {checkpoint!r}.")
    problems = []
    for step in order:
        path = checkpoint_path(folder, step)
        try:
            return Checkpoint(path, verify(path), tuple(problems))
        except DamagedCheckpointError as error:
            problems.append(str(error))
    if len(order) == len(steps):
        raise CheckpointError(
            f"checkpoint: {folder} has no intact checkpoint: {'; '.join(problems)}. Train again with --overwrite."
        )
    problem = problems[0] if problems else f"{folder} has no checkpoint of step {checkpoint}"
    raise CheckpointError(f"checkpoint: {problem}. Available steps: {steps}.")


def list_steps(folder: Path) -> list[int]:
    """Lists the steps of all checkpoints that were saved completely, ascending; does not verify them."""
    paths = (folder / CHECKPOINTS).iterdir() if (folder / CHECKPOINTS).is_dir() else ()
    return sorted(int(path.name) for path in paths if path.name.isdecimal())


def checkpoint_path(folder: Path, step: int) -> Path:
    """Returns the path of the checkpoint of a step."""
    return (folder / CHECKPOINTS / str(step)).absolute()


def read_score(folder: Path, step: int) -> float:
    """Reads the score of a checkpoint; -∞ if it has none."""
    try:
        score = read_manifest(checkpoint_path(folder, step))["score"]
    except DamagedCheckpointError:
        return -np.inf
    return -np.inf if score is None else score


def check_options(found: Checkpoint, options: dict[str, Any]) -> None:
    """Refuses a checkpoint that was saved with other options than those of config.json."""
    if different := files.describe_mismatch(found.manifest["config"], options):
        raise CheckpointError(
            f"checkpoint: {found.path} does not match the config.json of its run: {different}. Restore config.json, or "
            "remove the checkpoint."
        )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads and verifies the manifest of a checkpoint, but not the files that it lists."""
    try:
        text, expected = (folder / MANIFEST).read_bytes(), (folder / CHECKSUM).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise DamagedCheckpointError(f"{folder}: {reason}: {MANIFEST} or {CHECKSUM}") from error
    if _checksum_line(text) != expected:
        raise DamagedCheckpointError(f"{folder}: {MANIFEST} has changed since it was saved")
    return json.loads(text)


def verify(folder: Path) -> dict[str, Any]:
    """Verifies every file of a checkpoint and its folder's name; returns its manifest."""
    manifest = read_manifest(folder)
    expected, found = manifest["files"], _list_files(folder)
    for name in sorted(expected.keys() ^ (found.keys() - {MANIFEST, CHECKSUM})):
        problem = "missing" if name in expected else "not part of it"
        raise DamagedCheckpointError(f"{folder}: {name} is {problem}")
    for name, entry in expected.items():
        if _describe_file(found[name]) != entry:
            raise DamagedCheckpointError(f"{folder}: {name} has changed since it was saved")
    if str(manifest["step"]) != folder.name:
        raise DamagedCheckpointError(f"{folder}: it was saved as the checkpoint of step {manifest['step']}")
    return manifest


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Writes the manifest, the last file of a checkpoint, and flushes all files and folders to the disk."""
    described = {name: _describe_file(path) for name, path in _list_files(folder).items()}
    text = (json.dumps(content | {"files": described}, indent=1, allow_nan=False) + "\n").encode()
    write_atomically(folder / MANIFEST, text)
    write_atomically(folder / CHECKSUM, _checksum_line(text))
    folders = [path for path in folder.rglob("*") if path.is_dir()]
    for path in (*_list_files(folder).values(), *folders, folder):
        flush(path)


def flush(path: Path) -> None:
    """Flushes a file, or the names in a folder, to the disk: a power cut leaves a complete checkpoint or none."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _list_files(folder: Path) -> dict[str, Path]:
    """All files by their paths in the folder, in order."""
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if not path.is_dir()}


def _describe_file(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _checksum_line(text: bytes) -> bytes:
    return f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n".encode()


def flatten_paths(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their paths, such as actor/environment/steps."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def check_fit(what: str, expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Refuses arrays, described by path, that are not those of the config."""
    for path in sorted(expected.keys() | found.keys()):
        wanted, here = expected.get(path, "nothing"), found.get(path, "missing")
        if wanted != here:
            raise CheckpointError(
                f"{what} does not fit its config: {path} is {here}, expected {wanted}. It may have been saved by "
                "another version of derex."
            )


def load_state(found: Checkpoint, training: Training, config: TrainConfig) -> TrainState:
    """Loads the state onto the available devices; shapes and dtypes are compared first."""
    mesh = data_mesh()
    check_streams(config.streams, mesh)
    shapes = jax.eval_shape(lambda: training.init_seeds(config.all_seeds))
    expected = {path: (list(leaf.shape), str(leaf.dtype)) for path, leaf in flatten_paths(shapes).items()}
    entries = [entry for entry in found.manifest["arrays"] if entry["part"] == STATE]
    saved = {entry["path"]: (entry["shape"], entry["dtype"]) for entry in entries}
    check_fit(f"checkpoint: {found.path}", expected, saved)
    arrays = load_arrays(found)[STATE]
    loaded = [
        jax.random.wrap_key_data(jnp.asarray(arrays[path])) if _is_key(leaf) else arrays[path]
        for path, leaf in flatten_paths(shapes).items()
    ]
    return placed(training, jax.tree.unflatten(jax.tree.structure(shapes), loaded), mesh)


def load_arrays(found: Checkpoint) -> dict[str, dict[str, np.ndarray]]:
    """Loads all arrays of a checkpoint, by part and path."""
    from orbax.checkpoint import v1 as ocp

    arrays: Any = ocp.load(str(found.path / ARRAYS))
    parts: dict[str, dict[str, np.ndarray]] = {STATE: {}, VISITS_PART: {}}
    for entry in found.manifest["arrays"]:
        empty = np.zeros(entry["stored_shape"], entry["stored_dtype"])
        parts[entry["part"]][entry["path"]] = np.asarray(arrays[entry["name"]]) if empty.size else empty
    return parts


def write_checkpoint(folder: Path, snapshot: Snapshot) -> None:
    """Writes all files of a checkpoint into a new folder, the manifest last."""
    from orbax.checkpoint import v1 as ocp

    folder.mkdir(parents=True)
    entries: list[dict[str, Any]] = []
    arrays: Any = {}
    for part, members in ((STATE, snapshot.state), (VISITS_PART, snapshot.visits)):
        dtypes = snapshot.dtypes if part == STATE else {}
        for path, array in members.items():
            name, dtype = f"{len(entries):05d}", dtypes.get(path, str(array.dtype))
            shape = list(array.shape)
            logical = shape[:-1] if dtype.startswith("key<") else shape  # data of keys have one axis more
            entry = {"name": name, "part": part, "path": path, "shape": logical, "dtype": dtype}
            entries.append(entry | {"stored_shape": shape, "stored_dtype": str(array.dtype)})
            if array.size:  # orbax refuses empty arrays; their shapes are in the manifest
                arrays[name] = array
    ocp.save(str(folder.absolute() / ARRAYS), arrays)
    content = {"step": snapshot.step, "score": snapshot.score, "progress": snapshot.progress}
    write_manifest(folder, content | {"config": snapshot.config, "arrays": entries})


def copy_arrays(state: TrainState) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Copies all arrays to host memory, by path, with their dtypes; the next iteration may reuse their memory."""
    leaves = flatten_paths(state)
    data = jax.device_get(
        {path: jax.random.key_data(leaf) if _is_key(leaf) else leaf for path, leaf in leaves.items()}
    )
    dtypes = {path: str(leaf.dtype) for path, leaf in leaves.items()}
    return {path: np.array(data[path]) for path in leaves}, dtypes


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


class Saver:
    """Saves the checkpoints of a run, one at a time, in a background thread.

    A checkpoint is written to a temporary folder and renamed when it is complete. Earlier checkpoints are not touched
    before that. The latest `keep` are kept, besides the best; `last` is the step of the one that is there already.
    """

    def __init__(self, folder: Path, keep: int, last: int | None = None):
        self._folder, self._keep, self._last = folder, keep, last
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Starts to write a checkpoint, once the previous one is written; a step that was just saved is skipped."""
        self.wait()
        if snapshot.step == self._last:
            return
        (self._folder / CHECKPOINTS).mkdir(exist_ok=True)
        if free_bytes(self._folder) < snapshot.size + SPARE_BYTES:
            raise self._describe(snapshot)
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="derex-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Waits until everything is written; raises the error of the background thread, if any."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, snapshot: Snapshot) -> None:
        partial = self._folder / CHECKPOINTS / f".{snapshot.step}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            write_checkpoint(partial, snapshot)
            path = checkpoint_path(self._folder, snapshot.step)
            shutil.rmtree(path, ignore_errors=True)  # only a damaged one can be there
            os.replace(partial, path)
            flush(path.parent)
            self._last = snapshot.step
        except Exception as error:  # orbax and tensorstore raise many types
            _remove_while_written(partial)
            self._error = self._describe(snapshot, error)
            return
        try:
            prune(self._folder, self._keep)
        except OSError as error:  # the new checkpoint is good; the next save prunes again
            problem = {"problem": str(error), "step": snapshot.step}
            with suppress(OSError):
                files.add_event(self._folder, "old checkpoint not removed", **problem)

    def _describe(self, snapshot: Snapshot, error: Exception | None = None) -> OSError:
        """The error of a checkpoint that could not be written; without a cause, because it would not fit."""
        last = "No earlier one exists." if self._last is None else f"The one of step {self._last} is intact."
        what, free = f"the checkpoint of step {snapshot.step}", free_bytes(self._folder)
        full = error is None or free < SPARE_BYTES or any(words in str(error) for words in NO_SPACE)
        if not full:
            return SavingError(f"--out: {what} could not be written: {error}. {last}")
        return FullDiskError(
            f"--out: the disk of {self._folder} is full: {what} needs up to {megabytes(snapshot.size + SPARE_BYTES)}, "
            f"{megabytes(free)} are free. {last} Free some space and run the same command again."
        )


def prune(folder: Path, keep: int) -> None:
    """Keeps the latest `keep` checkpoints and the best; removes others and partial ones, but no foreign files."""
    steps = list_steps(folder)
    kept = {str(step) for step in steps[-keep:]}
    if steps:
        kept.add(str(max(steps, key=lambda step: (read_score(folder, step), step))))
    for path in (folder / CHECKPOINTS).iterdir():
        if is_checkpoint_folder(path) and path.name not in kept:
            removed = path.with_name(f".{path.name.strip('.')}.removed")  # so that half of one never counts
            if path != removed:
                shutil.rmtree(removed, ignore_errors=True)
                os.replace(path, removed)
            shutil.rmtree(removed)


def is_checkpoint_folder(path: Path) -> bool:
    """Whether a run wrote it: a checkpoint, or the remains of one; a folder, not a link to one."""
    return OWN_NAMES.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def _remove_while_written(path: Path) -> None:
    """Removes the remains of a failed write; other arrays may still be written for a moment."""
    deadline, quiet = time.monotonic() + SETTLING_SECONDS, 0
    while quiet < 3 and time.monotonic() < deadline:
        quiet = 0 if path.exists() else quiet + 1
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(0.05)
