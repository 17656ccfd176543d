"""Learning curves of many runs: groups of runs, their curves over seeds, their final scores.

Shapes: T steps, N seeds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from derex._text import hint
from derex.progress import short_count
from derex.report.curves import CurvePanel, Line, learning_figure, learning_section
from derex.report.data import Curve, Table
from derex.report.page import table_section, write_page
from derex.report.palette import VIEW_COLOURS
from derex.report.runs import RunLog
from derex.report.statistics import (
    LAST_PERCENT,
    Interval,
    bootstrap_intervals,
    describe_interval,
    final_score,
    get_number,
    get_tasks,
    stratified_interval,
)

Label = Literal["method", "folder"]

STEPS = "environment steps of each seed"
MOST_POINTS = 400  # of a curve; neighbouring lines of longer runs are averaged
SPANS = {"success": (0.0, 1.0)}
MAY_DIFFER = ("seed", "seeds", "steps", "log_every", "env")  # within a group, besides what saves and logs
DECIDING = ("env", "method", "form", "streams", "agent", "representation", "deterministic")
COLUMNS = ("environment", "method", "seeds", "steps", "final {}", "mean", "worst seed")
EVERYWHERE = "all"


@dataclass(frozen=True, eq=False)
class Group:
    """The runs behind one line: one environment, one label, all their seeds.

    Attributes:
        env: the environment.
        label: label in legends.
        colour: number of its colour.
        dash: number of its dash.
        runs: its runs.
        copies: number of seeds left out because another run of equal options has them.
        last: percent of the steps that final scores average over.
    """

    env: str
    label: str
    colour: int
    dash: int
    runs: tuple[RunLog, ...]
    copies: int = 0
    last: float = LAST_PERCENT

    def finals(self, metric: str) -> Float[np.ndarray, " N"]:
        """Computes the final score of every seed."""
        scores = [final_score(run.lines, metric, self.last) for run in self.runs]
        return np.array([score for of_run in scores for score in of_run.values()])

    @property
    def reached(self) -> list[int]:
        """The last step of each run."""
        return [run.lines[-1]["step"] for run in self.runs]


def group_runs(runs: Sequence[RunLog], label: Label = "method", last: float = LAST_PERCENT) -> list[Group]:
    """Groups runs by environment and label; a label has one colour and dash in all environments.

    Args:
        runs: the runs.
        label: "method" joins runs of the same method and form; "folder" keeps runs apart.
        last: percent of the steps that final scores average over.
    """
    if label == "method":
        keys = [(run.method, run.form) for run in runs]
        methods = _distinct(run.method for run in runs)
        forms = {method: _distinct(run.form for run in runs if run.method == method) for method in methods}
        looks = {(method, form): (methods.index(method), forms[method].index(form)) for method, form in keys}
        names = {key: ", ".join(part for part in key if part) for key in keys}
    else:
        keys = _short_names([run.folder for run in runs])
        names = {key: key for key in keys}
        looks = {key: (i, i // len(VIEW_COLOURS)) for i, key in enumerate(_distinct(keys))}
    members: dict[tuple[str, Any], list[RunLog]] = {}
    for run, key in zip(runs, keys, strict=True):
        members.setdefault((run.env, key), []).append(run)
    return [
        Group(env, names[key], *looks[key], *_without_copies(ones), last)
        for (env, key), ones in members.items()
    ]


def runs_of_task(runs: Sequence[RunLog], task: str) -> list[RunLog]:
    """Converts runs of several tasks to runs of one of them, or of each in turn.

    Args:
        runs: the runs; those without the task are left out.
        task: its name, or "all" for each.
    """
    known = _distinct(name for run in runs for line in run.lines for name in get_tasks(line))
    if task not in known and (task != EVERYWHERE or not known):
        there = f"There are: {', '.join(known)}; or {EVERYWHERE}" if known else "No run has several tasks"
        raise ValueError(f"task: no run has {task!r}.{hint(task, known)} {there}.")
    wanted = known if task == EVERYWHERE else [task]
    sets = {run.env for run in runs if any(map(get_tasks, run.lines))}
    found = []
    for name in wanted:
        for run in runs:
            # Without the other tasks: a score of a line with tasks is the mean over them.
            own = [(line, get_tasks(line).get(name)) for line in run.lines]
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
    numbers = sorted(name for name, value in known.items() if isinstance(value, int | float))
    numbers = [name for name in numbers if name not in ("step", "seed")]
    if metric in numbers:
        return
    if metric in known:
        raise ValueError(f"metric: {metric!r} is a {type(known[metric]).__name__}, expected a number.")
    raise ValueError(
        f"metric: no run has {metric!r}.{hint(metric, numbers)} There are: {', '.join(numbers)}."
    )


def curve_of(group: Group, metric: str) -> Curve:
    """Computes the interquartile mean over the group's seeds and its interval, up to the last step of any run."""
    seeds = [
        ([line["step"] for line in lines], [get_number(line, metric) for line in lines])
        for run in group.runs
        for lines in _by_seed(run.lines)
    ]
    steps = np.unique(np.concatenate([np.asarray(at, np.float64) for at, _ in seeds]))
    values = np.stack([_on(steps, np.asarray(at, np.float64), np.asarray(of)) for at, of in seeds], axis=1)
    steps, values = _thinned(steps, values)
    return Curve(group.label, steps, *bootstrap_intervals(values))


def panels_of(groups: Sequence[Group], metric: str) -> list[CurvePanel]:
    """Makes a panel for each environment."""
    return [
        CurvePanel(
            env,
            metric.replace("_", " "),
            tuple(
                Line(curve_of(group, metric), group.colour, group.dash)
                for group in groups
                if group.env == env
            ),
            SPANS.get(metric),
        )
        for env in _distinct(group.env for group in groups)
    ]


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
        name = f"{group.env}, {group.label}"
        options = _differing([run.config for run in group.runs])
        if options:
            notes.append(
                f"{name}: joins runs that differ in {', '.join(options)}; --label folder keeps them apart."
            )
        if group.copies:
            notes.append(
                f"{name}: seeds that several runs of the same options have count once; {group.copies} left out; "
                "--label folder keeps them apart."
            )
        if len(set(group.reached)) > 1:
            low, high = (short_count(step) for step in (min(group.reached), max(group.reached)))
            notes.append(
                f"{name}: its runs have between {low} and {high} steps; beyond {low}, fewer seeds count."
            )
        damaged = sum(run.damaged for run in group.runs)
        if damaged:
            notes.append(f"{name}: {damaged} damaged lines of metrics were left out.")
    return notes


def write_curves(groups: Sequence[Group], metric: str, path: Path) -> Path:
    """Writes the figure (.png), or the page with charts and table (.html)."""
    panels = panels_of(groups, metric)
    if path.suffix == ".png":
        return learning_figure(panels, path, STEPS)
    most = max(len(group.finals(metric)) for group in groups)
    caption = f"Interquartile mean; the band is {describe_interval(most)}. Click a name in the legend to hide its line."
    columns = tuple(name.format(metric) for name in COLUMNS)
    scores = Table(
        "Final scores",
        columns,
        tuple(map(tuple, score_rows(groups, metric))),
        f"The mean over the last {groups[0].last:g} % of each seed's steps: its interquartile mean over seeds, "
        "in brackets the interval.",
    )
    sections = [*(learning_section(panel, STEPS, caption) for panel in panels), table_section(scores)]
    lead = "\n".join(f"- {note}" for note in notes_on(groups)) or "All seeds of all runs."
    return write_page(path, "Learning curves", lead, sections, "Made by `derex plot`.")


def _row(env: str, groups: Sequence[Group], metric: str) -> list[str]:
    finals = [group.finals(metric) for group in groups]
    known = np.concatenate(finals)
    known = known[np.isfinite(known)]
    score = stratified_interval(finals)
    return [
        env,
        groups[0].label,
        str(sum(map(len, finals))),
        _steps_text([run for group in groups for run in group.runs]),
        _score_text(score),
        f"{known.mean():.4g}" if len(known) else "–",
        f"{known.min():.4g}" if len(known) else "–",
    ]


def _steps_text(runs: Sequence[RunLog]) -> str:
    """The steps of the longest run, and the planned steps if some run is unfinished."""
    reached = [(run.lines[-1]["step"], run.config.get("steps") or 0) for run in runs]
    text = short_count(max(step for step, _ in reached))
    if all(step >= planned for step, planned in reached):
        return text
    return f"{text} of {short_count(max(planned for _, planned in reached))}"


def _score_text(score: Interval) -> str:
    return "–" if np.isnan(score.value) else f"{score.value:.4g} [{score.low:.4g}, {score.high:.4g}]"


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
    longest: dict[
        tuple[str, Any], tuple[int, int]
    ] = {}  # last step, and minus the place of the first run that has it
    for place, run in enumerate(runs):
        for line in run.lines:
            key = _identity(run), line["seed"]
            longest[key] = max(longest.get(key, (line["step"], -place)), (line["step"], -place))
    kept, copies = [], 0
    for place, run in enumerate(runs):
        seeds = {line["seed"] for line in run.lines}
        own = {seed for seed in seeds if longest[_identity(run), seed][1] == -place}
        copies += len(seeds - own)
        if own:
            kept.append(replace(run, lines=[line for line in run.lines if line["seed"] in own]))
    return tuple(kept), copies


def _identity(run: RunLog) -> str:
    """The options that decide the numbers of a seed, as text."""
    return json.dumps({name: of for name, of in run.config.items() if name in DECIDING}, sort_keys=True)


def _by_seed(lines: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    seeds = _distinct(line["seed"] for line in lines)
    return [[line for line in lines if line["seed"] == seed] for seed in seeds]


def _differing(configs: list[dict[str, Any]]) -> list[str]:
    """Options that matter to learning and differ among runs."""
    flat = [_flat({name: part for name, part in each.items() if name not in MAY_DIFFER}) for each in configs]
    parts = {"agent", "representation", "streams", "method", "form"}
    names = sorted({name for each in flat for name in each if name.split(".")[0] in parts})
    values = {name: [each[name] for each in flat if name in each] for name in names}  # older runs have fewer
    return [name for name, of in values.items() if any(value != of[0] for value in of)]


def _flat(options: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in options.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return flat


def _short_names(folders: list[Path]) -> list[str]:
    """Names folders by as many of their last parts as tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [str(folder) for folder in folders]


def _distinct(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))
