"""Finished runs of the study: a small file each says with which settings, so that an interrupted study goes on."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from derex._version import __version__
from derex.experiments.exploration.definition import Case, ExplorationStudy
from derex.experiments.output import UNFINISHED
from derex.report.files import read_json, write_atomically
from derex.training.config import TrainConfig, to_plain
from derex.training.folder import COMMAND, CONFIG, METRICS, NOT_KEPT, read_metrics, remove_run
from derex.training.presets import exploration_agent, exploration_form


class Run(NamedTuple):
    """A finished run."""

    lines: list[dict[str, Any]]
    """of its metrics.jsonl"""
    device: str
    """on what it was made: rates of different devices are not compared"""


def train_config(study: ExplorationStudy, case: Case) -> TrainConfig:
    """What `derex train` is asked for."""
    form = exploration_form(case.env, case.method, case.form, width=study.width, k=study.k)
    return TrainConfig(
        env=case.env,
        out=study.out / "runs" / case.name,
        method=case.method,
        form=case.form,
        steps=study.steps,
        seeds=study.seeds,
        streams=study.streams,
        overwrite=True,
        agent=exploration_agent(case.env, case.method, case.form, width=study.width),
        representation=form,
    ).resolved()


class KeptRuns:
    """The runs of a study that are done; those of other settings, and damaged ones, count as not done."""

    def __init__(self, study: ExplorationStudy):
        self._folder = study.out / "cases"
        write_atomically(study.out / UNFINISHED, json.dumps({"study": study.name}).encode())

    def get(self, case: Case, config: TrainConfig) -> Run | None:
        """The run of a case, if it is done."""
        path, metrics = self._path(case), config.out / METRICS
        if not path.exists():
            return None
        header = read_json(path)
        if header is None:
            return _note(path)
        if header.get("settings") != _described(config):
            return None
        if not metrics.exists() or header.get("metrics") != zlib.crc32(metrics.read_bytes()):
            return _note(metrics)
        return Run(read_metrics(config.out), str(header.get("device")))

    def begin(self, case: Case, config: TrainConfig) -> None:
        """What there is of the case is no longer a finished run; the folder is left so that a run can claim it."""
        self._path(case).unlink(missing_ok=True)
        if (read_json(config.out / CONFIG) or {}).get("command") != COMMAND:
            remove_run(config.out)  # a run would not know it for its own

    def put(self, case: Case, config: TrainConfig) -> Run:
        """The run of the case has just finished."""
        devices = (read_json(config.out / CONFIG) or {}).get("devices", {})
        device = " ".join(str(devices.get(name)) for name in ("platform", "kind", "count"))
        code = zlib.crc32((config.out / METRICS).read_bytes())
        header = {"settings": _described(config), "metrics": code, "device": device}
        write_atomically(self._path(case), (json.dumps(header, indent=1) + "\n").encode())
        return Run(read_metrics(config.out), device)

    def _path(self, case: Case) -> Path:
        return self._folder / f"{case.name}.json"


def _described(config: TrainConfig) -> dict[str, Any]:
    """All that decides what the run gives, as JSON has it."""
    options = {name: value for name, value in to_plain(config).items() if name not in NOT_KEPT}
    return json.loads(json.dumps({"derex": __version__, "config": options}))


def _note(path: Path) -> None:
    print(f"derex: {path} is missing or damaged; its case runs again.", file=sys.stderr, flush=True)
