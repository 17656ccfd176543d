"""The figure and the page of the study, from its summaries and the pictures of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from derex.experiments.exploration.analysis import COLUMNS, table_row
from derex.experiments.exploration.definition import FORMS, ExplorationStudy
from derex.report import Curve, Section, Table, image_section, table_section, text_section, write_page
from derex.report.curves import CurvePanel, Line, learning_figure, learning_section
from derex.report.scores import interval_words
from derex.report.visits import short_steps
from derex.training.folder import VISITS_PICTURE

STEPS = "environment steps of each seed"
RETURN_SPAN = {"success": (0.0, 1.0), "return": None}

HOW_TO_READ = """
Each environment hides one reward behind many steps that give none. On each, all methods have the **same V-MPO agent**
(but for the learning rate of **derex** on the agent's belief) and differ in the representation beside it: **vmpo** has
none; **laplacian** and **derex-rep** learn a representation with the agent and give no bonus; **rnd** and **derex** add
a bonus for what is rare, **derex** in several forms.

Success is the share of episodes, of those that ended since the last line of the log, that found the reward: of the
agent as it explores, not of a greedy one.
"""

WHAT_NUMBERS_ARE = """
*Final*: the mean over the last 2 % of steps, over seeds, {interval}. *Steps to 0.9*: where the mean over seeds first
stays at 0.9 or more for three lines of the log. *σ mean*: of the singular values within the span of the features, and
*off-diagonal*: of Σ̃, at the end. *Bonus ~ 1/visits*: Spearman's correlation over states, mean over the run. *Steps/s*:
all seeds together, without compilation.
"""


def panels_of(study: ExplorationStudy, summaries: list[dict[str, Any]]) -> list[CurvePanel]:
    """One for each environment; a method has the same colour and a form the same dash in all."""
    panels = []
    for env in study.envs:
        entries = [entry for entry in summaries if entry["env"] == env]
        lines = tuple(
            Line(_curve(entry), study.methods.index(entry["method"]), _dash(study, entry["form"]))
            for entry in entries
        )
        if lines:
            measure = entries[0]["measure"]
            panels.append(CurvePanel(env, measure, lines, RETURN_SPAN[measure]))
    return panels


def write_report(study: ExplorationStudy, summaries: list[dict[str, Any]], failed: dict[str, str]) -> Path:
    """curves.png and report.html."""
    panels = panels_of(study, summaries)
    learning_figure(panels, study.out / "curves.png", STEPS)
    interval = interval_words(study.seeds)
    caption = f"Mean over seeds; the band is {interval}. Click a name in the legend to hide its line."
    table = Table(
        "Numbers",
        (*COLUMNS, "files"),
        tuple((*table_row(entry), f"`{entry['run']}`") for entry in summaries),
        WHAT_NUMBERS_ARE.format(interval=f"in brackets {interval}"),
    )
    sections = [
        *(learning_section(panel, STEPS, caption) for panel in panels),
        table_section(table),
        *([text_section("Runs that diverged", _list(failed))] if failed else []),
        *_maps(study, summaries),
    ]
    size = (
        f"{study.seeds} seed{'s' if study.seeds > 1 else ''}, {short_steps(study.steps)} steps each, {study.streams} "
        f"streams, layers of {study.width} units, {study.k} features."
    )
    lead = HOW_TO_READ + (_QUICK if study.quick else "")
    footer = (
        f"Made by `derex reproduce exploration`: {size} Numbers: `metrics.json`; picture: `curves.png`; each run with "
        "its `config.json` and `metrics.jsonl`: `runs/`."
    )
    return write_page(study.out / "report.html", "Exploration", lead, sections, footer)


_QUICK = """

**This is the quick version**: small networks, few seeds and steps, and, where no other was asked for, `rooms-chain-3`,
which was chosen because **vmpo** finds nothing there in so few steps. That is less than a random walk does, which
succeeds in one episode of 1100: without reward the policy narrows. It shows that everything runs and what it writes; so
few seeds say little about which method is better.
"""


def _maps(study: ExplorationStudy, summaries: list[dict[str, Any]]) -> list[Section]:
    """Where agents were, for runs whose states have places."""
    sections = []
    for entry in summaries:
        path = study.out / entry["run"] / VISITS_PICTURE
        if path.exists():
            caption = f"`{entry['run']}/{VISITS_PICTURE}`: hatched states were not seen."
            sections.append(image_section(f"Visits: {entry['env']}, {entry['label']}", path, caption))
    return sections


def _curve(entry: dict[str, Any]) -> Curve:
    parts = (
        np.array(entry["curve"][name], np.float64) for name in ("steps", "mean", "low", "high")
    )  # None becomes NaN
    return Curve(entry["label"], *parts)


def _dash(study: ExplorationStudy, form: str) -> int:
    """The forms that are run, in their order, from solid on."""
    used = [name for name in FORMS if name in {case.form for case in study.cases()}]
    return used.index(form) if form in used else 0


def _list(failed: dict[str, str]) -> str:
    return "\n".join(f"- **{name}**: {reason}" for name, reason in failed.items())
