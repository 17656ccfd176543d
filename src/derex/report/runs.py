"""Reads run folders of `derex train` without JAX: finished runs, running ones and ones that were cut short."""

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
    """The options of one run and its metrics so far.

    Attributes:
        folder: the run's folder.
        config: its resolved options.
        lines: of metrics.jsonl, as `read_lines` returns them.
        damaged: number of lines that could not be read and were left out.
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
        """The method's form; empty if it has none."""
        return str(self.config.get("form", ""))


def find_runs(paths: Sequence[Path]) -> list[RunLog]:
    """Finds the runs in the folders, each once; runs without a line of metrics are left out.

    Args:
        paths: run folders, or folders that are searched for them.

    Raises:
        ValueError: a path is not a folder, or contains no run.
    """
    found: dict[Path, RunLog] = {}
    for path in paths:
        if not path.is_dir():
            raise ValueError(
                f"dirs: {path} is not a folder; give run folders of derex train, or folders of them."
            )
        runs = list(_search(path))
        if not runs:
            raise ValueError(f"dirs: {path} contains no run of derex train.")
        for run in runs:
            found.setdefault(run.folder.resolve(), run)
    begun = [run for run in found.values() if run.lines]
    if not begun:
        raise ValueError(f"dirs: no run in {', '.join(map(str, paths))} has a line of metrics yet.")
    return begun


def read_run(folder: Path) -> RunLog | None:
    """Reads the run in the folder; None if the folder is not a run."""
    content = read_json(folder / CONFIG)
    if content is None or content.get("command") != COMMAND or not isinstance(content.get("config"), dict):
        return None
    return RunLog(folder, content["config"], *read_lines(folder / METRICS))


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Reads a metrics file, tolerating damage, as a plot of a running or killed run needs it.

    Where a step was written twice, by a run that resumed from an earlier checkpoint, the later line counts.

    Returns:
        The lines by step and seed, and the number of damaged ones that were left out.
    """
    lines, damaged = {}, 0
    for raw in split_lines(path):
        try:
            line = parse_line(raw)
            lines[int(line["step"]), int(line["seed"])] = line
        except (ValueError, TypeError):
            damaged += 1
    return [lines[place] for place in sorted(lines)], damaged


def split_lines(path: Path) -> list[bytes]:
    """Returns the complete lines of a file, without their ends; none if there is no file.

    What follows the last line end is left out: a running process may be writing it.
    """
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def parse_line(raw: bytes, required: Sequence[str] = ("step", "seed")) -> dict[str, Any]:
    """Parses one line of metrics.

    Raises:
        ValueError: it is not a JSON object, or lacks one of the `required` keys.
    """
    line = json.loads(raw)
    if not isinstance(line, dict) or any(name not in line for name in required):
        text = raw[:80].decode(errors="replace")
        raise ValueError(f"expected {', '.join(required)} in the line, got {text}")
    return line


def _search(folder: Path) -> Iterator[RunLog]:
    """Yields the runs at or below the folder, in the order of their names; does not search inside runs."""
    for place, inside, names in os.walk(folder):
        inside.sort()
        run = read_run(Path(place)) if CONFIG in names else None
        if run is not None:
            inside.clear()
            yield run
