"""Runs the study of hidden agents; what is done already is not done again."""

from __future__ import annotations

from typing import Any

from derex.experiments.output import claim_folder, write_metrics
from derex.experiments.pomdp.analysis import summarise, terminal_table, write_report
from derex.experiments.pomdp.definition import Case, PomdpStudy
from derex.experiments.pomdp.evaluation import Outcome, evaluate
from derex.experiments.pomdp.kept import KeptCases
from derex.experiments.progress import StudyProgress
from derex.experiments.quick import resolved
from derex.experiments.result import StudyResult

OBJECTIVES = ("nested", "derex")


def run(study: PomdpStudy) -> StudyResult:
    """Train and evaluate every case, then write numbers, pictures and page."""
    config = resolved(study)
    _check(config)
    claim_folder(study.out, study.name)
    kept, outcomes = KeptCases(config), {}
    with StudyProgress("derex reproduce pomdp", len(config.cases())) as progress:
        for group in config.groups():
            outcomes |= _group(config, group, kept, progress)
    rows = [_row(case, outcomes[case]) for case in config.cases()]
    summary = summarise(rows)
    write_metrics(config.out, study.name, config, {"results": rows, "summary": summary})
    page = write_report(config, outcomes, summary)
    columns, cells = terminal_table(summary)
    return StudyResult(page=page, columns=columns, rows=cells)


def _group(
    config: PomdpStudy, group: list[Case], kept: KeptCases, progress: StudyProgress
) -> dict[Case, Outcome]:
    """The seeds of one setting: those that are not done are trained side by side."""
    outcomes = {case: found for case in group if (found := kept.get(case)) is not None}
    left = [case for case in group if case not in outcomes]
    for _ in outcomes:
        progress.skip()
    if not left:
        return outcomes
    progress.start(left[0].label + (f", {len(left)} seeds" if len(left) > 1 else ""))

    def watch(done: int, loss: float, trace: float, off_diagonal: float) -> None:
        progress.within(done, left[0].steps(config), f"tr Σ̃ {trace:.2f}, off-diagonal {off_diagonal:.3f}")

    for case, outcome in evaluate(config, left, [kept.checkpoint(case) for case in left], watch):
        kept.put(case, outcome)
        outcomes[case] = outcome
        progress.finish(f"seed {case.seed}, accuracy {outcome.row['decoded_accuracy']:.3f}")
    return outcomes


def _row(case: Case, outcome: Outcome) -> dict[str, Any]:
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
