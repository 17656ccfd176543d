"""Learning curves of many runs: groups of runs, their curves over seeds, their final scores.

Shapes: T steps, N seeds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from derex._text import hint
from derex.progress import short_count
from derex.report import statistics
from derex.report.curves import Curve, CurvePanel, Line, learning_figure, learning_section
from derex.report.page import Table, table_section, write_page
from derex.report.palette import VIEW_COLOURS
from derex.report.runs import RunLog

Label = Literal["method", "folder"]

STEPS = "environment steps of each seed"
MOST_POINTS = 400  # of a curve; neighbouring lines of longer runs are averaged
SPANS = {"success": (0.0, 1.0)}
LEARNING = ("method", "form", "streams", "agent", "representation")  # options that matter to learning
DECIDING = (*LEARNING, "env", "deterministic")  # options that decide the numbers of a seed
COLUMNS = ("environment", "method", "seeds", "steps", "final {}", "mean", "worst seed")
EVERYWHERE = "all"


@dataclass(frozen=True, eq=False)
class Group:
    """The runs behind one line: one environment, one label, all their seeds."""

    env: str
    label: str  # in legends
    colour: int  # its number
    dash: int  # its number
    runs: tuple[RunLog, ...]
    copies: int = 0  # number of seeds left out because another run of equal options has them
    last: float = statistics.LAST_PERCENT  # percent of the steps that final scores average over

    def finals(self, metric: str) -> Float[np.ndarray, " N"]:
        """Computes the final score of every seed."""
        scores = [statistics.final_score(run.lines, metric, self.last) for run in self.runs]
        return np.array([score for by_seed in scores for score in by_seed.values()])


def group_runs(
    runs: Sequence[RunLog], label: Label = "method", last: float = statistics.LAST_PERCENT
) -> list[Group]:
    """Groups runs by environment and label; a label has one colour and dash in all environments.

    The label "method" joins runs of the same method and form; "folder" keeps runs apart.
    """
    looks: dict[str, tuple[int, int]] = {}  # colour and dash
    if label == "method":
        labels = [", ".join(filter(None, (run.method, run.form))) for run in runs]
        methods = _distinct(run.method for run in runs)
        for run, name in zip(runs, labels, strict=True):
            forms = _distinct(other.form for other in runs if other.method == run.method)
            looks[name] = methods.index(run.method), forms.index(run.form)
    else:
        labels = _short_names([run.folder for run in runs])
        looks = {name: (i, i // len(VIEW_COLOURS)) for i, name in enumerate(_distinct(labels))}
    members: dict[tuple[str, str], list[RunLog]] = {}
    for run, name in zip(runs, labels, strict=True):
        members.setdefault((run.env, name), []).append(run)
    return [
        Group(env, name, *looks[name], *_without_copies(ones), last) for (env, name), ones in members.items()
    ]


def runs_of_task(runs: Sequence[RunLog], task: str) -> list[RunLog]:
    """Converts runs of several tasks to runs of `task`, or of each in turn for "all"; runs without it are left out."""
    known = _distinct(name for run in runs for line in run.lines for name in statistics.get_tasks(line))
    if task not in known and (task != EVERYWHERE or not known):
        there = f"There are: {', '.join(known)}; or {EVERYWHERE}" if known else "No run has several tasks"
        raise ValueError(f"task: no run has {task!r}.{hint(task, known)} {there}.")
    sets = {run.env for run in runs if any(map(statistics.get_tasks, run.lines))}
    found = []
    for name in known if task == EVERYWHERE else [task]:
        for run in runs:
            # Without the other tasks: a score of a line with tasks is the mean over them.
            own = [(line, statistics.get_tasks(line).get(name)) for line in run.lines]
            lines = [line | of_task | {"tasks": None} for line, of_task in own if of_task is not None]
            if lines:
                env = name if len(sets) == 1 else f"{run.env}: {name}"
                found.append(replace(run, config=run.config | {"env": env}, lines=lines))
    return found


def check_metric(runs: Sequence[RunLog], metric: str) -> None:
    """Refuses a metric that no run has."""
    known = {
        name: value for run in runs for line in run.lines for name, value in line.items() if value is not None
    }
    places = ("step", "seed")
    numbers = sorted(n for n, value in known.items() if isinstance(value, int | float) and n not in places)
    if metric in numbers:
        return
    if metric in known:
        raise ValueError(f"metric: {metric!r} is a {type(known[metric]).__name__}, expected a number.")
    near = hint(metric, numbers)
    raise ValueError(f"metric: no run has {metric!r}.{near} There are: {', '.join(numbers)}.")


def curve_of(group: Group, metric: str) -> Curve:
    """Computes the interquartile mean over the group's seeds and its interval, up to the last step of any run."""
    seeds = []
    for run in group.runs:
        for seed in _distinct(line["seed"] for line in run.lines):
            lines = [line for line in run.lines if line["seed"] == seed]
            values = np.array([statistics.get_number(line, metric) for line in lines])
            seeds.append((np.array([line["step"] for line in lines], np.float64), values))
    steps = np.unique(np.concatenate([at for at, _ in seeds]))
    values = np.stack([_on(steps, at, values) for at, values in seeds], axis=1)
    steps, values = _thinned(steps, values)
    return Curve(group.label, steps, *statistics.bootstrap_intervals(values))


def panels_of(groups: Sequence[Group], metric: str) -> list[CurvePanel]:
    """Makes a panel for each environment."""
    lines: dict[str, list[Line]] = {}
    for group in groups:
        lines.setdefault(group.env, []).append(Line(curve_of(group, metric), group.colour, group.dash))
    label, span = metric.replace("_", " "), SPANS.get(metric)
    return [CurvePanel(env, label, tuple(own), span) for env, own in lines.items()]


def score_rows(groups: Sequence[Group], metric: str) -> list[list[str]]:
    """Makes the rows of final scores; a label on several environments also has a row over all of them."""
    rows = [_row(group.env, [group], metric) for group in groups]
    for label in _distinct(group.label for group in groups):
        ones = [group for group in groups if group.label == label]
        if len(ones) > 1 and metric in SPANS:  # only numbers of one scale can be averaged over tasks
            rows.append(_row(EVERYWHERE, ones, metric))
    return rows


def notes_on(groups: Sequence[Group]) -> list[str]:
    """Makes notes on groups whose runs differ in more than their seeds, end early, have copies or damaged lines."""
    notes = []
    for group in groups:
        options = _differing([run.config for run in group.runs])
        reached = sorted({run.last_step for run in group.runs})
        low, high = short_count(reached[0]), short_count(reached[-1])
        damaged = sum(run.damaged for run in group.runs)
        own = []
        if options:
            own.append(f"joins runs that differ in {', '.join(options)}; --label folder keeps them apart.")
        if group.copies:
            own.append(
                f"seeds that several runs of the same options have count once; {group.copies} left out; "
                "--label folder keeps them apart."
            )
        if len(reached) > 1:
            own.append(f"its runs have between {low} and {high} steps; beyond {low}, fewer seeds count.")
        if damaged:
            own.append(f"{damaged} damaged lines of metrics were left out.")
        notes += [f"{group.env}, {group.label}: {note}" for note in own]
    return notes


def write_curves(groups: Sequence[Group], metric: str, path: Path) -> Path:
    """Writes the figure (.png), or the page with charts and table (.html)."""
    panels = panels_of(groups, metric)
    if path.suffix == ".png":
        return learning_figure(panels, path, STEPS)
    band = statistics.describe_interval(max(len(group.finals(metric)) for group in groups))
    caption = f"Interquartile mean; the band is {band}. Click a name in the legend to hide its line."
    scores = Table(
        "Final scores",
        tuple(name.format(metric) for name in COLUMNS),
        tuple(map(tuple, score_rows(groups, metric))),
        f"The mean over the last {groups[0].last:g} % of each seed's steps: its interquartile mean over seeds, "
        "in brackets the interval.",
    )
    sections = [*(learning_section(panel, STEPS, caption) for panel in panels), table_section(scores)]
    lead = "\n".join(f"- {note}" for note in notes_on(groups)) or "All seeds of all runs."
    return write_page(path, "Learning curves", lead, sections, "Made by `derex plot`.")


def _row(env: str, groups: Sequence[Group], metric: str) -> list[str]:
    """Final scores; the steps are those of the longest run, and those planned if some run is unfinished."""
    finals = [group.finals(metric) for group in groups]
    known = np.concatenate(finals)
    known = known[np.isfinite(known)]
    runs = [run for group in groups for run in group.runs]
    reached, planned = [run.last_step for run in runs], [run.config.get("steps") or 0 for run in runs]
    steps = short_count(max(reached))
    if any(step < plan for step, plan in zip(reached, planned, strict=True)):
        steps += f" of {short_count(max(planned))}"
    scores = ["–", "–", "–"]
    if len(known):
        value, low, high = statistics.stratified_interval(finals)
        scores = [f"{value:.4g} [{low:.4g}, {high:.4g}]", f"{known.mean():.4g}", f"{known.min():.4g}"]
    return [env, groups[0].label, str(sum(map(len, finals))), steps, *scores]


def _on(
    grid: Float[np.ndarray, " T"], steps: Float[np.ndarray, " t"], values: Float[np.ndarray, " t"]
) -> Float[np.ndarray, " T"]:
    """Interpolates the values linearly on the grid, within their span; unchanged if the steps are the grid."""
    if np.array_equal(grid, steps):
        return values
    known = np.isfinite(values)
    if not known.any():
        return np.full(len(grid), np.nan)
    return np.interp(grid, steps[known], values[known], left=np.nan, right=np.nan)


def _thinned(
    steps: Float[np.ndarray, " T"], values: Float[np.ndarray, "T N"]
) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, "t N"]]:
    """Averages neighbours if there are more than `MOST_POINTS` points; each mean stands at its last step."""
    if len(steps) <= MOST_POINTS:
        return steps, values
    ends = len(steps) * np.arange(1, MOST_POINTS + 1) // MOST_POINTS
    starts = np.append(0, ends[:-1])
    known = np.isfinite(values)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts, axis=0)
    counts = np.add.reduceat(known.astype(int), starts, axis=0)
    return steps[ends - 1], np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _without_copies(runs: Sequence[RunLog]) -> tuple[tuple[RunLog, ...], int]:
    """Keeps each seed of runs with equal options once, from the longest run; also returns the number left out.

    Copies of a run would count its seeds twice and make intervals too narrow.
    """
    options = [json.dumps(_select(run.config, DECIDING), sort_keys=True) for run in runs]
    longest: dict[tuple[str, Any], tuple[int, RunLog]] = {}  # the last step, and the first run that has it
    for run, own in zip(runs, options, strict=True):
        for line in run.lines:
            if line["step"] > longest.get((own, line["seed"]), (-1, run))[0]:
                longest[own, line["seed"]] = line["step"], run
    kept = []
    for run, own in zip(runs, options, strict=True):
        lines = [line for line in run.lines if longest[own, line["seed"]][1] is run]
        kept += [replace(run, lines=lines)] if lines else []
    seeds = sum(len({line["seed"] for line in run.lines}) for run in runs)
    return tuple(kept), seeds - len(longest)


def _differing(configs: Iterable[dict[str, Any]]) -> list[str]:
    """Options that matter to learning and differ among runs; older runs may lack some."""
    values: dict[str, list[Any]] = {}
    for config in configs:
        for name, value in _flat(_select(config, LEARNING)).items():
            values.setdefault(name, []).append(value)
    return sorted(name for name, found in values.items() if any(value != found[0] for value in found))


def _select(options: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}


def _flat(options: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in options.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return flat


def _short_names(folders: list[Path]) -> list[str]:
    """Names folders by as many of their last parts as tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    shorter = (["/".join(each[-length:]) for each in parts] for length in range(1, max(map(len, parts)) + 1))
    return next(names for names in shorter if len(set(names)) == len(set(parts)))


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
