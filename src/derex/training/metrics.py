"""From the sums of a log interval to its lines of metrics, one for each seed.

Shapes: N seeds, B streams, n numbered states.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Shaped

from derex.envs.multitask import Assigned
from derex.report.data import spearman
from derex.training.loop import CAUSES, Skips, Training, TrainState
from derex.training.tasks import TASKS, over_tasks, with_human_score
from derex.types import EnvironmentSpec


class DivergedError(ValueError):
    """Numbers of the training are no longer finite."""


class Reading(NamedTuple):
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
    assigned: Assigned | None = None
    """which stream plays which task, where there are several"""


def read(training: Training, state: TrainState) -> Reading:
    """Copies the sums from the device."""
    report = training.report(state)
    episodes = training.streams.summary(state.actor.environment)
    reading = jax.device_get(Reading(*state.tally, episodes, report))
    return reading._replace(assigned=training.streams.assigned)


def check_skips(skips: Skips, step: int, seeds: tuple[int, ...], most: int, before: Any = 0) -> None:
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


def lines_of(
    reading: Reading, spec: EnvironmentSpec, step: int, seeds: tuple[int, ...], times: dict[str, float]
) -> list[dict[str, Any]]:
    """One dict for each seed; `times` is the same in all. Raises `DivergedError` where a number is not finite.

    Of several tasks the numbers of episodes are means over tasks, each of which counts alike (`derex.training.tasks`).
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


def _episodes_of(reading: Reading, spec: EnvironmentSpec, place: int) -> dict[str, Any]:
    """Of one seed: of all its streams, or of the streams of each task."""
    sums = {name: np.asarray(part[place]) for name, part in reading.episodes._asdict().items()}
    tasks = reading.assigned
    if tasks is None:
        return with_human_score(spec.name, _episodes(sums, spec))
    return over_tasks(
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


def _numbers(reading: Reading, place: int) -> dict[str, Any]:
    """Means over the iterations that were learnt from, and what the representation reports at the end."""
    iterations = int(reading.iterations[place])
    sums = {name: float(values[place]) for name, values in sorted(reading.numbers.items())}
    means = {name: total / iterations if iterations else None for name, total in sums.items()}
    means |= {"skipped_updates": int(reading.skipped[place])}
    return means | {name: np.asarray(values[place]).tolist() for name, values in reading.report.items()}


def _states(reading: Reading, place: int) -> dict[str, Any]:
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
