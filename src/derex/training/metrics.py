"""From the sums of a log interval to lines of metrics, one for each seed, and the record of visits.

Of several tasks the numbers are means over tasks of their means, so that tasks with short episodes do not count for
more. A task of which no episode has ended has no mean and is left out; `tasks_counted` says how many are in.

Shapes: N seeds, B streams, n numbered states.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Shaped

from derex._text import to_plain
from derex.envs.multitask import TaskAssignment
from derex.envs.suites.dmlab import LEVELS, human_normalised, plain
from derex.report.runs import VisitLog, save_visits
from derex.training.config import TrainConfig
from derex.training.folder import VISITS, VISITS_PICTURE
from derex.training.learner import CAUSES, Skips, Training, TrainState
from derex.types import EnvironmentSpec

TASKS = "tasks"
HUMAN_SCORE_CAP = 100.0
"""human-normalised scores count up to this, as is usual for DMLab-30"""
VISITS_SECONDS = 60.0  # between two writes of the record of visits


def average_tasks(tasks: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Averages the numbers of each task into those of a line of metrics, which also contains them by task.

    Args:
        tasks: return, success, episode_length (each may be None) and episodes, by task. Levels of DeepMind Lab also
            get their human-normalised score, and the line the mean of all, capped and uncapped.
    """
    rows = {name: add_human_score(name, row) for name, row in tasks.items()}
    names = ("return", "success", "episode_length")
    line: dict[str, Any] = {name: average_over(rows, name) for name in names}
    line["episodes"] = sum(row["episodes"] for row in rows.values())
    line["tasks_counted"] = sum(row["episodes"] > 0 for row in rows.values())
    if any("human_normalised" in row for row in rows.values()):
        line["human_normalised"] = average_over(rows, "human_normalised")
        line["human_normalised_capped"] = average_over(rows, "human_normalised", HUMAN_SCORE_CAP)
    return line | {TASKS: rows}


def add_human_score(task: str, row: dict[str, Any]) -> dict[str, Any]:
    """Adds the human-normalised score to the row of a DMLab-30 level: 100 is the score of people."""
    if not has_human_score(task):
        return row
    score = row["return"]
    return row | {"human_normalised": None if score is None else human_normalised(task, score)}


def has_human_score(task: str) -> bool:
    """Whether the score of people is known."""
    return task.startswith("dmlab:") and plain(task) in LEVELS


def average_over(rows: Mapping[str, dict[str, Any]], name: str, cap: float = np.inf) -> float | None:
    """The mean of one number over the tasks that have it, each at most `cap`."""
    values = [row[name] for row in rows.values() if row.get(name) is not None]
    return float(np.mean(np.minimum(values, cap))) if values else None


class DivergedError(ValueError):
    """Training has diverged: values are no longer finite."""


class IntervalSums(NamedTuple):
    """The sums of a log interval, as numpy arrays with a leading axis of seeds."""

    iterations: Shaped[Any, " N"]
    skipped: Shaped[Any, " N"]
    numbers: dict[str, Any]
    """summed over iterations: (N,) each"""
    visits: Float[Any, "N n"]
    bonuses: Float[Any, "N n"]
    episodes: Any
    """an `EpisodeSums`, each (N, B)"""
    report: dict[str, Any]
    """of the representation: (N,) each, and the spectrum (N, k)"""
    assigned: TaskAssignment | None = None
    """which stream plays which task, if there are several"""


def read_sums(training: Training, state: TrainState) -> IntervalSums:
    """Copies the sums of the interval from the device."""
    episodes = state.actor.environment.sums
    sums = jax.device_get(IntervalSums(*state.tally, episodes, training.report(state)))
    return sums._replace(assigned=training.streams.assigned)


def check_skipped_updates(
    skips: Skips, step: int, seeds: tuple[int, ...], most: int, before: Any = 0
) -> None:
    """Raises `DivergedError` if a seed has skipped `most` updates in a row by environment step `step`.

    A row may start and end between two checks, so the longest row counts if it has grown since the run started or
    resumed, when it was `before`, (N,) or 0: rows from before do not stop a run whose `most` is lower now.
    """
    rows = np.where(np.asarray(skips.most) > before, skips.most, skips.in_a_row)
    n = int(np.argmax(rows))
    if rows[n] < most:
        return
    causes = [name for name, found in zip(CAUSES, np.asarray(skips.causes)[n], strict=True) if found]
    raise DivergedError(
        f"training diverged by step {step}, seed {seeds[n]}: {most} updates in a row were skipped because "
        f"{' and '.join(causes)} was not finite. Earlier checkpoints are intact. Try a smaller learning rate or more "
        "streams; if the environment itself produces non-finite values now and then, a larger --max-skipped."
    )


def make_lines(
    sums: IntervalSums, spec: EnvironmentSpec, step: int, seeds: tuple[int, ...], times: dict[str, float]
) -> list[dict[str, Any]]:
    """Makes the line of metrics of each of N seeds; `times` are in all of them. Floats are rounded to single precision.

    Raises:
        DivergedError: a number is not finite.
    """
    lines = []
    for n, seed in enumerate(seeds):
        line = {"step": step, "seed": seed} | _episodes(sums, spec, n) | times | _means(sums, n)
        values = {name: value for name, value in line.items() if value is not None and name != TASKS}
        if wrong := [name for name, value in values.items() if not np.all(np.isfinite(value))]:
            raise DivergedError(
                f"training diverged by step {step}, seed {seed}: {', '.join(wrong)} not finite. Earlier lines are "
                "kept. Try a smaller learning rate or more streams."
            )
        if spec.n_states:
            visits, bonuses = (total[n].astype(np.float64) for total in (sums.visits, sums.bonuses))
            line["states_seen"] = int(np.count_nonzero(visits))
            line["bonus_rank_correlation"] = rank_correlation(visits, bonuses)
        lines.append(to_plain(line, digits=7))
    return lines


def rank_correlation(visits: Float[np.ndarray, " n"], bonuses: Float[np.ndarray, " n"]) -> float | None:
    """Spearman's correlation of mean bonus and 1/visits over the visited states; None if either is constant."""
    from scipy.stats import spearmanr  # late: it takes long to import

    seen = (visits > 0) & ~np.isnan(bonuses)
    bonus, rarity = bonuses[seen] / visits[seen], -visits[seen]
    if len(bonus) < 2 or np.ptp(bonus) == 0.0 or np.ptp(rarity) == 0.0:
        return None
    return float(spearmanr(bonus, rarity)[0])


def _episodes(sums: IntervalSums, spec: EnvironmentSpec, n: int) -> dict[str, Any]:
    """Means over the episodes of seed n: of all its streams, or averaged over its tasks."""
    parts = {name: np.asarray(part[n]) for name, part in sums.episodes._asdict().items()}
    tasks = sums.assigned
    if tasks is None:
        return add_human_score(spec.name, _average_episodes(parts, spec))
    rows = {}
    for k, task in enumerate(tasks.specs):
        own = {name: part[tasks.task == k] for name, part in parts.items()}
        rows[task.name] = _average_episodes(own, task)
    return average_tasks(rows)


def _average_episodes(parts: dict[str, Shaped[np.ndarray, " B"]], spec: EnvironmentSpec) -> dict[str, Any]:
    """Means over the episodes that ended in the interval; None if none did, or a reward was not finite."""
    totals = {name: np.sum(part, dtype=np.float64) for name, part in parts.items()}
    episodes = int(totals["episodes"])

    def mean(name: str) -> float | None:
        return float(totals[name] / episodes) if episodes and np.isfinite(totals[name]) else None

    return {
        "return": mean("returns"),
        "success": None if spec.success_return is None else mean("successes"),
        "episode_length": mean("lengths"),
        "episodes": episodes,
    }


def _means(sums: IntervalSums, n: int) -> dict[str, Any]:
    """Means over the iterations of seed n that were not skipped, and the report of the representation."""
    iterations = int(sums.iterations[n])
    totals = sorted((name, float(values[n])) for name, values in sums.numbers.items())
    means: dict[str, Any] = {name: total / iterations if iterations else None for name, total in totals}
    report = {name: np.asarray(values[n]).tolist() for name, values in sums.report.items()}
    return means | {"skipped_updates": int(sums.skipped[n])} | report


class VisitRecorder(VisitLog):
    """Records visits, which checkpoints store, and writes visitation.npz; does nothing if states are not numbered.

    `saved` are the `arrays` of a checkpoint.
    """

    def __init__(
        self, config: TrainConfig, spec: EnvironmentSpec, saved: dict[str, np.ndarray] | None = None
    ):
        super().__init__(config.env, config.all_seeds, max(spec.n_states, 1), spec.positions)
        self._folder, self._numbered = config.out, spec.n_states > 0
        if saved:
            rows = zip(saved["steps"], saved["counts"], saved["bonuses"], strict=True)
            self._rows = [(int(step), counts, bonuses) for step, counts, bonuses in rows]
            self._width, self._in_last = (int(width) for width in saved["widths"])
        self._written = time.monotonic()

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays that a checkpoint stores; copies."""
        if not self._numbered:
            return {}
        visits, widths = self.visits(), np.array([self._width, self._in_last])
        return {"steps": visits.steps, "counts": visits.counts, "bonuses": visits.bonuses, "widths": widths}

    def record(self, step: int, sums: IntervalSums) -> None:
        """Adds an interval that ended at `step`."""
        if self._numbered:
            self.add(step, sums.visits, sums.bonuses)
            if time.monotonic() - self._written > VISITS_SECONDS:
                self.write()

    def write(self) -> None:
        """Writes visitation.npz."""
        if self._numbered:
            save_visits(self.visits(), self._folder / VISITS)
            self._written = time.monotonic()

    def draw(self) -> None:
        """Draws visitation.png, if states have positions."""
        visits = self.visits()
        if self._numbered and len(visits.positions):
            from derex.report.figures import visitation_figure

            visitation_figure(visits, self._folder / VISITS_PICTURE)
