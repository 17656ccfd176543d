"""Progress of the study on a terminal: which run of how many, how far it is, and what the last interval gave.

Runs the study of exploration; what is done already is not done again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from derex.envs.registry import make
from derex.report.visits import short_steps
from derex.studies.common import StudyResult, claim_folder, write_metrics
from derex.studies.definitions import FORMS, ExplorationCase, ExplorationStudy, resolved
from derex.studies.exploration_report import (
    COLUMNS,
    KeptRuns,
    Run,
    summarise,
    table_row,
    train_config,
    with_overheads,
    write_report,
)
from derex.training.config import TrainConfig
from derex.training.logging import LiveBar, news_of
from derex.training.metrics import DivergedError
from derex.training.run import train


class RunsProgress:
    """A bar over the steps of all runs; to each run it is what is told how far training is."""

    def __init__(self, runs: int, steps: int, seeds: int):
        self._runs, self._steps, self._seeds, self._done = runs, steps, seeds, 0
        self._bar = LiveBar("derex reproduce exploration", runs * steps, "")
        self._label = self._news = ""

    def __enter__(self) -> RunsProgress:
        self._bar.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.__exit__(*exception)

    def start(self, label: str) -> None:
        """A run begins."""
        self._label, self._news = label, ""
        self._bar.restart()
        self._show(0, f"{label}: compiling")

    def compiled(self, seconds: float) -> None:
        self._show(0, f"{self._label}: compiled in {seconds:.0f} s")

    def advanced(self, step: int, rate: float) -> None:
        left = (self._steps - step) * self._seeds / max(rate, 1e-9)
        text = f"{self._label}: {short_steps(step)}/{short_steps(self._steps)}, {short_steps(rate)} steps/s"
        self._show(step, f"{text}  {self._news}")
        self._bar.mention(f"{text}, {max(left, 0.0):.0f} s left  {self._news}")

    def logged(self, lines: list[dict[str, Any]]) -> None:
        self._news = news_of(lines)

    def finish(self, result: str = "") -> None:
        """The run ended, with this result."""
        self._done += 1
        self._bar.say(f"{self._done}/{self._runs}  {self._label}: {result}")
        self._show(0)

    def skip(self) -> None:
        """It was not needed."""
        self._done += 1
        self._show(0)

    def _show(self, step: int, status: str | None = None) -> None:
        within = min(step, self._steps) if self._done < self._runs else 0
        self._bar.update(self._done * self._steps + within, status, f"{self._done}/{self._runs}")


def run(study: ExplorationStudy) -> StudyResult:
    """Train every case, or find it done, then write numbers, pictures and page."""
    study = resolved(study)
    _check(study)
    configs = {case: train_config(study, case) for case in study.cases()}
    steps = int(study.steps)
    study = replace(study, steps=steps)
    claim_folder(study.out, study.name)
    kept, runs, failed = KeptRuns(study), {}, {}
    with RunsProgress(len(configs), steps, study.seeds) as progress:
        for case, config in configs.items():
            try:
                runs[case] = _run(case, config, kept, progress)
            except DivergedError as error:  # the others can still be compared; it is tried again next time
                failed[f"{case.env}, {case.label}"] = str(error)
                progress.finish(str(error))
    if not runs:
        raise ValueError(f"all runs diverged, the first thus: {next(iter(failed.values()))}")
    summaries = with_overheads([summarise(case, found) for case, found in runs.items()])
    write_metrics(study.out, study.name, study, {"results": summaries, "diverged": failed})
    page = write_report(study, summaries, failed)
    rows = [table_row(entry) for entry in summaries]
    rows += [(*name.split(", ", 1), "diverged", *["–"] * (len(COLUMNS) - 3)) for name in failed]
    return StudyResult(page=page, columns=COLUMNS, rows=tuple(rows))


def _run(case: ExplorationCase, config: TrainConfig, kept: KeptRuns, progress: RunsProgress) -> Run:
    """The run of a case: an earlier one with the same settings, or a new one."""
    found = kept.get(case, config)
    if found is not None:
        progress.skip()
        return found
    progress.start(f"{case.env}, {case.label}")
    kept.begin(case, config)
    result = train(config, progress)
    found = kept.put(case, config)
    progress.finish(f"trained in {result.seconds:.0f} s, compiled in {result.compile_seconds:.0f} s")
    return found


def _check(study: ExplorationStudy) -> None:
    for name in ("envs", "methods", "forms"):
        values = getattr(study, name)
        if not values or len(set(values)) < len(values):
            raise ValueError(f"--{name}: expected at least one, and each once; got {values}.")
    for form in study.forms:
        if form not in FORMS:
            raise ValueError(f"--forms: expected some of {', '.join(FORMS)}; got {form!r}.")
    for name in ("seeds", "streams", "width", "k"):
        if getattr(study, name) < 1:
            raise ValueError(f"--{name}: expected at least 1, got {getattr(study, name)}.")
    for env in study.envs:
        make(env)
