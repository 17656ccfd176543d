"""Run folders of `derex train` as they lie on a disk, finished, still going or cut short; read without JAX."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from derex.report.files import read_json

CONFIG, METRICS, COMMAND = "config.json", "metrics.jsonl", "train"


@dataclass(frozen=True, eq=False)
class RunLog:
    """What one run was, and its lines so far.

    Attributes:
        folder: where it is.
        config: its resolved options.
        lines: of metrics.jsonl; whole ones only.
        damaged: lines that could not be read and were left out.
    """

    folder: Path
    config: dict[str, Any]
    lines: list[dict[str, Any]]
    damaged: int = 0

    @property
    def env(self) -> str:
        """Name of the environment."""
        return str(self.config.get("env", "?"))

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.config.get("method", "?"))

    @property
    def form(self) -> str:
        """Its form; empty where it has none."""
        return str(self.config.get("form", ""))


def find_runs(paths: Sequence[Path]) -> list[RunLog]:
    """The runs in the folders, each once: a folder is one itself, or is searched. Runs without a line are left out.

    Raises:
        ValueError: a path is no folder, or holds no run.
    """
    found: dict[Path, RunLog] = {}
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"dirs: {path} is no folder; give folders of derex train, or folders of them.")
        runs = list(_search(path))
        if not runs:
            raise ValueError(f"dirs: {path} holds no run of derex train.")
        found |= {run.folder.resolve(): run for run in runs if run.folder.resolve() not in found}
    begun = [run for run in found.values() if run.lines]
    if not begun:
        raise ValueError(f"dirs: no run in {', '.join(map(str, paths))} has a line of metrics yet.")
    return begun


def read_run(folder: Path) -> RunLog | None:
    """The run in the folder; None where there is none."""
    content = read_json(folder / CONFIG)
    if content is None or content.get("command") != COMMAND or not isinstance(content.get("config"), dict):
        return None
    lines, damaged = read_lines(folder / METRICS)
    return RunLog(folder, content["config"], lines, damaged)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The whole lines of a file of JSON, and how many others were left out; none where there is no file.

    The last line may be torn while a run is writing it, and is then waited for rather than counted as damaged. Where
    a step was written twice, by a run that went back to its checkpoint, the later line stands.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return [], 0
    lines, damaged = {}, 0
    for line in text.split("\n")[:-1]:
        try:
            content = json.loads(line)
            lines[int(content["step"]), int(content["seed"])] = content
        except (ValueError, TypeError, KeyError):
            damaged += 1
    return [lines[place] for place in sorted(lines)], damaged


def _search(folder: Path) -> Iterator[RunLog]:
    """The run that is the folder, else all inside, in the order of their names; nothing is searched inside of a run."""
    for place, inside, names in os.walk(folder):
        inside.sort()
        run = read_run(Path(place)) if CONFIG in names else None
        if run is not None:
            inside.clear()
            yield run
