"""From the lines of metrics.jsonl to curves and tables.

Shapes: T lines of a run, N seeds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from derex.experiments.exploration.definition import BASELINE, Case
from derex.experiments.exploration.kept import Run
from derex.report.scores import Interval, Lines, final_score, over_seeds
from derex.report.visits import short_steps

SOLVED, SOLVED_LINES = 0.9, 3


def mean_over_seeds(values: Float[np.ndarray, " N"]) -> Interval:
    """Of success, which is often 0 or 1: an interquartile mean would hide the seeds that fail."""
    return Interval(*over_seeds(values[None], trimmed=False)[:, 0].tolist())


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


def summarise(case: Case, run: Run) -> dict[str, Any]:
    """Curve and numbers of one run; None where a number is not defined."""
    lines, steps = run.lines, steps_of(run.lines)
    measure = "success" if np.isfinite(column(lines, "success")).any() else "return"
    values = column(lines, measure)
    means, low, high = over_seeds(values, trimmed=False)
    ends, seeds = final(lines, measure), seeds_of(lines)
    worst = int(np.nanargmin(ends)) if np.isfinite(ends).any() else None
    numbers = {
        "sigma_mean": final(lines, "sigma_mean"),
        "off_diagonal": final(lines, "off_diagonal"),
        "bonus_rank_correlation": _mean(column(lines, "bonus_rank_correlation")),
    }
    summary = {
        "env": case.env, "method": case.method, "form": case.form, "label": case.label, "run": f"runs/{case.name}",
        "seeds": len(seeds), "measure": measure, "final": mean_over_seeds(ends)._asdict(), "final_of_seeds": ends,
        "worst_seed": None if worst is None else {"seed": seeds[worst], "final": ends[worst]},
        "steps_until_solved": steps_until_solved(steps, means) if measure == "success" else None,
        **{name: _mean(of_seeds) for name, of_seeds in numbers.items()},
        "steps_per_second": np.nanmedian(column(lines, "steps_per_second")), "device": run.device,
        "curve": {"steps": steps, "mean": means, "low": low, "high": high},
    }  # fmt: skip
    return _plain(summary)


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
        "–" if solved is None else short_steps(solved),
        number(entry["sigma_mean"], 3),
        number(entry["off_diagonal"], 3),
        number(entry["bonus_rank_correlation"], 2),
        short_steps(entry["steps_per_second"]),
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


def _plain(value: Any) -> Any:
    """Lists and numbers that JSON has; None for NaN."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
