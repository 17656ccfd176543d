"""The folder of a run: claimed once, and readable however the run ends.

config.json     what was run, by which versions, on what; written first, and added to when the run is resumed
metrics.jsonl   a line for each log interval and seed, whole lines only
events.jsonl    what else happened, with its time: checkpoints found damaged, stops
checkpoints/    the whole state, now and then (`checkpoints.py`)
visitation.npz  where states are numbered: how often each was seen, interval by interval
visitation.png  the same as a picture, at the end

Whether a checkpoint belongs to the config.json of its folder: one may have been edited, the other copied there.
"""

from __future__ import annotations

import errno
import json
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
from derex.training.config import TrainConfig, from_plain

CONFIG, METRICS, VISITS, VISITS_PICTURE = "config.json", "metrics.jsonl", "visitation.npz", "visitation.png"
EVENTS, CHECKPOINTS, EVALUATIONS = "events.jsonl", "checkpoints", "eval.json"
LOGGER_FOLDERS = ("tensorboard", "wandb")  # folders of loggers
COMMAND = "train"
NEEDED = ("step", "seed", "return", "success")  # in a line of metrics, for scores
PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "orbax-checkpoint")
NOT_WRITTEN = ("out", "overwrite")  # where a run went, not what it was; and a path tells of the machine
SAVING_OPTIONS = ("save_every", "keep", "max_skipped")
WORKER_OPTIONS = ("workers", "worker_timeout", "worker_restarts")
NO_EFFECT_ON_NUMBERS = (*NOT_WRITTEN, *SAVING_OPTIONS, *WORKER_OPTIONS, "deterministic", "loggers")
"""what does not decide which numbers a run gives"""


class FullDiskError(OSError):
    """There is no room for what a run has to write."""


def claim_folder(folder: Path, overwrite: bool) -> None:
    """Make the folder; refuse one with an earlier run unless told to begin again, and anybody else's always."""
    check_folder(folder)
    if holds_run(folder):
        if not overwrite:
            raise FileExistsError(
                f"--out: {folder} holds an earlier run; choose another folder, or begin again with --overwrite."
            )
        remove_run(folder)
    make_folder(folder)


def check_folder(folder: Path) -> None:
    """Refuses a path that is no folder, and a folder that is somebody else's."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--out: {folder} is a file; give a folder.")
    if folder.is_dir() and not holds_run(folder) and any(not _leftover(path) for path in folder.iterdir()):
        raise FileExistsError(
            f"--out: {folder} is not empty and holds no run of derex train; choose another folder."
        )


def make_folder(folder: Path) -> None:
    """Makes the folder if need be, and tries whether it can be written to."""
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
    """Takes away what a run wrote and nothing else, config.json last: until then the folder is known for a run's."""
    for name in (CHECKPOINTS, *LOGGER_FOLDERS):
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
    for name in (METRICS, EVENTS, EVALUATIONS, VISITS, VISITS_PICTURE, CONFIG):
        (folder / name).unlink(missing_ok=True)
    remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Takes away what was being written when a run was killed."""
    for path in folder.glob(".*.tmp"):
        if _leftover(path):
            path.unlink()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """No other run writes to the folder meanwhile; the lock is the system's and ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows has none
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(
                f"--out: another process is training in {folder} now; wait for it, stop it, or choose another folder."
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # a file system without locks
                raise
        yield
    finally:
        os.close(handle)


def holds_run(folder: Path) -> bool:
    """Whether derex train has been here."""
    content = read_json(folder / CONFIG)
    return content is not None and content.get("command") == COMMAND


def plain_options(config: TrainConfig) -> dict[str, Any]:
    """What config.json keeps of the options."""
    return {name: value for name, value in to_plain(config, "text").items() if name not in NOT_WRITTEN}


def write_config(folder: Path, config: TrainConfig) -> Path:
    """config.json: the resolved options and all that is needed to run them again."""
    content = {"command": COMMAND, "config": plain_options(config), "iterations": config.iterations}
    return _write_config(folder, content | describe_platform())


def record_resume(folder: Path, config: TrainConfig, step: int, changed: dict[str, Any]) -> Path:
    """config.json of a run that goes on from `step`: the options as they are now, and what is not as it was."""
    content = read_json(folder / CONFIG) or {}
    resumed = [*content.get("resumed", []), {"step": step, **describe_platform(), "changed": changed}]
    options = {"config": plain_options(config), "iterations": config.iterations}
    return _write_config(folder, content | options | {"resumed": resumed})


def describe_platform() -> dict[str, Any]:
    """Versions, devices, the commit of derex itself, and that of the current folder where it is a repository."""
    device = jax.devices()[0]
    here = find_commit(Path.cwd())
    return {
        "versions": {"derex": __version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "devices": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "commit": source_commit(),
    } | ({} if here is None else {"commit_of_directory": here})


def check_env(folder: Path, env: Any, named: str | None) -> None:
    """Refuses an environment that is code of somebody's own, unless it was named by whoever loads the run."""
    if not isinstance(env, str):
        raise TypeError(f"env is {env!r}")
    if imports_user_code(env) and env != named:
        raise ValueError(
            f"env: the run in {folder} is of {env!r}, code that did not come with derex. If you trust it, name it too: "
            f"--env {env}"
        )


def load_config(folder: str | Path, method: str | None = None, env: str | None = None) -> TrainConfig:
    """The resolved options of the run in the folder.

    Args:
        folder: of the run.
        method: of the run, where it is somebody's own, `package.module:Class`: a folder from elsewhere could name any
            code there is, so it is imported only when you name it too.
        env: of the run, for the same reason, where its name holds a module's.
    """
    folder = Path(folder)
    content = read_json(folder / CONFIG)
    if content is None or content.get("command") != COMMAND:
        raise ValueError(f"folder: {folder} holds no run of derex train: its {CONFIG} is missing or not one.")
    try:
        options = content["config"]
        chosen = str(options["method"])
        if ":" in chosen and chosen != method:
            raise ValueError(
                f"method: the run in {folder} is of {chosen!r}, code that did not come with derex. If you trust it, "
                f"name it too: --method {chosen}"
            )
        check_env(folder, options["env"], env)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"folder: {folder / CONFIG} is damaged: {error}.") from error
    try:
        default = TrainConfig(options["env"], folder, method=chosen, form=str(options["form"])).resolved()
        return from_plain(default, options).resolved()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"folder: {folder / CONFIG} is damaged: {str(error).rstrip('.')}.") from error


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, as dicts."""
    text = (Path(folder) / METRICS).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def check_metrics(folder: Path, step: int, seeds: tuple[int, ...]) -> str:
    """Whether metrics.jsonl has what a run that goes on needs of it; only reads.

    Args:
        folder: of the run.
        step: of the last line that the checkpoint knows of; 0 where it knows of none.
        seeds: each has a line there.

    Returns:
        What is missing, in words; empty where nothing is. A run can go on without: what was learnt is elsewhere.

    Raises:
        ValueError: a line is damaged.
    """
    kept = [content for _, content in _kept_lines(folder / METRICS, step)]
    last = {line["seed"] for line in kept if line["step"] == step}
    if step and last != set(seeds):
        reached = max((line["step"] for line in kept), default=0)
        return f"{METRICS} has not all lines of step {step}, which were written; its last step before is {reached}"
    return ""


def cut_metrics(folder: Path, step: int) -> None:
    """Takes lines of later steps away, and one that was not written to its end."""
    path = folder / METRICS
    if path.exists():
        write_atomically(path, b"".join(line + b"\n" for line, _ in _kept_lines(path, step)))


def _kept_lines(path: Path, step: int) -> list[tuple[bytes, dict[str, Any]]]:
    """Whole lines up to the step, as they are and read; none where there is no file."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        read = [(line, json.loads(line)) for line in lines]
        for line, content in read:
            if not (all(name in content for name in NEEDED) and isinstance(content["seed"], int)):
                raise ValueError(
                    f"expected {', '.join(NEEDED)} in it, got {line[:80].decode(errors='replace')}"
                )
        return [(line, content) for line, content in read if content["step"] <= step]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--out: {path} has a damaged line: {error}. Mend it or take it out.") from error


def append_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Adds lines of JSON by one write, so that a run that is killed leaves whole ones; all of them, or none."""
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


def is_disk_full(error: OSError) -> bool:
    """Whether it says that there is no room left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def full_disk_error(folder: Path) -> FullDiskError:
    """For a file other than a checkpoint."""
    return FullDiskError(
        f"--out: the disk of {folder} is full. What was written before is whole. Make room and give the same command "
        "again: the run goes on from its last checkpoint."
    )


def add_event(folder: Path, event: str, **details: Any) -> None:
    """A line of events.jsonl with the time."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    append_lines(folder / EVENTS, [{"time": now, "event": event, **details}])


def source_commit() -> dict[str, Any] | None:
    """The commit of the code that runs; None where it is installed, be it inside of somebody's repository."""
    folder = Path(__file__).parent
    try:
        _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
    except (OSError, subprocess.SubprocessError):
        return None
    return find_commit(folder)


def find_commit(folder: Path) -> dict[str, Any] | None:
    """The commit that the folder is at, and whether files differ from it; None where there is none."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {"id": commit, "modified": bool(_git(folder, "status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    answer = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return answer.stdout.strip()


def _write_config(folder: Path, content: dict[str, Any]) -> Path:
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    return write_atomically(folder / CONFIG, text.encode())


def _leftover(path: Path) -> bool:
    """What a run that was killed while it wrote a file leaves: of config.json it can be all there is."""
    names = (CONFIG, METRICS, VISITS, VISITS_PICTURE)
    return path.name.endswith(".tmp") and path.name.startswith(tuple(f".{name}." for name in names))


MAY_CHANGE = ("steps", "log_every", "loggers", *SAVING_OPTIONS, *WORKER_OPTIONS)


def describe_mismatch(saved: dict[str, Any], stated: dict[str, Any]) -> str:
    """Options of a checkpoint that are not those of config.json, in words; empty where it belongs to it.

    Args:
        saved: options in the checkpoint's manifest.
        stated: those in config.json. Either may be of an older derex, without fields that were added since.
    """
    saved, stated = fill_defaults(saved), fill_defaults(stated)
    return describe_fixed_changes(differences(_merged(stated, saved), _merged(saved, stated)))


def fill_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """The options with this version's defaults for those they lack: an older derex trained as these defaults do.

    Those of somebody's own method stay as they are, since to know its defaults would be to import it; what only one
    side has of them is not compared.
    """
    method, form = str(options.get("method", "")), str(options.get("form", ""))
    defaults = to_plain(TrainConfig(str(options.get("env", "")), Path()), "text")
    defaults["representation"] = _form_defaults(method, form)
    return _merged(
        {name: value for name, value in defaults.items() if name not in ("out", "overwrite")}, options
    )


def differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options with other values, by dotted name: [before, now], as JSON has them."""
    found = {}
    for name in sorted(before.keys() | now.keys()):
        old, new = (json.loads(json.dumps(options.get(name))) for options in (before, now))
        if isinstance(old, dict) and isinstance(new, dict):
            found |= differences(old, new, f"{prefix}{name}.")
        elif old != new:
            found[f"{prefix}{name}"] = [old, new]
    return found


def describe_fixed_changes(changed: dict[str, Any]) -> str:
    """In words."""
    fixed = {name: values for name, values in changed.items() if name.split(".")[0] not in MAY_CHANGE}
    return "; ".join(f"{name} was {old}, now {new}" for name, (old, new) in fixed.items())


def _form_defaults(method: str, form: str) -> Any:
    from derex.representations.methods import METHODS

    return to_plain(METHODS.get(method, {}).get(form), "text")


def _merged(defaults: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    parts = {
        name: _merged(defaults[name], value)
        for name, value in options.items()
        if isinstance(value, dict) and isinstance(defaults.get(name), dict)
    }
    return defaults | options | parts
