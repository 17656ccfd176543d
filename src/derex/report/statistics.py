"""Means over seeds with intervals.

Scores of runs from the lines of metrics.jsonl: final scores, interquartile means, bootstrap intervals over seeds.

Shapes: T steps, N seeds, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import stats


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Mean and its Student-t interval over independent runs; one run has no interval, so both ends are the value.

    Seeds are few: a percentile bootstrap of three values is just their range, and covers far less than it says.
    """
    data = np.asarray(values, np.float64)
    if data.size == 0:
        raise ValueError("values: expected at least one, got none.")
    mean = float(data.mean())
    if data.size == 1:
        return mean, mean, mean
    margin = float(stats.t.ppf((1 + level) / 2, data.size - 1) * data.std(ddof=1) / np.sqrt(data.size))
    return mean, mean - margin, mean + margin


LAST_PERCENT = 2.0  # of the steps of a run: the paper's final score is the mean over these
RESAMPLES = 2000
OF_EPISODES = ("return", "success", "episode_length", "human_normalised")
FEW_SEEDS = 3  # with fewer, an interval is from the least to the greatest

Lines = Sequence[dict[str, Any]]


class Interval(NamedTuple):
    """A number over seeds, and how far it can be trusted."""

    value: float
    low: float
    high: float


NOTHING = Interval(math.nan, math.nan, math.nan)


def final_score(lines: Lines, metric: str = "return", percent: float = LAST_PERCENT) -> dict[int, float]:
    """The mean of each seed over the last steps of the run: 2 % of them, as the paper reports scores.

    A line counts where the interval that it stands for ends there; with fewer than fifty lines that is the last one
    alone. Means over episodes count by their number: a line in which few episodes of a task ended, those that are
    short, says little of it. Of several tasks it is the mean over them. Lines without the number (no episode had
    ended) are left out; NaN for a seed that has none.
    """
    if not lines:
        return {}
    total = max(line["step"] for line in lines)
    ending = [line for line in lines if 100 * line["step"] > (100 - percent) * total]
    seeds = sorted({line["seed"] for line in lines})
    return {seed: _score([line for line in ending if line["seed"] == seed], metric) for seed in seeds}


def _score(lines: Lines, metric: str) -> float:
    """The mean over lines of one seed, or over its tasks."""
    if metric not in OF_EPISODES:
        return _mean_of([number(line, metric) for line in lines])
    tasks = list(dict.fromkeys(name for line in lines for name in tasks_of(line)))
    if not tasks:
        return _mean_of([number(line, metric) for line in lines], [_episodes(line) for line in lines])
    each = [[tasks_of(line)[name] for line in lines if name in tasks_of(line)] for name in tasks]
    return _mean_of([_score(of_task, metric) for of_task in each])


def tasks_of(line: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The numbers of each task; of a line that somebody edited, those that are some."""
    tasks = line.get("tasks")
    return {name: of for name, of in tasks.items() if isinstance(of, dict)} if isinstance(tasks, dict) else {}


def _episodes(line: dict[str, Any]) -> float:
    """How many a line is the mean over; 1 where it does not say."""
    episodes = number(line, "episodes")
    return episodes if episodes > 0 else 1.0


def number(line: dict[str, Any], metric: str) -> float:
    """One number of a line; NaN where it has none."""
    value = line.get(metric)
    return float(value) if isinstance(value, int | float) else math.nan


def interquartile_mean(values: Float[np.ndarray, "*rest N"]) -> Float[np.ndarray, "*rest"]:
    """The mean of the middle half along the last axis: ⌊N/4⌋ values are left out at each end."""
    kept = np.sort(values, axis=-1)[..., _middle(values.shape[-1])]
    return np.asarray(kept.mean(axis=-1))


def over_seeds(
    values: Float[np.ndarray, "T N"], level: float = 0.95, trimmed: bool = True
) -> Float[np.ndarray, "3 T"]:
    """Interquartile mean over seeds of each row, and the ends of its percentile bootstrap; NaN are left out.

    Not `trimmed`, it is the mean of all. Unlike a t interval, that of numbers between 0 and 1 stays between them. The
    resamples are the same for all rows and each time, so that bands are smooth and pictures can be made again. With few
    seeds the interval is rather too narrow; with fewer than three it is their range.
    """
    result = np.full((3, len(values)), np.nan)
    ordered = np.sort(values, axis=1)  # NaN last
    counts = np.isfinite(values).sum(axis=1)
    for seeds in np.unique(counts[counts > 0]):
        rows = np.flatnonzero(counts == seeds)
        known = ordered[rows, :seeds]
        middle = _middle(int(seeds)) if trimmed else slice(None)
        result[0, rows] = known[:, middle].mean(axis=-1)
        if seeds < FEW_SEEDS:
            result[1:, rows] = known[:, 0], known[:, -1]
        else:
            chosen = _resamples(int(seeds), np.random.default_rng(0))[:, middle]
            resampled = known[:, chosen].mean(axis=-1)
            result[1:, rows] = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], axis=1)
    return result


def stratified(strata: Sequence[Float[np.ndarray, " _"]], level: float = 0.95) -> Interval:
    """Interquartile mean over all seeds of all tasks, and its bootstrap, which draws anew within each task alone.

    So every resample has as many runs of each task as there are: hard and easy tasks keep their weights.
    """
    known = [np.sort(values[np.isfinite(values)]) for values in strata]
    known = [values for values in known if len(values)]
    if not known:
        return NOTHING
    if len(known) == 1:
        return Interval(*over_seeds(known[0][None], level)[:, 0].tolist())
    rng = np.random.default_rng(0)
    resampled = np.concatenate([values[_resamples(len(values), rng)] for values in known], axis=1)
    low, high = np.quantile(interquartile_mean(resampled), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(interquartile_mean(np.concatenate(known))), float(low), float(high))


def interval_words(seeds: int) -> str:
    """What an interval over so many seeds is."""
    if seeds == 1:
        return "missing, since there is one seed"
    return "the range of the seeds" if seeds < FEW_SEEDS else "the 95 % bootstrap interval over seeds"


def _resamples(seeds: int, rng: np.random.Generator) -> Int[np.ndarray, "R N"]:
    """Places drawn with replacement, each row in order: what is taken at them from sorted values is sorted."""
    return np.sort(rng.integers(0, seeds, size=(RESAMPLES, seeds)), axis=1)


def _middle(count: int) -> slice:
    return slice(count // 4, count - count // 4)


def _mean_of(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Of those that are numbers."""
    known = [
        (value, weight)
        for value, weight in zip(values, weights or [1.0] * len(values), strict=True)
        if math.isfinite(value)
    ]
    return math.fsum(v * w for v, w in known) / math.fsum(w for _, w in known) if known else math.nan
