"""Scores of runs, and the interval reported with each number.

Each kind of number has one interval, at 95 %:

- *Student-t* for means of few independent numbers of one kind: scores of fits over seeds, returns over episodes
  (`mean_interval`). With three to five values a percentile bootstrap is only their range and covers too little.
- *Wilson* for proportions, such as the share of episodes that succeed (`proportion_interval`). It stays within [0, 1]
  and has positive width where all succeed.
- *Percentile bootstrap over seeds* for learning curves and final scores of agents (`bootstrap_intervals`), of the
  interquartile mean (IQM) as in Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
  Precipice". Returns of agents are skewed and bounded; the bootstrap stays within the range of the seeds, which a t
  interval does not. With few seeds it is too narrow; with fewer than `FEW_SEEDS` it is the range of the seeds.
  Resamples are the same in every call, so bands are smooth over steps and figures are reproducible.

Shapes: T steps, N seeds, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real
from scipy import stats

LEVEL = 0.95
ENDS = (1 - LEVEL) / 2, (1 + LEVEL) / 2  # quantiles of resamples at which bootstrap intervals end
LAST_PERCENT = 2.0  # of the steps of a run: the paper's final score is the mean over these
RESAMPLES = 2000
FEW_SEEDS = 3
OF_EPISODES = ("return", "success", "episode_length", "human_normalised")

Lines = Sequence[dict[str, Any]]


class Interval(NamedTuple):
    """A number and the ends of its interval."""

    value: float
    low: float
    high: float


def mean_interval(
    values: Sequence[float] | Real[np.ndarray, " N"], ends_of_one: float | None = None
) -> Interval:
    """Computes the mean of independent values and its Student-t interval.

    A single value has no interval: both ends are then `ends_of_one`, or the value itself if that is None.
    """
    data = np.asarray(values, np.float64)
    if data.size == 0:
        raise ValueError("values: expected at least one, got none.")
    mean = float(data.mean())
    if data.size == 1:
        end = mean if ends_of_one is None else ends_of_one
        return Interval(mean, end, end)
    margin = float(stats.t.ppf((1 + LEVEL) / 2, data.size - 1) * data.std(ddof=1) / np.sqrt(data.size))
    return Interval(mean, mean - margin, mean + margin)


def proportion_interval(successes: Bool[np.ndarray, " N"]) -> Interval:
    """Computes the share of successes and its Wilson interval."""
    test = stats.binomtest(int(np.sum(successes)), len(successes))
    low, high = test.proportion_ci(LEVEL, method="wilson")
    return Interval(float(np.mean(successes)), float(low), float(high))


def interquartile_mean(values: Float[np.ndarray, "*rest N"]) -> Float[np.ndarray, "*rest"]:
    """Computes the mean of the middle half along the last axis, without the ⌊N/4⌋ values at each end."""
    return np.asarray(stats.trim_mean(values, 0.25, axis=-1))


def bootstrap_intervals(values: Float[np.ndarray, "T N"], trimmed: bool = True) -> Float[np.ndarray, "3 T"]:
    """Computes the interquartile mean over seeds of each row, and its percentile bootstrap interval.

    Args:
        values: one column for each seed; NaN are left out.
        trimmed: whether to use the interquartile mean; otherwise the mean of all seeds.

    Returns:
        Value, low end and high end of each row; NaN where it has no finite value.
    """
    average = interquartile_mean if trimmed else partial(np.mean, axis=-1)
    result = np.full((3, len(values)), np.nan)
    counts = np.isfinite(values).sum(axis=1)
    for seeds in np.unique(counts[counts > 0]):
        rows = counts == seeds
        known = np.sort(values[rows], axis=1)[:, :seeds]  # NaN last
        result[0, rows] = average(known)
        if seeds < FEW_SEEDS:
            result[1:, rows] = known[:, 0], known[:, -1]
        else:
            resampled = average(_resample(known, np.random.default_rng(0)))
            result[1:, rows] = np.quantile(resampled, ENDS, axis=1)
    return result


def bootstrap_interval(values: Float[np.ndarray, " N"], trimmed: bool = True) -> Interval:
    """Computes `bootstrap_intervals` of one row."""
    return Interval(*bootstrap_intervals(values[None], trimmed)[:, 0].tolist())


def stratified_interval(strata: Sequence[Float[np.ndarray, " _"]]) -> Interval:
    """Computes the interquartile mean over all seeds of all tasks, and its stratified bootstrap interval.

    Seeds are resampled within each task, so every resample has as many runs of each task as there are, and hard and
    easy tasks keep their weights. NaN ends and value where no score is finite.
    """
    known = [np.sort(values[np.isfinite(values)]) for values in strata]
    known = [values for values in known if len(values)]
    if len(known) < 2:
        return bootstrap_interval(known[0] if known else np.full(1, np.nan))
    rng = np.random.default_rng(0)
    resampled = np.concatenate([_resample(values, rng) for values in known], axis=1)
    low, high = np.quantile(interquartile_mean(resampled), ENDS)
    return Interval(float(interquartile_mean(np.concatenate(known))), float(low), float(high))


def describe_interval(seeds: int) -> str:
    """Says what a bootstrap interval over this many seeds is."""
    if seeds == 1:
        return "missing, since there is one seed"
    return "the range of the seeds" if seeds < FEW_SEEDS else "the 95 % bootstrap interval over seeds"


def final_score(lines: Lines, metric: str = "return", percent: float = LAST_PERCENT) -> dict[int, float]:
    """Computes the mean of each seed over the last steps of the run: 2 % of them, as the paper reports scores.

    A line counts if the log interval it ends is among them; with fewer than fifty lines only the last one counts.
    Means over episodes are weighted by the number of episodes, since a line in which only a few short episodes ended
    says little. With several tasks the score is the mean over tasks. Lines without the metric are left out; a seed
    without any gets NaN.
    """
    if not lines:
        return {}
    total = max(line["step"] for line in lines)
    ending = [line for line in lines if 100 * line["step"] > (100 - percent) * total]
    seeds = sorted({line["seed"] for line in lines})
    return {seed: _score([line for line in ending if line["seed"] == seed], metric) for seed in seeds}


def get_tasks(line: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the metrics of each task in a line; entries that are not objects are left out."""
    tasks = line.get("tasks")
    return {name: of for name, of in tasks.items() if isinstance(of, dict)} if isinstance(tasks, dict) else {}


def get_number(line: dict[str, Any], metric: str) -> float:
    """Returns one number of a line; NaN if it has none."""
    value = line.get(metric)
    return float(value) if isinstance(value, int | float) else math.nan


def _score(lines: Lines, metric: str) -> float:
    """Averages lines of one seed, or its tasks."""
    values = [get_number(line, metric) for line in lines]
    if metric not in OF_EPISODES:
        return _finite_mean(values, [1.0] * len(values))
    tasks = list(dict.fromkeys(name for line in lines for name in get_tasks(line)))
    if not tasks:
        episodes = [get_number(line, "episodes") for line in lines]
        return _finite_mean(values, [count if count > 0 else 1.0 for count in episodes])
    each = [[get_tasks(line)[name] for line in lines if name in get_tasks(line)] for name in tasks]
    return _finite_mean([_score(of_task, metric) for of_task in each], [1.0] * len(each))


def _finite_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted mean of the finite values; NaN if there are none."""
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if math.isfinite(value)]
    return math.fsum(v * w for v, w in known) / math.fsum(w for _, w in known) if known else math.nan


def _resample(
    values: Float[np.ndarray, "*rest N"], rng: np.random.Generator
) -> Float[np.ndarray, "*rest R N"]:
    """Draws seeds with replacement, the same ones for all rows."""
    count = values.shape[-1]
    return values[..., rng.integers(0, count, size=(RESAMPLES, count))]
