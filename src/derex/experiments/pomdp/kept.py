"""Finished cases of a study, kept in its folder: an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
import sys
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from derex._version import __version__
from derex.estimators import HistoryDeRex
from derex.experiments.output import UNFINISHED
from derex.experiments.pomdp.definition import Case, PomdpStudy
from derex.experiments.pomdp.evaluation import Outcome
from derex.report.files import DamagedError, read_npz, write_atomically, write_npz

IRRELEVANT = {"out", "quick", "p", "seeds"}  # to what a single case gives


class KeptCases:
    """The cases of a study that are done, one file each; those of other settings count as not done."""

    def __init__(self, study: PomdpStudy):
        self.folder = study.out / "cases"
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(study.out / UNFINISHED, json.dumps({"study": study.name}).encode())
        self._settings = {name: value for name, value in asdict(study).items() if name not in IRRELEVANT}

    def checkpoint(self, case: Case) -> Path:
        """Where the fit of a case keeps its state while it runs; each setting has its own, none is in another's way.

        What is there and cannot be gone on from is removed.
        """
        code = zlib.crc32(json.dumps(self._described(case)).encode())
        path = self.folder / f"{case.name}.{code:08x}.model.npz"
        if path.exists():
            try:
                HistoryDeRex.load(path)
            except ValueError:
                _note(path, "its fit starts again")
                path.unlink(missing_ok=True)
        return path

    def get(self, case: Case) -> Outcome | None:
        """The outcome of a case, if it is done."""
        path = self._path(case)
        if not path.exists():
            return None
        try:
            header, arrays = read_npz(path, "derex reproduce pomdp")
        except DamagedError:
            _note(path, "its case is computed again")
            return None
        if header.get("settings") != self._described(case) or "row" not in header:
            return None
        return Outcome(header["row"], arrays)

    def put(self, case: Case, outcome: Outcome) -> None:
        """Keep the outcome; what fits of this case had kept is no longer needed."""
        write_npz(self._path(case), {"settings": self._described(case), "row": outcome.row}, outcome.arrays)
        for checkpoint in self.folder.glob(f"{case.name}.*.model.npz"):
            checkpoint.unlink(missing_ok=True)

    def _path(self, case: Case) -> Path:
        return self.folder / f"{case.name}.npz"

    def _described(self, case: Case) -> dict[str, Any]:
        return json.loads(
            json.dumps({"derex": __version__, "study": self._settings, "case": asdict(case)}, default=_plain)
        )


def _note(path: Path, so: str) -> None:
    print(f"derex: {path} is damaged; {so}.", file=sys.stderr, flush=True)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
