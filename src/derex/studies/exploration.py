"""The methods on exploration environments: runs, summaries of metrics.jsonl, figure and page.

Finished runs with the same settings are reused. Shapes: T lines of a run, N seeds.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from derex import report
from derex._text import to_plain
from derex._version import __version__
from derex.envs.registry import make
from derex.progress import ProgressBar, short_count
from derex.report import Curve, Table
from derex.report.curves import CurvePanel, Line, learning_figure, learning_section
from derex.report.files import read_json, write_atomically
from derex.report.statistics import (
    Lines,
    bootstrap_interval,
    bootstrap_intervals,
    describe_interval,
    final_score,
)
from derex.studies.common import (
    Row,
    StudyResult,
    check_minimum,
    claim_folder,
    report_damage,
    start_cases,
    write_metrics,
)
from derex.studies.definitions import BASELINE, FORMS, ExplorationCase, ExplorationStudy
from derex.training import folder
from derex.training.config import TrainConfig
from derex.training.logging import TrainingBar
from derex.training.metrics import DivergedError
from derex.training.presets import exploration_agent, exploration_form
from derex.training.run import train

SOLVED, SOLVED_LINES = 0.9, 3
STEPS = "environment steps of each seed"
RETURN_SPAN = {"success": (0.0, 1.0), "return": None}
COLUMNS = ("environment", "method", "final", "worst seed", "steps to 0.9", "σ mean", "off-diagonal", "bonus ~ 1/visits",
           "steps/s", "× vmpo's time")  # fmt: skip

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

ABOUT_QUICK = """

**This is the quick version**: small networks, few seeds and steps, and, where no other was asked for, `rooms-chain-3`,
which was chosen because **vmpo** finds nothing there in so few steps. That is less than a random walk does, which
succeeds in one episode of 1100: without reward the policy narrows. It shows that everything runs and what it writes; so
few seeds say little about which method is better.
"""


def run(study: ExplorationStudy) -> StudyResult:
    """Trains every case, or finds it done, then writes numbers, pictures and page."""
    _check(study)
    configs = {case: train_config(study, case) for case in study.cases()}
    study = replace(study, steps=int(study.steps))
    claim_folder(study.out, study.name)
    start_cases(study)
    runs, failed = {}, {}
    with ProgressBar("derex reproduce exploration", len(configs)) as progress:
        for case, config in configs.items():
            try:
                runs[case] = _run(study, case, config, progress)
            except DivergedError as error:  # the others can still be compared; it is tried again next time
                failed[f"{case.env}, {case.label}"] = str(error)
                progress.finish(str(error))
    if not runs:
        raise ValueError(f"all runs diverged, the first thus: {next(iter(failed.values()))}")
    summaries = with_overheads([summarise(case, found) for case, found in runs.items()])
    write_metrics(study, results=summaries, diverged=failed)
    page = write_report(study, summaries, failed)
    rows = [table_row(entry) for entry in summaries]
    rows += [(*name.split(", ", 1), "diverged", *["–"] * (len(COLUMNS) - 3)) for name in failed]
    return StudyResult(page, Table("Exploration", COLUMNS, tuple(rows)))


def _check(study: ExplorationStudy) -> None:
    for name in ("envs", "methods", "forms"):
        values = getattr(study, name)
        if not values or len(set(values)) < len(values):
            raise ValueError(f"--{name}: expected at least one, and each once; got {values}.")
    for form in study.forms:
        if form not in FORMS:
            raise ValueError(f"--forms: expected some of {', '.join(FORMS)}; got {form!r}.")
    check_minimum(study, seeds=1, streams=1, width=1, k=1)
    for env in study.envs:
        make(env)


def train_config(study: ExplorationStudy, case: ExplorationCase) -> TrainConfig:
    """The options of the case's run of `derex train`."""
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
        representation=exploration_form(case.env, case.method, case.form, width=study.width, k=study.k),
    ).resolved()


class Run(NamedTuple):
    """A finished run."""

    lines: list[dict[str, Any]]
    """of its metrics.jsonl"""
    device: str
    """on what it was made: rates of different devices are not compared"""


def _run(study: ExplorationStudy, case: ExplorationCase, config: TrainConfig, progress: ProgressBar) -> Run:
    """The run of a case: an earlier one with the same settings, or a new one."""
    header = study.out / "cases" / f"{case.name}.json"
    found = load_run(header, config)
    if found is not None:
        progress.finish()
        return found
    progress.start(f"{case.env}, {case.label}")
    prepare_run(header, config)
    result = train(config, TrainingBar(progress, int(config.steps), config.seeds))
    devices = (read_json(config.out / folder.CONFIG) or {}).get("devices", {})
    device = " ".join(str(devices.get(name)) for name in ("platform", "kind", "count"))
    code = zlib.crc32((config.out / folder.METRICS).read_bytes())
    content = {"settings": _settings(config), "metrics": code, "device": device}
    write_atomically(header, (json.dumps(content, indent=1) + "\n").encode())
    progress.finish(f"trained in {result.seconds:.0f} s, compiled in {result.compile_seconds:.0f} s")
    return Run(folder.read_metrics(config.out), device)


def load_run(header: Path, config: TrainConfig) -> Run | None:
    """The run of a case, if it is done; one of other settings, or a damaged one, counts as not done.

    Args:
        header: file that marks the run as finished: its settings, and the checksum of its metrics.
        config: options of the run.
    """
    if not header.exists():
        return None
    content, metrics = read_json(header), config.out / folder.METRICS
    if content is None:
        return report_damage(header, "its case runs again")
    if content.get("settings") != _settings(config):
        return None
    if not metrics.exists() or content.get("metrics") != zlib.crc32(metrics.read_bytes()):
        return report_damage(metrics, "its case runs again")
    return Run(folder.read_metrics(config.out), str(content.get("device")))


def prepare_run(header: Path, config: TrainConfig) -> None:
    """Makes way for a new run: what there is of the case counts as unfinished, and the new run can claim the folder."""
    header.unlink(missing_ok=True)
    if not folder.holds_run(config.out):
        folder.remove_run(config.out)  # training refuses a folder whose config.json is damaged


def _settings(config: TrainConfig) -> dict[str, Any]:
    """All that decides what the run gives, as JSON has it."""
    options = to_plain(config, "text")
    deciding = {name: options[name] for name in options if name not in folder.NO_EFFECT_ON_NUMBERS}
    return json.loads(json.dumps({"derex": __version__, "config": deciding}))


def column(lines: Lines, name: str) -> Float[np.ndarray, "T N"]:
    """One number of all lines; NaN where there is none."""
    values = {(line["step"], line["seed"]): line.get(name) for line in lines}
    steps, seeds = (sorted({line[axis] for line in lines}) for axis in ("step", "seed"))
    return np.array([[values.get((step, seed)) for seed in seeds] for step in steps], np.float64)


def final(lines: Lines, name: str) -> Float[np.ndarray, " N"]:
    """The final score of each seed; NaN where it has none."""
    return np.array([*final_score(lines, name).values()])


def steps_until_solved(steps: np.ndarray, means: Float[np.ndarray, " T"]) -> int | None:
    """At the end of the first line from which on the mean over seeds is high for `SOLVED_LINES` lines."""
    high = np.append(means >= SOLVED, np.zeros(SOLVED_LINES - 1, bool))
    stays = np.all([high[shift : shift + len(means)] for shift in range(SOLVED_LINES)], axis=0)
    return int(steps[np.argmax(stays)]) if stays.any() else None


def summarise(case: ExplorationCase, run: Run) -> Row:
    """Curve and numbers of one run; None where a number is not defined."""
    lines = run.lines
    steps = np.array(sorted({line["step"] for line in lines}), np.int64)
    seeds = sorted({line["seed"] for line in lines})
    measure = "success" if np.isfinite(column(lines, "success")).any() else "return"
    # Success is often 0 or 1: an interquartile mean would hide the seeds that fail.
    means, low, high = bootstrap_intervals(column(lines, measure), trimmed=False)
    ends = final(lines, measure)
    worst = int(np.nanargmin(ends)) if np.isfinite(ends).any() else None
    summary = {
        "env": case.env, "method": case.method, "form": case.form, "label": case.label, "run": f"runs/{case.name}",
        "seeds": len(seeds), "measure": measure,
        "final": bootstrap_interval(ends, trimmed=False)._asdict(), "final_of_seeds": ends,
        "worst_seed": None if worst is None else {"seed": seeds[worst], "final": ends[worst]},
        "steps_until_solved": steps_until_solved(steps, means) if measure == "success" else None,
        "sigma_mean": _mean(final(lines, "sigma_mean")), "off_diagonal": _mean(final(lines, "off_diagonal")),
        "bonus_rank_correlation": _mean(_mean(column(lines, "bonus_rank_correlation"))),
        "steps_per_second": np.nanmedian(column(lines, "steps_per_second")), "device": run.device,
        "curve": {"steps": steps, "mean": means, "low": low, "high": high},
    }  # fmt: skip
    return to_plain(summary)


def _mean(values: np.ndarray) -> Any:
    """Mean over the first axis of the finite values; NaN where there are none."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    return np.where(count > 0, np.where(known, values, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)


def with_overheads(summaries: list[Row]) -> list[Row]:
    """How many times as long as without a representation; None where there is no such run on the same device."""
    rates = {(e["env"], e["device"]): e["steps_per_second"] for e in summaries if e["method"] == BASELINE}
    found = []
    for entry in summaries:
        base = rates.get((entry["env"], entry["device"]))
        found.append(entry | {"overhead": None if base is None else base / entry["steps_per_second"]})
    return found


def table_row(entry: Row) -> tuple[str, ...]:
    """The numbers of one run, as they are printed; a dash for None."""

    def number(value: float | None, digits: int) -> str:
        return "–" if value is None else f"{value:.{digits}f}"

    end, worst, solved = entry["final"], entry["worst_seed"], entry["steps_until_solved"]
    interval = "" if end["value"] is None else f" [{end['low']:.2f}, {end['high']:.2f}]"
    return (
        entry["env"] if entry["measure"] == "success" else f"{entry['env']} (return)",
        entry["label"],
        number(end["value"], 2) + interval,
        number(None if worst is None else worst["final"], 2),
        "–" if solved is None else short_count(solved),
        number(entry["sigma_mean"], 3),
        number(entry["off_diagonal"], 3),
        number(entry["bonus_rank_correlation"], 2),
        short_count(entry["steps_per_second"]),
        number(entry["overhead"], 2),
    )


def panels_of(study: ExplorationStudy, summaries: list[Row]) -> list[CurvePanel]:
    """One for each environment; a method has the same colour and a form the same dash in all."""
    used = [form for form in FORMS if form in {case.form for case in study.cases()}]
    panels = []
    for env in study.envs:
        entries, lines = [entry for entry in summaries if entry["env"] == env], []
        for entry in entries:
            parts = (np.array(entry["curve"][name], float) for name in ("steps", "mean", "low", "high"))
            dash = used.index(entry["form"]) if entry["form"] in used else 0
            lines.append(Line(Curve(entry["label"], *parts), study.methods.index(entry["method"]), dash))
        if entries:
            measure = entries[0]["measure"]
            panels.append(CurvePanel(env, measure, tuple(lines), RETURN_SPAN[measure]))
    return panels


def write_report(study: ExplorationStudy, summaries: list[Row], failed: dict[str, str]) -> Path:
    """curves.png and report.html."""
    panels = panels_of(study, summaries)
    learning_figure(panels, study.out / "curves.png", STEPS)
    interval = describe_interval(study.seeds)
    caption = f"Mean over seeds; the band is {interval}. Click a name in the legend to hide its line."
    rows = tuple((*table_row(entry), f"`{entry['run']}`") for entry in summaries)
    explained = WHAT_NUMBERS_ARE.format(interval=f"in brackets {interval}")
    sections = [learning_section(panel, STEPS, caption) for panel in panels]
    sections.append(report.table_section(Table("Numbers", (*COLUMNS, "files"), rows, explained)))
    if failed:
        diverged = "\n".join(f"- **{name}**: {reason}" for name, reason in failed.items())
        sections.append(report.text_section("Runs that diverged", diverged))
    for entry in summaries:
        picture = study.out / entry["run"] / folder.VISITS_PICTURE
        if picture.exists():  # of runs whose states have places
            caption = f"`{entry['run']}/{picture.name}`: hatched states were not seen."
            title = f"Visits: {entry['env']}, {entry['label']}"
            sections.append(report.image_section(title, picture, caption))
    size = (
        f"{study.seeds} seed{'s' if study.seeds > 1 else ''}, {short_count(study.steps)} steps each, {study.streams} "
        f"streams, layers of {study.width} units, {study.k} features."
    )
    lead = HOW_TO_READ + (ABOUT_QUICK if study.quick else "")
    footer = (
        f"Made by `derex reproduce exploration`: {size} Numbers: `metrics.json`; picture: `curves.png`; each run with "
        "its `config.json` and `metrics.jsonl`: `runs/`."
    )
    return report.write_page(study.out / "report.html", "Exploration", lead, sections, footer)
