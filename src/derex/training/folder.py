"""The folder of a run: claimed once, and readable however the run ends.

config.json     options, versions and devices of the run; written first, extended when the run is resumed
metrics.jsonl   a line for each log interval and seed, complete lines only
events.jsonl    other events with their time: damaged checkpoints, stops, restarts of workers
checkpoints/    the whole state, at intervals (`checkpoints.py`)
visitation.npz  if states are numbered: how often each was visited, per interval
visitation.png  the same as a picture, at the end
"""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from derex._text import to_plain
from derex._version import __version__
from derex.envs.registry import imports_user_code
from derex.report.files import read_json, write_atomically
from derex.report.runs import COMMAND, CONFIG, METRICS, parse_line, split_lines
from derex.training.config import TrainConfig, from_plain

VISITS, VISITS_PICTURE = "visitation.npz", "visitation.png"
EVENTS, CHECKPOINTS, EVALUATIONS = "events.jsonl", "checkpoints", "eval.json"
LOGGER_FOLDERS = ("tensorboard", "wandb")
REQUIRED_KEYS = ("step", "seed", "return", "success")  # of a line of metrics, for scores
PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "orbax-checkpoint")
NOT_WRITTEN = ("out", "overwrite")  # where the run was written; a path would describe the machine
SAVING_OPTIONS = ("save_every", "keep", "max_skipped")
WORKER_OPTIONS = ("workers", "worker_timeout", "worker_restarts")
NO_EFFECT_ON_NUMBERS = (*NOT_WRITTEN, *SAVING_OPTIONS, *WORKER_OPTIONS, "deterministic", "loggers")
MAY_CHANGE = ("steps", "log_every", "loggers", *SAVING_OPTIONS, *WORKER_OPTIONS)  # when a run is resumed


class FullDiskError(OSError):
    """The disk has no space for the files of a run."""


def check_folder(folder: Path) -> None:
    """Refuses a file, and a folder with files that are not of a run."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--out: {folder} is a file; give a folder.")
    if folder.is_dir() and not holds_run(folder) and any(not _is_leftover(path) for path in folder.iterdir()):
        raise FileExistsError(f"--out: {folder} is not empty and holds no run; choose another folder.")


def make_folder(folder: Path) -> None:
    """Makes the folder if necessary, and tries to write to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / f".{CONFIG}.trial.tmp"
        trial.write_bytes(b"")
        trial.unlink()
    except OSError as error:
        raise OSError(
            f"--out: {folder} cannot be written to: {error.strerror}. Choose another folder."
        ) from error


def remove_run(folder: Path) -> None:
    """Removes the files of a run and nothing else, config.json last: until then the folder is known as a run's."""
    for name in (CHECKPOINTS, *LOGGER_FOLDERS):
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
    for name in (METRICS, EVENTS, EVALUATIONS, VISITS, VISITS_PICTURE, CONFIG):
        (folder / name).unlink(missing_ok=True)
    remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Removes temporary files of a run that was killed."""
    for path in folder.glob(".*.tmp"):
        if _is_leftover(path):
            path.unlink()


def _is_leftover(path: Path) -> bool:
    """Whether it is a temporary file of a run; a kill while config.json is written leaves only that."""
    names = (CONFIG, METRICS, VISITS, VISITS_PICTURE)
    return path.name.endswith(".tmp") and path.name.startswith(tuple(f".{name}." for name in names))


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Locks the folder against other runs; the lock is the system's and ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(
                f"--out: another process is training in {folder}; wait for it, stop it, or choose another folder."
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # a file system without locks
                raise
        yield
    finally:
        os.close(handle)


def holds_run(folder: Path) -> bool:
    """Whether the folder contains a run of `derex train`."""
    return (read_json(folder / CONFIG) or {}).get("command") == COMMAND


def plain_options(config: TrainConfig) -> dict[str, Any]:
    """Returns the options as config.json stores them."""
    return {name: value for name, value in to_plain(config, "text").items() if name not in NOT_WRITTEN}


def write_config(folder: Path, config: TrainConfig, resumed: dict[str, Any] | None = None) -> None:
    """Writes config.json: the resolved options, and the versions and devices that run them.

    A run that resumes gives `resumed`, from which step and which options have changed. This is added to the file, which
    keeps the versions and devices that started the run.
    """
    content = {"command": COMMAND, "config": plain_options(config), "iterations": config.iterations}
    if resumed is None:
        content |= describe_platform()
    else:
        earlier = read_json(folder / CONFIG) or {}
        here = {"step": resumed["step"], **describe_platform(), "changed": resumed["changed"]}
        content = earlier | content | {"resumed": [*earlier.get("resumed", []), here]}
    write_atomically(folder / CONFIG, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def describe_platform() -> dict[str, Any]:
    """Returns versions, devices, the commit of derex, and that of the current folder if it is a repository."""
    device = jax.devices()[0]
    here = find_commit(Path.cwd())
    versions = {"derex": __version__, "python": platform.python_version()}
    return {
        "versions": versions | {name: version(name) for name in PACKAGES},
        "devices": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "commit": source_commit(),
    } | ({} if here is None else {"commit_of_directory": here})


def refuse_user_code(folder: Path, option: str, name: str, named: str | None) -> None:
    """Refuses code that is not part of derex unless whoever loads the run has named it too."""
    if name != named:
        raise ValueError(
            f"{option}: the run in {folder} uses {name!r}, which is not part of derex. If you trust that code, add "
            f"--{option} {name}"
        )


@contextmanager
def explain_damage(folder: Path, *also: type[Exception]) -> Iterator[None]:
    """Turns errors from reading the content of config.json into one that names the file."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, *also) as error:
        raise ValueError(f"folder: {folder / CONFIG} is damaged: {str(error).rstrip('.')}.") from error


def read_config(folder: Path, env: str | None = None) -> dict[str, Any]:
    """Reads config.json of a run; refuses an environment that is the user's own code unless it is named in `env`."""
    content = read_json(folder / CONFIG)
    if content is None or content.get("command") != COMMAND:
        raise ValueError(f"folder: {folder} holds no run of derex train: {CONFIG} is missing or not one.")
    with explain_damage(folder):
        name = content["config"]["env"]
        if not isinstance(name, str):
            raise TypeError(f"env is {name!r}")
        if imports_user_code(name):
            refuse_user_code(folder, "env", name, env)
    return content


def load_config(folder: str | Path, method: str | None = None, env: str | None = None) -> TrainConfig:
    """Loads the resolved options of a run.

    Args:
        folder: of the run.
        method: of the run, if it is the user's own, `package.module:Class`: a folder from someone else could name any
            code, so it is imported only when you name it too.
        env: of the run, for the same reason, if its name contains a module.
    """
    folder = Path(folder)
    options = read_config(folder, env)["config"]
    with explain_damage(folder):
        chosen = str(options["method"])
    if ":" in chosen:
        refuse_user_code(folder, "method", chosen, method)
    with explain_damage(folder, ValueError):
        default = TrainConfig(options["env"], folder, method=chosen, form=str(options["form"])).resolved()
        return from_plain(default, options).resolved()


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """Reads the lines of metrics.jsonl as dicts."""
    path = Path(folder) / METRICS
    if not path.exists():
        raise FileNotFoundError(f"folder: there is no {path}.")
    return [parse_line(raw) for raw in split_lines(path)]


def check_metrics(folder: Path, step: int, seeds: tuple[int, ...]) -> str:
    """Checks that metrics.jsonl has a line of each seed at `step`, the last one before a checkpoint; only reads.

    Returns:
        What is missing, in words; empty if nothing is. A run can be resumed without: its state is elsewhere.
    """
    kept = [line for _, line in _lines_up_to(folder / METRICS, step)]
    if step and {line["seed"] for line in kept if line["step"] == step} != set(seeds):
        last = max((line["step"] for line in kept), default=0)
        return f"{METRICS} lacks lines of step {step}, which were written; its last step before is {last}"
    return ""


def cut_metrics(folder: Path, step: int) -> None:
    """Removes lines of later steps, and an incomplete last line."""
    path = folder / METRICS
    if path.exists():
        write_atomically(path, b"".join(raw + b"\n" for raw, _ in _lines_up_to(path, step)))


def _lines_up_to(path: Path, step: int) -> list[tuple[bytes, dict[str, Any]]]:
    """The complete lines up to a step, raw and parsed."""
    try:
        lines = [(raw, parse_line(raw, REQUIRED_KEYS)) for raw in split_lines(path)]
        return [(raw, line) for raw, line in lines if line["step"] <= step and line["seed"] >= 0]
    except (ValueError, TypeError) as error:
        raise ValueError(f"--out: {path} has a damaged line: {error}. Repair or remove it.") from error


def append_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Appends lines of JSON in one write: all of them or none, also if the process is killed or the disk is full."""
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
    with path.open("ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        try:
            complete = file.write(text) == len(text)
        except OSError as error:
            if not is_disk_full(error):
                raise
            complete = False
        if not complete:
            with suppress(OSError):
                file.truncate(before)
            raise full_disk_error(path.parent)


def add_event(folder: Path, event: str, **details: Any) -> None:
    """Appends a line with the time to events.jsonl."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    append_lines(folder / EVENTS, [{"time": now, "event": event, **details}])


def is_disk_full(error: OSError) -> bool:
    """Whether the error says that no space is left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def full_disk_error(folder: Path) -> FullDiskError:
    """Makes the error for a file other than a checkpoint."""
    return FullDiskError(
        f"--out: the disk of {folder} is full. Earlier files are complete. Free some space and run the same command "
        "again: it resumes from the last checkpoint."
    )


def free_bytes(folder: Path) -> int | float:
    """Returns the free bytes of the folder's disk; ∞ if the file system reports none, as virtual ones do."""
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total else math.inf


def megabytes(size: int | float) -> str:
    """Formats a number of bytes in MB."""
    return f"{size / 1e6:,.1f} MB"


def source_commit() -> dict[str, Any] | None:
    """The commit of the running code; None if it is installed, even inside a repository of someone else."""
    file = Path(__file__)
    tracked = _git(file.parent, "ls-files", "--error-unmatch", file.name) is not None
    return find_commit(file.parent) if tracked else None


def find_commit(folder: Path) -> dict[str, Any] | None:
    """The commit of the repository that contains the folder, and whether files are modified; None if there is none."""
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain")
    return None if commit is None or changes is None else {"id": commit, "modified": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of a git command; None if it fails or there is no git."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def describe_mismatch(saved: dict[str, Any], stated: dict[str, Any]) -> str:
    """Describes how the options of a checkpoint differ from those of config.json; empty if they do not.

    Either file may have been edited or copied there, or be from an older derex, without options that were added since:
    it trained as this version's defaults do. The defaults of a user-defined method are not known without importing it;
    of its options only those in both files are compared.
    """
    saved, stated = _with_defaults(saved), _with_defaults(stated)
    common = sorted(saved.keys() & stated.keys())
    return describe_fixed_changes({name: [saved[name], stated[name]] for name in common})


def _with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """The options by dotted name, over this version's defaults."""
    from derex.representations.methods import METHODS

    form = METHODS.get(str(options.get("method", "")), {}).get(str(options.get("form", "")))
    defaults = plain_options(TrainConfig(str(options.get("env", "")), Path()))
    return _flatten(defaults | {"representation": to_plain(form, "text")}) | _flatten(options)


def differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Returns the options with different values, by dotted name: [before, now], as in JSON."""
    old, new = (_flatten(json.loads(json.dumps(options))) for options in (before, now))
    pairs = {name: [old.get(name), new.get(name)] for name in sorted(old.keys() | new.keys())}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _flatten(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted name; where there are nested ones, the outer name has "options"."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        nested = isinstance(value, dict)
        flat[prefix + name] = "options" if nested else value
        flat |= _flatten(value, f"{prefix}{name}.") if nested else {}
    return flat


def describe_fixed_changes(pairs: dict[str, Any]) -> str:
    """Describes which options that a run must keep have changed, [before, now]; empty if none have."""
    fixed = {name: pair for name, pair in pairs.items() if name.split(".")[0] not in MAY_CHANGE}
    return "; ".join(f"{name} was {old}, now {new}" for name, (old, new) in fixed.items() if old != new)
