"""Run folders as `derex train` leaves them, without a run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WriteRun = Callable[..., Path]


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Writes a run: `write_run("a", env=..., curves={seed: values})`, a line every 100 steps."""

    def write(name: str, curves: dict[int, list[Any]], every: int = 100, **config: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        options = {"env": "catch", "method": "vmpo", "form": "", "agent": {"width": 8}} | config
        (folder / "config.json").write_text(json.dumps({"command": "train", "config": options}))
        lines = [
            {"step": (place + 1) * every, "seed": seed, "return": value, "spectrum": [1.0]}
            for place in range(max(map(len, curves.values())))
            for seed, values in curves.items()
            for value in values[place : place + 1]
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    return write
