"""The folder of a run: claimed once, and readable however the run ends.

config.json     what was run, by which versions, on what; written first
metrics.jsonl   a line for each log interval and seed, whole lines only
visitation.npz  where states are numbered: how often each was seen, interval by interval
visitation.png  the same as a picture, at the end
"""

from __future__ import annotations

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from derex._version import __version__
from derex.report.files import read_json, write_atomically
from derex.training.config import TrainConfig, from_plain, to_plain

CONFIG, METRICS, VISITS, VISITS_PICTURE = "config.json", "metrics.jsonl", "visitation.npz", "visitation.png"
COMMAND = "train"
PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy")
NOT_KEPT = ("out", "overwrite")  # where a run went, not what it was; and a path tells of the machine


def claim_folder(folder: Path, overwrite: bool) -> None:
    """Make the folder; refuse one with an earlier run unless told to begin again, and anybody else's always."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--out: {folder} is a file; give a folder.")
    if folder.is_dir() and any(folder.iterdir()):
        if not _holds_run(folder):
            raise FileExistsError(
                f"--out: {folder} is not empty and holds no run of derex train; choose another folder."
            )
        if not overwrite:
            raise FileExistsError(
                f"--out: {folder} holds an earlier run; choose another folder, or begin again with --overwrite."
            )
        for name in (METRICS, VISITS, VISITS_PICTURE, CONFIG):
            (folder / name).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)


def write_config(folder: Path, config: TrainConfig) -> Path:
    """config.json: the resolved options and all that is needed to run them again."""
    options = {name: value for name, value in to_plain(config).items() if name not in NOT_KEPT}
    device = jax.devices()[0]
    content = {
        "command": COMMAND,
        "config": options,
        "iterations": config.iterations,
        "versions": {"derex": __version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "devices": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "commit": find_commit(Path.cwd()),
    }
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    return write_atomically(folder / CONFIG, text.encode())


def load_config(folder: str | Path) -> TrainConfig:
    """The resolved options of the run in the folder."""
    folder = Path(folder)
    content = read_json(folder / CONFIG)
    if content is None or content.get("command") != COMMAND:
        raise ValueError(f"folder: {folder} holds no run of derex train: its {CONFIG} is missing or not one.")
    options = content["config"]
    chosen = {name: options[name] for name in ("method", "form")}
    default = TrainConfig(options["env"], folder, **chosen).resolved()
    return from_plain(default, options)


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, as dicts."""
    text = (Path(folder) / METRICS).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def append_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Adds lines of JSON by one write, so that a run that is killed leaves whole ones."""
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    with path.open("ab", buffering=0) as file:
        file.write(text.encode())


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


def _holds_run(folder: Path) -> bool:
    content = read_json(folder / CONFIG)
    return content is not None and content.get("command") == COMMAND
