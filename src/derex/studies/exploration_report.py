"""The exploration study: finished runs, summaries of metrics.jsonl, figure and page.

Shapes: T lines of a run, N seeds.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from derex._text import to_plain
from derex._version import __version__
from derex.progress import short_count
from derex.report import Curve, Section, Table, image_section, table_section, text_section, write_page
from derex.report.curves import CurvePanel, Line, learning_figure, learning_section
from derex.report.files import read_json, write_atomically
from derex.report.statistics import (
    Lines,
    bootstrap_interval,
    bootstrap_intervals,
    describe_interval,
    final_score,
)
from derex.studies.common import report_damage, start_cases
from derex.studies.definitions import BASELINE, FORMS, ExplorationCase, ExplorationStudy
from derex.training.config import TrainConfig
from derex.training.folder import (
    COMMAND,
    CONFIG,
    METRICS,
    NO_EFFECT_ON_NUMBERS,
    VISITS_PICTURE,
    read_metrics,
    remove_run,
)
from derex.training.presets import exploration_agent, exploration_form


class Run(NamedTuple):
    """A finished run."""

    lines: list[dict[str, Any]]
    """of its metrics.jsonl"""
    device: str
    """on what it was made: rates of different devices are not compared"""


def train_config(study: ExplorationStudy, case: ExplorationCase) -> TrainConfig:
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
        self._folder = start_cases(study.out, study.name)

    def get(self, case: ExplorationCase, config: TrainConfig) -> Run | None:
        """The run of a case, if it is done."""
        path, metrics = self._path(case), config.out / METRICS
        if not path.exists():
            return None
        header = read_json(path)
        if header is None:
            return report_damage(path, "its case runs again")
        if header.get("settings") != _described(config):
            return None
        if not metrics.exists() or header.get("metrics") != zlib.crc32(metrics.read_bytes()):
            return report_damage(metrics, "its case runs again")
        return Run(read_metrics(config.out), str(header.get("device")))

    def begin(self, case: ExplorationCase, config: TrainConfig) -> None:
        """What there is of the case is no longer a finished run; the folder is left so that a run can claim it."""
        self._path(case).unlink(missing_ok=True)
        if (read_json(config.out / CONFIG) or {}).get("command") != COMMAND:
            remove_run(config.out)  # a run would not know it for its own

    def put(self, case: ExplorationCase, config: TrainConfig) -> Run:
        """The run of the case has just finished."""
        devices = (read_json(config.out / CONFIG) or {}).get("devices", {})
        device = " ".join(str(devices.get(name)) for name in ("platform", "kind", "count"))
        code = zlib.crc32((config.out / METRICS).read_bytes())
        header = {"settings": _described(config), "metrics": code, "device": device}
        write_atomically(self._path(case), (json.dumps(header, indent=1) + "\n").encode())
        return Run(read_metrics(config.out), device)

    def _path(self, case: ExplorationCase) -> Path:
        return self._folder / f"{case.name}.json"


def _described(config: TrainConfig) -> dict[str, Any]:
    """All that decides what the run gives, as JSON has it."""
    options = {
        name: value for name, value in to_plain(config, "text").items() if name not in NO_EFFECT_ON_NUMBERS
    }
    return json.loads(json.dumps({"derex": __version__, "config": options}))


SOLVED, SOLVED_LINES = 0.9, 3


def column(lines: Lines, name: str) -> Float[np.ndarray, "T N"]:
    """One number of all lines; NaN where there is none."""
    steps = sorted({line["step"] for line in lines})
    seeds = seeds_of(lines)
    table = np.full((len(steps), len(seeds)), np.nan)
    for line in lines:
        value = line.get(name)
        if value is not None:
            table[steps.index(line["step"]), seeds.index(line["seed"])] = value
    return table


def seeds_of(lines: Lines) -> list[int]:
    """The seeds, in order."""
    return sorted({line["seed"] for line in lines})


def steps_of(lines: Lines) -> np.ndarray:
    """(T,) the environment steps of each seed at the end of each line."""
    return np.array(sorted({line["step"] for line in lines}), np.int64)


def final(lines: Lines, name: str) -> Float[np.ndarray, " N"]:
    """The final score of each seed; NaN where it has none."""
    scores = final_score(lines, name)
    return np.array([scores[seed] for seed in seeds_of(lines)])


def steps_until_solved(steps: np.ndarray, means: Float[np.ndarray, " T"]) -> int | None:
    """At the end of the first line from which on the mean over seeds is high for `SOLVED_LINES` lines."""
    high = np.append(means >= SOLVED, np.zeros(SOLVED_LINES - 1, bool))
    stays = np.all([high[shift : shift + len(means)] for shift in range(SOLVED_LINES)], axis=0)
    return int(steps[np.argmax(stays)]) if stays.any() else None


def summarise(case: ExplorationCase, run: Run) -> dict[str, Any]:
    """Curve and numbers of one run; None where a number is not defined."""
    lines, steps = run.lines, steps_of(run.lines)
    measure = "success" if np.isfinite(column(lines, "success")).any() else "return"
    values = column(lines, measure)
    # Success is often 0 or 1: an interquartile mean would hide the seeds that fail.
    means, low, high = bootstrap_intervals(values, trimmed=False)
    ends, seeds = final(lines, measure), seeds_of(lines)
    worst = int(np.nanargmin(ends)) if np.isfinite(ends).any() else None
    numbers = {
        "sigma_mean": final(lines, "sigma_mean"),
        "off_diagonal": final(lines, "off_diagonal"),
        "bonus_rank_correlation": _mean(column(lines, "bonus_rank_correlation")),
    }
    summary = {
        "env": case.env, "method": case.method, "form": case.form, "label": case.label, "run": f"runs/{case.name}",
        "seeds": len(seeds), "measure": measure,
        "final": bootstrap_interval(ends, trimmed=False)._asdict(), "final_of_seeds": ends,
        "worst_seed": None if worst is None else {"seed": seeds[worst], "final": ends[worst]},
        "steps_until_solved": steps_until_solved(steps, means) if measure == "success" else None,
        **{name: _mean(of_seeds) for name, of_seeds in numbers.items()},
        "steps_per_second": np.nanmedian(column(lines, "steps_per_second")), "device": run.device,
        "curve": {"steps": steps, "mean": means, "low": low, "high": high},
    }  # fmt: skip
    return to_plain(summary)


def with_overheads(summaries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many times as long as without a representation; None where there is no such run on the same device."""
    rates = {
        (entry["env"], entry["device"]): entry["steps_per_second"]
        for entry in summaries
        if entry["method"] == BASELINE
    }
    return [
        entry | {"overhead": None if base is None else base / entry["steps_per_second"]}
        for entry in summaries
        for base in [rates.get((entry["env"], entry["device"]))]
    ]


COLUMNS = ("environment", "method", "final", "worst seed", "steps to 0.9", "σ mean", "off-diagonal", "bonus ~ 1/visits",
           "steps/s", "× vmpo's time")  # fmt: skip


def table_row(entry: dict[str, Any]) -> tuple[str, ...]:
    """The numbers of one run, as they are printed."""
    end, worst, solved = entry["final"], entry["worst_seed"], entry["steps_until_solved"]
    text = number(end["value"], 2)
    if end["value"] is not None:
        text += f" [{end['low']:.2f}, {end['high']:.2f}]"
    return (
        entry["env"] if entry["measure"] == "success" else f"{entry['env']} (return)",
        entry["label"],
        text,
        "–" if worst is None else number(worst["final"], 2),
        "–" if solved is None else short_count(solved),
        number(entry["sigma_mean"], 3),
        number(entry["off_diagonal"], 3),
        number(entry["bonus_rank_correlation"], 2),
        short_count(entry["steps_per_second"]),
        number(entry["overhead"], 2),
    )


def number(value: float | None, digits: int) -> str:
    """As it is printed; a dash for none."""
    return "–" if value is None else f"{value:.{digits}f}"


def _mean(values: np.ndarray) -> Any:
    """Over the first axis, without NaN; NaN where nothing else is there."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    return np.where(count > 0, np.where(known, values, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)


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
    interval = describe_interval(study.seeds)
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
        f"{study.seeds} seed{'s' if study.seeds > 1 else ''}, {short_count(study.steps)} steps each, {study.streams} "
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
