"""Numbers of many tasks as one: means over tasks of their means, so that quick tasks do not count for more.

A task of which no episode has ended has no mean, and is left out; `tasks_counted` says how many are in.

From the sums of a log interval to its lines of metrics, one for each seed.

Shapes: N seeds, B streams, n numbered states.

visitation.npz of a run, written now and then; it goes on where a checkpoint left it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Shaped

from derex.envs.multitask import TaskAssignment
from derex.envs.suites.dmlab import LEVELS, human_normalised, plain
from derex.report.data import spearman
from derex.report.visits import VisitLog, save_visits
from derex.training.config import TrainConfig
from derex.training.folder import VISITS, VISITS_PICTURE
from derex.training.learner import CAUSES, Skips, Training, TrainState
from derex.types import EnvironmentSpec

TASKS = "tasks"
HUMAN_SCORE_CAP = 100.0
"""a human-normalised score counts up to this, as is usual for DMLab-30"""


def average_tasks(tasks: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The numbers of a line of metrics from those of each task, with these in it.

    Args:
        tasks: return, success, episode_length (None where there is none) and episodes, by task. Levels of DeepMind Lab
            get their human-normalised score besides, and the line the mean of all, capped and uncapped.
    """
    rows = {name: add_human_score(name, row) for name, row in tasks.items()}
    line: dict[str, Any] = {
        name: average_over(rows, name) for name in ("return", "success", "episode_length")
    }
    line["episodes"] = sum(row["episodes"] for row in rows.values())
    line["tasks_counted"] = sum(row["episodes"] > 0 for row in rows.values())
    if any("human_normalised" in row for row in rows.values()):
        line |= {
            "human_normalised": average_over(rows, "human_normalised"),
            "human_normalised_capped": average_over(rows, "human_normalised", HUMAN_SCORE_CAP),
        }
    return line | {TASKS: rows}


def add_human_score(task: str, row: dict[str, Any]) -> dict[str, Any]:
    """The row of a task, with its human-normalised score where it is a level of DMLab-30: 100 is what people reach."""
    if not has_human_score(task):
        return row
    score = row["return"]
    return row | {"human_normalised": None if score is None else human_normalised(task, score)}


def has_human_score(task: str) -> bool:
    """Whether it is known how people do in it."""
    return task.startswith("dmlab:") and plain(task) in LEVELS


def average_over(rows: Mapping[str, dict[str, Any]], name: str, cap: float = np.inf) -> float | None:
    """The mean of one number over the tasks that have it, each counted up to `cap`."""
    values = [row[name] for row in rows.values() if row.get(name) is not None]
    return float(np.mean(np.minimum(values, cap))) if values else None


class DivergedError(ValueError):
    """Numbers of the training are no longer finite."""


class IntervalSums(NamedTuple):
    """The sums of an interval, as numpy arrays with the seeds in front."""

    iterations: Shaped[Any, " N"]
    skipped: Shaped[Any, " N"]
    numbers: dict[str, Any]
    """summed over iterations: (N,) each"""
    visits: Float[Any, "N n"]
    bonuses: Float[Any, "N n"]
    episodes: Any
    """an `EpisodeSums`, each (N, B)"""
    report: dict[str, Any]
    """what the representation reports: (N,) each, and the spectrum (N, k)"""
    assigned: TaskAssignment | None = None
    """which stream plays which task, where there are several"""


def read(training: Training, state: TrainState) -> IntervalSums:
    """Copies the sums from the device."""
    report = training.report(state)
    episodes = training.streams.summary(state.actor.environment)
    reading = jax.device_get(IntervalSums(*state.tally, episodes, report))
    return reading._replace(assigned=training.streams.assigned)


def check_skipped_updates(
    skips: Skips, step: int, seeds: tuple[int, ...], most: int, before: Any = 0
) -> None:
    """Raises `DivergedError` where a seed has skipped `most` updates in a row; `skips` has the seeds in front.

    Rows may begin and end between two looks, so that the longest counts, if it is longer than that of `before`, when
    the run was begun or gone on with: under a `most` that is lower now, what was skipped then is no reason to stop.
    """
    rows = np.where(np.asarray(skips.most) > before, skips.most, skips.in_a_row)
    place = int(np.argmax(rows))
    if rows[place] < most:
        return
    causes = [name for name, there in zip(CAUSES, np.asarray(skips.causes)[place], strict=True) if there]
    raise DivergedError(
        f"training diverged by step {step}, seed {seeds[place]}: {most} updates in a row were skipped since "
        f"{' and '.join(causes)} was not finite. The checkpoints from before are good. A smaller learning rate or more "
        "streams may help; where an environment gives such numbers now and then, a larger --max-skipped."
    )


def make_lines(
    reading: IntervalSums, spec: EnvironmentSpec, step: int, seeds: tuple[int, ...], times: dict[str, float]
) -> list[dict[str, Any]]:
    """One dict for each seed; `times` is the same in all. Raises `DivergedError` where a number is not finite.

    Of several tasks the numbers of episodes are means over tasks, each of which counts alike (`average_tasks`).
    """
    lines = [
        {"step": step, "seed": seed} | _episodes_of(reading, spec, place) | times | _numbers(reading, place)
        for place, seed in enumerate(seeds)
    ]
    for line in lines:
        _check_finite(line)
    if spec.n_states:
        lines = [line | _states(reading, place) for place, line in enumerate(lines)]
    return [{name: _rounded(value) for name, value in line.items()} for line in lines]


def rank_correlation(visits: Float[np.ndarray, " n"], bonuses: Float[np.ndarray, " n"]) -> float | None:
    """Spearman's correlation of mean bonus and 1/visits over the states seen; None where either is constant."""
    seen = visits > 0
    correlation = spearman(bonuses[seen] / visits[seen], -visits[seen])
    return None if math.isnan(correlation) else correlation


def _episodes_of(reading: IntervalSums, spec: EnvironmentSpec, place: int) -> dict[str, Any]:
    """Of one seed: of all its streams, or of the streams of each task."""
    sums = {name: np.asarray(part[place]) for name, part in reading.episodes._asdict().items()}
    tasks = reading.assigned
    if tasks is None:
        return add_human_score(spec.name, _episodes(sums, spec))
    return average_tasks(
        {
            own.name: _episodes({name: part[tasks.task == k] for name, part in sums.items()}, own)
            for k, own in enumerate(tasks.specs)
        }
    )


def _episodes(sums: dict[str, Shaped[np.ndarray, " B"]], spec: EnvironmentSpec) -> dict[str, Any]:
    """Means over the episodes that ended in the interval; None where none did, or a reward was not finite."""
    totals = {name: np.sum(part, dtype=np.float64) for name, part in sums.items()}
    episodes = int(totals["episodes"])

    def mean(name: str) -> float | None:
        return float(totals[name] / episodes) if episodes and np.isfinite(totals[name]) else None

    return {
        "return": mean("returns"),
        "success": None if spec.success_return is None else mean("successes"),
        "episode_length": mean("lengths"),
        "episodes": episodes,
    }


def _numbers(reading: IntervalSums, place: int) -> dict[str, Any]:
    """Means over the iterations that were learnt from, and what the representation reports at the end."""
    iterations = int(reading.iterations[place])
    sums = {name: float(values[place]) for name, values in sorted(reading.numbers.items())}
    means = {name: total / iterations if iterations else None for name, total in sums.items()}
    means |= {"skipped_updates": int(reading.skipped[place])}
    return means | {name: np.asarray(values[place]).tolist() for name, values in reading.report.items()}


def _states(reading: IntervalSums, place: int) -> dict[str, Any]:
    visits, bonuses = (sums[place].astype(np.float64) for sums in (reading.visits, reading.bonuses))
    return {
        "states_seen": int(np.count_nonzero(visits)),
        "bonus_rank_correlation": rank_correlation(visits, bonuses),
    }


def _check_finite(line: dict[str, Any]) -> None:
    values = {name: value for name, value in line.items() if value is not None and name != TASKS}
    wrong = [name for name, value in values.items() if not np.all(np.isfinite(value))]
    if wrong:
        raise DivergedError(
            f"training diverged by step {line['step']}, seed {line['seed']}: {', '.join(wrong)} not finite. What was "
            "logged before is kept. A smaller learning rate or more streams may help."
        )


def _rounded(value: Any) -> Any:
    """Floats to the seven digits that single precision has."""
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return float(f"{value:.7g}") if isinstance(value, float) else value


VISITS_SECONDS = 60.0  # between two writes


class VisitRecorder:
    """The record of visits and its files; where states have no numbers, nothing."""

    def __init__(
        self, config: TrainConfig, spec: EnvironmentSpec, saved: dict[str, np.ndarray] | None = None
    ):
        """`saved` is what `arrays` gave."""
        self._folder: Path = config.out
        self._log: ResumableVisitLog | None = None
        if spec.n_states:
            self._log = ResumableVisitLog(config.env, config.all_seeds, spec.n_states, spec.positions)
            self._log.go_on_from(saved or {})
        self._written = time.monotonic()

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps of it."""
        return {} if self._log is None else self._log.arrays()

    def add(self, step: int, reading: IntervalSums) -> None:
        """One more interval, which ended at `step`."""
        if self._log is None:
            return
        self._log.add(step, reading.visits, reading.bonuses)
        if time.monotonic() - self._written > VISITS_SECONDS:
            self.write()

    def write(self) -> None:
        """The file."""
        if self._log is not None:
            save_visits(self._log.visits(), self._folder / VISITS)
            self._written = time.monotonic()

    def draw(self) -> None:
        """The picture, where states have places."""
        if self._log is None:
            return
        from derex.report.figures import visitation_figure

        visits = self._log.visits()
        if len(visits.positions):
            visitation_figure(visits, self._folder / VISITS_PICTURE)


class ResumableVisitLog(VisitLog):
    """A log that can be put into arrays, whole, and taken out again."""

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it; copies."""
        visits = self.visits()
        widths = np.array([self._width, self._in_last])
        return {"steps": visits.steps, "counts": visits.counts, "bonuses": visits.bonuses, "widths": widths}

    def go_on_from(self, arrays: dict[str, Any]) -> None:
        """As it was when `arrays` was called."""
        if arrays:
            rows = zip(arrays["steps"], arrays["counts"], arrays["bonuses"], strict=True)
            self._rows = [(int(step), counts, bonuses) for step, counts, bonuses in rows]
            self._width, self._in_last = (int(width) for width in arrays["widths"])
