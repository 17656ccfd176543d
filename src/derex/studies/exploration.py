"""Runs the exploration study. Finished runs with the same settings are reused."""

from __future__ import annotations

from dataclasses import replace

from derex.envs.registry import make
from derex.progress import ProgressBar
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
from derex.training.logging import TrainingBar
from derex.training.metrics import DivergedError
from derex.training.run import train


def run(study: ExplorationStudy) -> StudyResult:
    """Train every case, or find it done, then write numbers, pictures and page."""
    study = resolved(study)
    _check(study)
    configs = {case: train_config(study, case) for case in study.cases()}
    steps = int(study.steps)
    study = replace(study, steps=steps)
    claim_folder(study.out, study.name)
    kept, runs, failed = KeptRuns(study), {}, {}
    with ProgressBar("derex reproduce exploration", len(configs)) as progress:
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


def _run(case: ExplorationCase, config: TrainConfig, kept: KeptRuns, progress: ProgressBar) -> Run:
    """The run of a case: an earlier one with the same settings, or a new one."""
    found = kept.get(case, config)
    if found is not None:
        progress.finish()
        return found
    progress.start(f"{case.env}, {case.label}")
    kept.begin(case, config)
    result = train(config, TrainingBar(progress, int(config.steps), config.seeds))
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
