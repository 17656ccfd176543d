"""From the outcomes of the study to its tables, pictures and page."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from derex.envs import FOUR_ROOMS, GridWorld, frame_table
from derex.report import (
    BeliefTrack,
    GridMap,
    HistoryCloud,
    StateBonus,
    Table,
    belief_section,
    beliefs_figure,
    bonus_maps_figure,
    cloud_section,
    image_section,
    slices_figure,
    table_section,
    write_page,
)
from derex.report.statistics import mean_interval
from derex.studies.common import format_interval
from derex.studies.definitions import CLOCKS, DECODED, PICTURED, UNCERTAIN, WORDS, PomdpCase, PomdpStudy
from derex.studies.pomdp_cases import Outcome

BELIEFS = {
    "decoded": "De-Rex",
    "filter": "Bayes filter",
    "filter_decoded": "filter, decoded",
    "untrained": "untrained",
    "memoryless": "last frame",
}
TRACKED = {"decoded": "Decoded from De-Rex", "filter": "Exact Bayes filter", "untrained": "Untrained network"}
SCORES = ("accuracy", "log_loss", "distance", "distance_of_guess")
OTHERS = (
    "spearman",
    "spearman_exact",
    "time_share",
    "trace",
    "trace_exact",
    "largest_off_diagonal",
    "seconds",
)
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


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry a setting: mean and interval over seeds of every score, and the worst seed."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["purpose"], row["p"], row["k"]].append(row)
    names = [f"{belief}_{score}" for belief in BELIEFS for score in SCORES]
    summary = []
    for (purpose, p, k), members in groups.items():
        entry: dict[str, Any] = {"purpose": purpose, "p": p, "k": k, "seeds": len(members)}
        for score in (*names, *OTHERS):
            values = [member[score] for member in members if member[score] is not None]
            if not values:  # no exact answer is known there
                continue
            mean, low, high = mean_interval(values)
            entry[score] = {"mean": mean, "low": low, "high": high, "min": min(values), "max": max(values)}
        summary.append(entry)
    return summary


def terminal_table(summary: list[dict[str, Any]]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The summary in a few columns: means over seeds."""
    columns = (
        "what",
        "accuracy",
        "untrained",
        "Manhattan",
        "log-loss",
        "filter's",
        "bonus ~ 1/d",
        "exact ~ 1/d",
    )
    scores = ("decoded_accuracy", "untrained_accuracy", "decoded_distance", "decoded_log_loss",
              "filter_decoded_log_loss", "spearman", "spearman_exact")  # fmt: skip
    rows = [
        (_what(entry), *(f"{entry[score]['mean']:.3f}" if score in entry else "–" for score in scores))
        for entry in summary
    ]
    return columns, tuple(rows)


def write_report(
    study: PomdpStudy, outcomes: dict[PomdpCase, Outcome], summary: list[dict[str, Any]]
) -> Path:
    """PNGs and the page, from the outcomes alone."""
    first = {case: outcome for case, outcome in outcomes.items() if case.seed == 0}
    clouds, tracks = _clouds(first), _tracks(first)
    pictures = [_bonus_picture(study, first)]
    slices_figure(clouds, study.out / "representations.png")
    times = np.linspace(0, study.horizon - study.horizon // 5, FIGURE_TIMES).astype(int).tolist()
    for case, track in tracks.items():
        path = beliefs_figure(track, study.out / f"beliefs_{case.purpose}_p{case.p:g}.png", times)
        pictures.append(image_section(f"Beliefs along an episode: {track.title}", path))
    sections = [
        table_section(_belief_table("Accuracy of beliefs", "accuracy", summary)),
        belief_section(list(tracks.values())),
        cloud_section(clouds),
        image_section("Representations of histories", study.out / "representations.png", WHY_NO_ACTIONS),
        *pictures,
        table_section(_bonus_table(summary)),
        table_section(_belief_table("Log-loss of beliefs", "log_loss", summary)),
        table_section(_belief_table("Expected Manhattan distance of beliefs", "distance", summary)),
    ]
    size = f"{study.seeds} seed{'s' if study.seeds > 1 else ''}, {study.steps} updates, LSTMs of {study.width} units."
    footer = f"Made by `derex reproduce pomdp`: {size} Numbers: `metrics.json`."
    return write_page(
        study.out / "report.html", "Four rooms with a hidden agent", HOW_TO_READ, sections, footer
    )


def _clouds(outcomes: dict[PomdpCase, Outcome]) -> list[HistoryCloud]:
    return [
        HistoryCloud(f"p = {case.p:g}", _map(), outcome.arrays["cloud_state"], outcome.arrays["cloud"])
        for case, outcome in outcomes.items()
        if case.purpose == PICTURED
    ]


def _tracks(outcomes: dict[PomdpCase, Outcome]) -> dict[PomdpCase, BeliefTrack]:
    tracks = {}
    for case, outcome in outcomes.items():
        if case.purpose not in (DECODED, UNCERTAIN):
            continue
        title = f"p = {case.p:g}" + (", slip 0.1, unknown start" if case.purpose == UNCERTAIN else "")
        arrays = outcome.arrays
        beliefs = tuple((label, arrays[f"track_{name}"]) for name, label in TRACKED.items())
        tracks[case] = BeliefTrack(
            title,
            _map(),
            frame_table(GridWorld(FOUR_ROOMS)),
            arrays["track_frame"],
            arrays["track_state"],
            beliefs,
        )
    return tracks


def _bonus_picture(study: PomdpStudy, outcomes: dict[PomdpCase, Outcome]) -> Any:
    """Bonus maps of all p, from the features that are pictured."""
    pictured = [(case, outcome) for case, outcome in outcomes.items() if case.purpose == PICTURED]
    bonuses = [
        StateBonus(f"p = {case.p:g}, k = {case.k}", outcome.arrays["bonus"], _or_nan(outcome.row["spearman"]))
        for case, outcome in pictured
    ]
    path = bonus_maps_figure(_map(), pictured[0][1].arrays["d"], bonuses, study.out / "bonuses.png")
    caption = "Mean bonus of all histories that end in each state, beside how often states are visited."
    return image_section("Bonuses", path, caption)


def _belief_table(title: str, score: str, summary: list[dict[str, Any]]) -> Table:
    """One score of every kind of belief."""
    rows = [
        (_what(entry), *(format_interval(entry.get(f"{name}_{score}"), 3) for name in BELIEFS))
        for entry in summary
        if entry["purpose"] != CLOCKS
    ]
    caption = "Means over seeds, on trajectories never trained on; in brackets the 95 % t interval."
    return Table(title, ("what", *BELIEFS.values()), tuple(rows), caption)


def _bonus_table(summary: list[dict[str, Any]]) -> Table:
    columns = ("what", "Spearman(bonus, 1/d)", "exact state-level decomposition's", "variance explained by t",
               "Σσ", "exact Σσ", "largest off-diagonal", "seconds a fit")  # fmt: skip
    rows = [
        (
            _what(entry),
            format_interval(entry.get("spearman"), 3),
            format_interval(entry.get("spearman_exact"), 3),
            format_interval(entry.get("time_share"), 3),
            format_interval(entry.get("trace"), 2),
            format_interval(entry.get("trace_exact"), 2),
            format_interval(entry.get("largest_off_diagonal"), 3),
            format_interval(entry.get("seconds"), 0),
        )
        for entry in summary
    ]
    caption = (
        "The bonus is averaged over all histories that end in a state. *Variance explained by t*: with tests that run "
        "to the end of the episode features can be clocks; with tests of random length they cannot gain by it."
    )
    return Table("Bonuses and clocks", columns, tuple(rows), caption)


def _what(entry: dict[str, Any]) -> str:
    return f"p = {entry['p']:g}, k = {entry['k']}, {WORDS[entry['purpose']]}"


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _map() -> GridMap:
    return GridMap(FOUR_ROOMS.name, tuple(FOUR_ROOMS.rows), np.asarray(FOUR_ROOMS.positions))
