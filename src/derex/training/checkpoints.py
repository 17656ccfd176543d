"""What a checkpoint should hold: sizes and sha256 of its files, so that one changed byte is noticed.

manifest.json     files, arrays, config and progress
manifest.sha256   the manifest's own sum, as `sha256sum -c` reads it

A folder without both, or with other files than they say, is no checkpoint.

Checkpoints of a run, `DIR/checkpoints/<step>/`: the whole state, and what the metrics need to go on exactly.

arrays/           every array of the state and of the record of visits, by orbax
manifest.json     sums of all files; paths, shapes and dtypes of all arrays; config, progress, score (`manifest.py`)

They are data alone: loading one runs no code that it brings.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from derex.report.files import write_atomically
from derex.training.config import TrainConfig
from derex.training.factory import make_training
from derex.training.folder import CHECKPOINTS, describe_mismatch, load_config, plain_options
from derex.training.learner import Training, TrainState, check_streams, data_mesh, placed

MANIFEST, SUM = "manifest.json", "manifest.sha256"


class DamagedCheckpointError(ValueError):
    """A checkpoint that is not, or not all of, what was saved."""


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """The last thing to be written to a checkpoint: all of its files so far, and the content."""
    text = json.dumps(content | {"files": _describe_files(folder)}, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / MANIFEST, text.encode())
    write_atomically(folder / SUM, _sum_of(text.encode()))
    for path in (*_files(folder), *_folders(folder), folder):
        flush(path)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, itself unchanged; whether the files are is `verify`'s to say.

    Raises:
        DamagedCheckpointError: it is missing or changed.
    """
    try:
        text, expected = (folder / MANIFEST).read_bytes(), (folder / SUM).read_bytes()
    except OSError as error:
        raise DamagedCheckpointError(f"{folder}: {error.strerror or error}: {MANIFEST} or {SUM}") from error
    if _sum_of(text) != expected:
        raise DamagedCheckpointError(f"{folder}: {MANIFEST} has changed since it was saved")
    return json.loads(text)


def verify(folder: Path) -> dict[str, Any]:
    """The manifest, once every file is what it says.

    Raises:
        DamagedCheckpointError: a file is missing, changed, or new.
    """
    content = read_manifest(folder)
    expected = content["files"]
    found = {str(path.relative_to(folder)) for path in _files(folder)} - {MANIFEST, SUM}
    for name in sorted(found ^ expected.keys()):
        what = "is missing" if name in expected else "does not belong to it"
        raise DamagedCheckpointError(f"{folder}: {name} {what}")
    for name, entry in expected.items():
        path = folder / name
        if path.stat().st_size != entry["size"] or _digest(path) != entry["sha256"]:
            raise DamagedCheckpointError(f"{folder}: {name} has changed since it was saved")
    return content


def flush(path: Path) -> None:
    """To the disk itself, a file or the names in a folder: a power cut leaves a checkpoint whole, or none."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _describe_files(folder: Path) -> dict[str, dict[str, Any]]:
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


ARRAYS = "arrays"
STATE, VISITS_PART = "state", "visits"


class CheckpointError(ValueError):
    """There is no checkpoint that would do."""


class Snapshot(NamedTuple):
    """A checkpoint in memory; what is in it does not change any more."""

    step: int
    """environment steps of each seed"""
    state: dict[str, np.ndarray]
    """by path in the tree; keys as their data"""
    dtypes: dict[str, str]
    """of the state's arrays, as JAX calls them"""
    visits: dict[str, np.ndarray]
    """the record of visits; empty where states are not numbered"""
    progress: dict[str, Any]
    """iterations done, iterations that have their line, times"""
    score: float | None
    """mean over seeds of success, or of return, in the last whole log interval; None before the first"""
    config: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes that it takes, at most."""
        return sum(array.nbytes for array in (*self.state.values(), *self.visits.values()))


class RestoredRun(NamedTuple):
    """A run as its checkpoint has it."""

    config: TrainConfig
    training: Training
    state: TrainState
    """of all seeds, on the devices that there are"""
    step: int
    """environment steps of each seed"""
    problems: tuple[str, ...]
    """what was wrong with checkpoints that would have been chosen before this one"""


class Checkpoint(NamedTuple):
    """A checkpoint on disk that is what it was when it was saved."""

    path: Path
    manifest: dict[str, Any]
    problems: tuple[str, ...]
    """what was wrong with those that would have been chosen before it"""


def restore_run(
    folder: str | Path, checkpoint: str | int = "latest", method: str | None = None, env: str | None = None
) -> RestoredRun:
    """The run in a folder, as its checkpoint has it; nothing is written.

    Args:
        folder: of the run.
        checkpoint: "latest"; "best", by success or return; or a step. Where the latest or the best is damaged, it is
            the one before, and `problems` says so.
        method: of the run, where it is somebody's own, `package.module:Class`: code is only imported when you name it.
        env: of the run, where its name holds a module's, for the same reason.

    Raises:
        CheckpointError: there is no good checkpoint, none of that step, or it was made with other options.
        ValueError: the folder holds no run.
    """
    folder = Path(folder)
    config = load_config(folder, method, env)
    found = find_checkpoint(folder, checkpoint)
    check_options(found, plain_options(config))
    training = make_training(config)
    state = load_state(found, training, config)
    return RestoredRun(config, training, state, int(found.path.name), found.problems)


def list_steps(folder: Path) -> list[int]:
    """The steps of all checkpoints that were saved whole, in order; whether they are still good is not looked at."""
    if not (folder / CHECKPOINTS).is_dir():
        return []
    inside = [path for path in (folder / CHECKPOINTS).iterdir() if path.name.isdecimal()]
    return sorted(int(path.name) for path in inside)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return (folder / CHECKPOINTS / str(step)).absolute()


def read_score(folder: Path, step: int) -> float:
    """The score of a checkpoint; -∞ where it has none."""
    try:
        score = read_manifest(checkpoint_path(folder, step))["score"]
    except DamagedCheckpointError:
        return -np.inf
    return -np.inf if score is None else score


def find_checkpoint(folder: str | Path, checkpoint: str | int = "latest") -> Checkpoint:
    """The first good one in the order that `checkpoint` asks for; a step is that one or none."""
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
        try:
            return Checkpoint(
                checkpoint_path(folder, step), _verified(checkpoint_path(folder, step)), tuple(problems)
            )
        except DamagedCheckpointError as error:
            problems.append(str(error))
    if problems and len(order) < len(steps):
        raise CheckpointError(f"checkpoint: {'; '.join(problems)}. {folder} has those of the steps {steps}.")
    if problems:
        raise CheckpointError(
            f"checkpoint: no good checkpoint of {folder} is left: {'; '.join(problems)}. Saved again by --overwrite."
        )
    raise CheckpointError(f"checkpoint: {folder} has those of the steps {steps}; got {checkpoint}.")


def check_options(found: Checkpoint, options: dict[str, Any]) -> None:
    """Refuses a checkpoint of other options than config.json's, by name: it would be taken for what it is not."""
    if each := describe_mismatch(found.manifest["config"], options):
        raise CheckpointError(
            f"checkpoint: {found.path} does not belong to the config.json of its run: {each}. Put the file back as it "
            "was, or take the checkpoint away."
        )


def load_state(found: Checkpoint, training: Training, config: TrainConfig) -> TrainState:
    """The state of a checkpoint on the devices that there are; shapes are compared before anything is loaded."""
    mesh = data_mesh()
    check_streams(config.streams, mesh)
    expected = jax.eval_shape(lambda: training.init_seeds(config.all_seeds))
    leaves, tree = jax.tree_util.tree_flatten_with_path(expected)
    wanted = {path_name(path): _described(leaf) for path, leaf in leaves}
    saved = {entry["path"]: entry for entry in found.manifest["arrays"] if entry["part"] == STATE}
    for name in sorted(wanted.keys() | saved.keys()):
        here, there = wanted.get(name), _essential(saved.get(name))
        if here != there:
            raise CheckpointError(
                f"checkpoint: {found.path} does not fit the run's config: {name} is {there or 'not there'}, expected "
                f"{here or 'nothing'}. It was perhaps saved by another version of derex."
            )
    arrays = load_arrays(found)[STATE]
    loaded = [_as_leaf(arrays[path_name(path)], leaf) for path, leaf in leaves]
    return placed(training, jax.tree.unflatten(tree, loaded), mesh)


def load_arrays(found: Checkpoint) -> dict[str, dict[str, np.ndarray]]:
    """All arrays of a checkpoint by part and path."""
    from orbax.checkpoint import v1 as ocp

    entries = found.manifest["arrays"]
    arrays: Any = ocp.load(str(found.path / ARRAYS))
    parts: dict[str, dict[str, np.ndarray]] = {STATE: {}, VISITS_PART: {}}
    for entry in entries:
        empty = np.zeros(entry["stored_shape"], entry["stored_dtype"])
        array = np.asarray(arrays[entry["name"]]) if empty.size else empty
        parts[entry["part"]][entry["path"]] = array
    return parts


def write_checkpoint(folder: Path, snapshot: Snapshot) -> None:
    """All files of a checkpoint into a folder that is not there yet, the manifest last."""
    from orbax.checkpoint import v1 as ocp

    folder.mkdir(parents=True)
    entries: list[dict[str, Any]] = []
    arrays: Any = {}
    for part, members in ((STATE, snapshot.state), (VISITS_PART, snapshot.visits)):
        for path, array in members.items():
            name = f"{len(entries):05d}"
            entries.append(
                _entry(name, part, path, array, snapshot.dtypes.get(path) if part == STATE else None)
            )
            if array.size:  # orbax refuses empty arrays; their shapes are in the manifest
                arrays[name] = array
    ocp.save(str(folder.absolute() / ARRAYS), arrays)
    write_manifest(
        folder,
        {
            "step": snapshot.step,
            "score": snapshot.score,
            "progress": snapshot.progress,
            "config": snapshot.config,
            "arrays": entries,
        },
    )


def copy_arrays(state: TrainState) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Copies of all arrays, by path, and their dtypes: the next iteration is free to reuse the memory."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    data = jax.device_get([(path_name(path), _data(leaf)) for path, leaf in leaves])
    dtypes = {path_name(path): str(leaf.dtype) for path, leaf in leaves}
    return {name: np.array(array) for name, array in data}, dtypes


def path_name(path: Any) -> str:
    """actor/environment/steps"""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _verified(path: Path) -> dict[str, Any]:
    """The manifest, once all files are as they were; a folder that was renamed is not what its name says."""
    manifest = verify(path)
    if manifest["step"] != int(path.name):
        raise DamagedCheckpointError(f"{path}: it was saved as that of step {manifest['step']}")
    return manifest


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _as_leaf(array: np.ndarray, leaf: Any) -> Any:
    return jax.random.wrap_key_data(jax.numpy.asarray(array)) if _is_key(leaf) else array


def _described(leaf: Any) -> dict[str, Any]:
    return {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}


def _essential(entry: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if entry is None else {name: entry[name] for name in ("shape", "dtype")}


def _entry(name: str, part: str, path: str, array: np.ndarray, dtype: str | None) -> dict[str, Any]:
    """How the manifest describes an array; keys have one axis less than their data."""
    dtype = dtype or str(array.dtype)
    shape = list(array.shape[:-1] if dtype.startswith("key<") else array.shape)
    stored = {"stored_shape": list(array.shape), "stored_dtype": str(array.dtype)}
    return {"name": name, "part": part, "path": path, "shape": shape, "dtype": dtype} | stored
