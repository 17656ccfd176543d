"""Runs the study of hidden agents. Finished cases with the same settings are reused."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from derex._text import to_plain
from derex._version import __version__
from derex.estimators import HistoryDeRex
from derex.progress import ProgressBar
from derex.report.files import DamagedFileError, read_npz, write_npz
from derex.studies.common import StudyResult, claim_folder, report_damage, start_cases, write_metrics
from derex.studies.definitions import PomdpCase, PomdpStudy, resolved
from derex.studies.pomdp_cases import Outcome, evaluate
from derex.studies.pomdp_report import summarise, terminal_table, write_report

IRRELEVANT = {"out", "quick", "p", "seeds"}  # to what a single case gives


class KeptCases:
    """The cases of a study that are done, one file each; those of other settings count as not done."""

    def __init__(self, study: PomdpStudy):
        self.folder = start_cases(study.out, study.name)
        self._settings = {name: value for name, value in asdict(study).items() if name not in IRRELEVANT}

    def checkpoint(self, case: PomdpCase) -> Path:
        """Where the fit of a case keeps its state while it runs; each setting has its own, none is in another's way.

        A checkpoint that cannot be resumed from is removed.
        """
        code = zlib.crc32(json.dumps(self._described(case)).encode())
        path = self.folder / f"{case.name}.{code:08x}.model.npz"
        if path.exists():
            try:
                HistoryDeRex.load(path)
            except ValueError:
                report_damage(path, "its fit starts again")
                path.unlink(missing_ok=True)
        return path

    def get(self, case: PomdpCase) -> Outcome | None:
        """The outcome of a case, if it is done."""
        path = self._path(case)
        if not path.exists():
            return None
        try:
            header, arrays = read_npz(path, "derex reproduce pomdp")
        except DamagedFileError:
            report_damage(path, "its case is computed again")
            return None
        if header.get("settings") != self._described(case) or "row" not in header:
            return None
        return Outcome(header["row"], arrays)

    def put(self, case: PomdpCase, outcome: Outcome) -> None:
        """Keep the outcome; what fits of this case had kept is no longer needed."""
        write_npz(self._path(case), {"settings": self._described(case), "row": outcome.row}, outcome.arrays)
        for checkpoint in self.folder.glob(f"{case.name}.*.model.npz"):
            checkpoint.unlink(missing_ok=True)

    def _path(self, case: PomdpCase) -> Path:
        return self.folder / f"{case.name}.npz"

    def _described(self, case: PomdpCase) -> dict[str, Any]:
        return to_plain({"derex": __version__, "study": self._settings, "case": case})


OBJECTIVES = ("nested", "derex")


def run(study: PomdpStudy) -> StudyResult:
    """Train and evaluate every case, then write numbers, pictures and page."""
    config = resolved(study)
    _check(config)
    claim_folder(study.out, study.name)
    kept, outcomes = KeptCases(config), {}
    with ProgressBar("derex reproduce pomdp", len(config.cases())) as progress:
        for group in config.groups():
            outcomes |= _group(config, group, kept, progress)
    rows = [_row(case, outcomes[case]) for case in config.cases()]
    summary = summarise(rows)
    write_metrics(config.out, study.name, config, {"results": rows, "summary": summary})
    page = write_report(config, outcomes, summary)
    columns, cells = terminal_table(summary)
    return StudyResult(page=page, columns=columns, rows=cells)


def _group(
    config: PomdpStudy, group: list[PomdpCase], kept: KeptCases, progress: ProgressBar
) -> dict[PomdpCase, Outcome]:
    """The seeds of one setting: those that are not done are trained side by side."""
    outcomes = {case: found for case in group if (found := kept.get(case)) is not None}
    left = [case for case in group if case not in outcomes]
    for _ in outcomes:
        progress.finish()
    if not left:
        return outcomes
    progress.start(left[0].label + (f", {len(left)} seeds" if len(left) > 1 else ""))

    def watch(done: int, loss: float, trace: float, off_diagonal: float) -> None:
        progress.update(done, left[0].steps(config), f"tr Σ̃ {trace:.2f}, off-diagonal {off_diagonal:.3f}")

    for case, outcome in evaluate(config, left, [kept.checkpoint(case) for case in left], watch):
        kept.put(case, outcome)
        outcomes[case] = outcome
        progress.finish(f"seed {case.seed}, accuracy {outcome.row['decoded_accuracy']:.3f}")
    return outcomes


def _row(case: PomdpCase, outcome: Outcome) -> dict[str, Any]:
    return case.described() | outcome.row


def _check(study: PomdpStudy) -> None:
    if not study.p or not all(0.0 <= p <= 1.0 for p in study.p):
        raise ValueError(f"--p: expected probabilities between 0 and 1, got {study.p}.")
    if len(set(study.p)) < len(study.p):
        raise ValueError(f"--p: each probability once, got {study.p}.")
    least = {"seeds": 1, "steps": 1, "width": 1, "batch": 2, "large_k": 1, "trajectories": 2,
             "decoder_trajectories": 1, "test_trajectories": 1, "horizon": 2, "tests": 1}  # fmt: skip
    for name, smallest in least.items():
        if getattr(study, name) < smallest:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option}: expected at least {smallest}, got {getattr(study, name)}.")
    if study.objective not in OBJECTIVES:
        raise ValueError(f"--objective: expected one of {', '.join(OBJECTIVES)}; got {study.objective!r}.")
    if study.horizon <= study.tests:
        raise ValueError(
            f"--horizon: expected more than the {study.tests} steps of --tests, got {study.horizon}."
        )
    most = max(case.k for case in study.cases())
    if most > study.width:
        raise ValueError(
            f"--width: expected at least {most}, as many units as the most features (--large-k {study.large_k}), got "
            f"{study.width}."
        )
    histories = study.trajectories * (study.horizon + 1 - study.tests)  # with a whole test after them
    if histories < 2 * most + 2:
        raise ValueError(
            f"--trajectories: {study.trajectories} of --horizon {study.horizon} have {histories} histories with "
            f"--tests {study.tests} steps after them, expected at least {2 * most + 2} for {most} features. Raise "
            "--trajectories or --horizon, or lower --tests or --large-k."
        )
