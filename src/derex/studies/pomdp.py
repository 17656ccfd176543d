"""Section 5 and appendix D, four rooms with a hidden agent: cases, tables, pictures and page.

Finished cases with the same settings are reused, and an interrupted fit is resumed from its checkpoint.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from derex import report
from derex._text import to_plain
from derex._version import __version__
from derex.envs import FOUR_ROOMS, GridWorld, frame_table
from derex.estimators import HistoryDeRex
from derex.progress import ProgressBar
from derex.report import BeliefTrack, HistoryCloud, Section, StateBonus, Table
from derex.report.files import DamagedFileError, read_npz, write_npz
from derex.studies import common
from derex.studies.common import Row, StudyResult, format_interval
from derex.studies.definitions import (
    CLOCKS,
    DECODED,
    PICTURED,
    UNCERTAIN,
    WORDS,
    PomdpCase,
    PomdpStudy,
)
from derex.studies.pomdp_cases import Outcome, evaluate

IRRELEVANT = {"out", "quick", "p", "seeds"}  # to what a single case gives
OBJECTIVES = ("nested", "derex")
BELIEFS = {
    "decoded": "De-Rex",
    "filter": "Bayes filter",
    "filter_decoded": "filter, decoded",
    "untrained": "untrained",
    "memoryless": "last frame",
}
TRACKED = {"decoded": "Decoded from De-Rex", "filter": "Exact Bayes filter", "untrained": "Untrained network"}
SCORES = (
    *(f"{belief}_{score}" for belief in BELIEFS for score in ("accuracy", "log_loss", "distance", "distance_of_guess")),
    "spearman", "spearman_exact", "time_share", "trace", "trace_exact", "largest_off_diagonal", "seconds",
)  # fmt: skip
TERMINAL = {
    "accuracy": "decoded_accuracy",
    "untrained": "untrained_accuracy",
    "Manhattan": "decoded_distance",
    "log-loss": "decoded_log_loss",
    "filter's": "filter_decoded_log_loss",
    "bonus ~ 1/d": "spearman",
    "exact ~ 1/d": "spearman_exact",
}
"""the few columns of the terminal's table"""
BONUS_TABLE = {
    "Spearman(bonus, 1/d)": ("spearman", 3),
    "exact state-level decomposition's": ("spearman_exact", 3),
    "variance explained by t": ("time_share", 3),
    "Σσ": ("trace", 2),
    "exact Σσ": ("trace_exact", 2),
    "largest off-diagonal": ("largest_off_diagonal", 3),
    "seconds a fit": ("seconds", 0),
}
"""columns of the page's second table: scores and their digits"""
FIGURE_TIMES = 9  # columns of the belief figures

HOW_TO_READ = """
A frame shows four rooms from above; with probability **p** it hides the agent. A forward LSTM turns the history of
frames and actions into *k* features, a reverse LSTM reads what came next, and the decomposition makes the two predict
each other. Nothing ever told it where the agent was.

**Decoded** is one linear layer from the features to the state, trained on some trajectories and scored on others.
The **Bayes filter** knows the map and the dynamics and is the best that is possible; with a known start and moves that
never fail it is always certain, at every p. The same linear layer is put on the filter's own belief and on an
**untrained** network of the same kind, and a table of the **last frame alone** stands for having no memory. *Manhattan*
is the expected distance, in cells, between the true state and one drawn from the belief.
"""

WHY_NO_ACTIONS = """
The few features of the pictures are learnt from tests *without* their actions: futures as the policy makes them. With
actions, and moves that never fail, the future tells where the agent was: nearly all functions of the state are then
predicted almost perfectly, and the first three are no more telling than any others (`docs/histories.md`).
"""


def run(study: PomdpStudy) -> StudyResult:
    """Trains and evaluates every case, then writes numbers, pictures and page."""
    _check(study)
    common.claim_folder(study.out, study.name)
    common.start_cases(study)
    outcomes: dict[PomdpCase, Outcome] = {}
    with ProgressBar("derex reproduce pomdp", len(study.cases())) as progress:
        for group in study.groups():
            outcomes |= _evaluate_group(study, group, progress)
    rows = [to_plain(case) | outcomes[case].row for case in study.cases()]
    summary = common.summarise_groups(rows, ("purpose", "p", "k"), SCORES)
    common.write_metrics(study, results=rows, summary=summary)
    page = write_report(study, outcomes, summary)
    cells = [
        (
            _title(entry),
            *(f"{entry[name]['mean']:.3f}" if name in entry else "–" for name in TERMINAL.values()),
        )
        for entry in summary
    ]
    return StudyResult(page, Table("Hidden agents", ("what", *TERMINAL), tuple(cells)))


def _check(study: PomdpStudy) -> None:
    if not study.p or not all(0.0 <= p <= 1.0 for p in study.p):
        raise ValueError(f"--p: expected probabilities between 0 and 1, got {study.p}.")
    if len(set(study.p)) < len(study.p):
        raise ValueError(f"--p: each probability once, got {study.p}.")
    common.check_minimum(
        study, seeds=1, steps=1, width=1, batch=2, large_k=1, trajectories=2,
        decoder_trajectories=1, test_trajectories=1, horizon=2, tests=1,
    )  # fmt: skip
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


def _evaluate_group(
    study: PomdpStudy, group: list[PomdpCase], progress: ProgressBar
) -> dict[PomdpCase, Outcome]:
    """The seeds of one setting: those that are not done are trained side by side."""
    outcomes = {case: found for case in group if (found := load_outcome(study, case)) is not None}
    left = [case for case in group if case not in outcomes]
    for _ in outcomes:
        progress.finish()
    if not left:
        return outcomes
    progress.start(left[0].label + (f", {len(left)} seeds" if len(left) > 1 else ""))

    def watch(done: int, loss: float, trace: float, off_diagonal: float) -> None:
        progress.update(done, left[0].steps(study), f"tr Σ̃ {trace:.2f}, off-diagonal {off_diagonal:.3f}")

    checkpoints = [prepare_checkpoint(study, case) for case in left]
    for case, outcome in evaluate(study, left, checkpoints, watch):
        _save_outcome(study, case, outcome)
        outcomes[case] = outcome
        progress.finish(f"seed {case.seed}, accuracy {outcome.row['decoded_accuracy']:.3f}")
    return outcomes


def load_outcome(study: PomdpStudy, case: PomdpCase) -> Outcome | None:
    """The outcome of a case, if it is done; one of other settings, or a damaged one, counts as not done."""
    path = _outcome_file(study, case)
    if not path.exists():
        return None
    try:
        header, arrays = read_npz(path, "derex reproduce pomdp")
    except DamagedFileError:
        return common.report_damage(path, "its case is computed again")
    if header.get("settings") != _settings(study, case) or "row" not in header:
        return None
    return Outcome(header["row"], arrays)


def _save_outcome(study: PomdpStudy, case: PomdpCase, outcome: Outcome) -> None:
    """Writes the outcome and removes the checkpoints of the case."""
    path = _outcome_file(study, case)
    write_npz(path, {"settings": _settings(study, case), "row": outcome.row}, outcome.arrays)
    for checkpoint in path.parent.glob(f"{case.name}.*.model.npz"):
        checkpoint.unlink(missing_ok=True)


def prepare_checkpoint(study: PomdpStudy, case: PomdpCase) -> Path:
    """The file of the state of a running fit; each setting has its own. A damaged one is removed."""
    code = zlib.crc32(json.dumps(_settings(study, case)).encode())
    path = _outcome_file(study, case).with_name(f"{case.name}.{code:08x}.model.npz")
    if path.exists():
        try:
            HistoryDeRex.load(path)
        except ValueError:
            common.report_damage(path, "its fit starts again")
            path.unlink(missing_ok=True)
    return path


def _outcome_file(study: PomdpStudy, case: PomdpCase) -> Path:
    return study.out / "cases" / f"{case.name}.npz"


def _settings(study: PomdpStudy, case: PomdpCase) -> dict[str, Any]:
    """All that decides the outcome of a case."""
    options = {name: value for name, value in to_plain(study).items() if name not in IRRELEVANT}
    return to_plain({"derex": __version__, "study": options, "case": case})


def write_report(study: PomdpStudy, outcomes: dict[PomdpCase, Outcome], summary: list[Row]) -> Path:
    """PNGs and the page, from the outcomes alone."""
    first = {case: outcome for case, outcome in outcomes.items() if case.seed == 0}
    pictured = {case: outcome for case, outcome in first.items() if case.purpose == PICTURED}
    tracks = {
        case: _track(case, outcome) for case, outcome in first.items() if case.purpose in (DECODED, UNCERTAIN)
    }
    grid = common.grid_map(FOUR_ROOMS)
    clouds = [
        HistoryCloud(f"p = {case.p:g}", grid, outcome.arrays["cloud_state"], outcome.arrays["cloud"])
        for case, outcome in pictured.items()
    ]
    slices = report.slices_figure(clouds, study.out / "representations.png")
    bonuses = _bonus_section(study, pictured)
    beliefs = []
    times = np.linspace(0, study.horizon - study.horizon // 5, FIGURE_TIMES).astype(int).tolist()
    for case, track in tracks.items():
        path = report.beliefs_figure(track, study.out / f"beliefs_{case.purpose}_p{case.p:g}.png", times)
        beliefs.append(report.image_section(f"Beliefs along an episode: {track.title}", path))
    sections = [
        _belief_section("Accuracy of beliefs", "accuracy", summary),
        report.belief_section(list(tracks.values())),
        report.cloud_section(clouds),
        report.image_section("Representations of histories", slices, WHY_NO_ACTIONS),
        bonuses,
        *beliefs,
        report.table_section(_bonus_table(summary)),
        _belief_section("Log-loss of beliefs", "log_loss", summary),
        _belief_section("Expected Manhattan distance of beliefs", "distance", summary),
    ]
    size = f"{study.seeds} seed{'s' if study.seeds > 1 else ''}, {study.steps} updates, LSTMs of {study.width} units."
    footer = f"Made by `derex reproduce pomdp`: {size} Numbers: `metrics.json`."
    title = "Four rooms with a hidden agent"
    return report.write_page(study.out / "report.html", title, HOW_TO_READ, sections, footer)


def _track(case: PomdpCase, outcome: Outcome) -> BeliefTrack:
    """One episode with the beliefs along it."""
    arrays = outcome.arrays
    title = f"p = {case.p:g}" + (", slip 0.1, unknown start" if case.purpose == UNCERTAIN else "")
    beliefs = tuple((label, arrays[f"track_{name}"]) for name, label in TRACKED.items())
    grid, frames = common.grid_map(FOUR_ROOMS), frame_table(GridWorld(FOUR_ROOMS))
    return BeliefTrack(title, grid, frames, arrays["track_frame"], arrays["track_state"], beliefs)


def _bonus_section(study: PomdpStudy, pictured: dict[PomdpCase, Outcome]) -> Section:
    """Bonus maps of all p, from the features that are pictured."""
    bonuses = []
    for case, outcome in pictured.items():
        correlation = outcome.row["spearman"]
        number = float("nan") if correlation is None else correlation
        bonuses.append(StateBonus(f"p = {case.p:g}, k = {case.k}", outcome.arrays["bonus"], number))
    d = next(iter(pictured.values())).arrays["d"]
    path = report.bonus_maps_figure(common.grid_map(FOUR_ROOMS), d, bonuses, study.out / "bonuses.png")
    caption = "Mean bonus of all histories that end in each state, beside how often states are visited."
    return report.image_section("Bonuses", path, caption)


def _belief_section(title: str, score: str, summary: list[Row]) -> Section:
    """A table of one score of every kind of belief."""
    rows = [
        (_title(entry), *(format_interval(entry.get(f"{name}_{score}"), 3) for name in BELIEFS))
        for entry in summary
        if entry["purpose"] != CLOCKS
    ]
    caption = "Means over seeds, on trajectories never trained on; in brackets the 95 % t interval."
    return report.table_section(Table(title, ("what", *BELIEFS.values()), tuple(rows), caption))


def _bonus_table(summary: list[Row]) -> Table:
    rows = [
        (_title(entry), *(format_interval(entry.get(name), digits) for name, digits in BONUS_TABLE.values()))
        for entry in summary
    ]
    caption = (
        "The bonus is averaged over all histories that end in a state. *Variance explained by t*: with tests that run "
        "to the end of the episode features can be clocks; with tests of random length they cannot gain by it."
    )
    return Table("Bonuses and clocks", ("what", *BONUS_TABLE), tuple(rows), caption)


def _title(entry: Row) -> str:
    return f"p = {entry['p']:g}, k = {entry['k']}, {WORDS[entry['purpose']]}"
