"""Numbers of many tasks as one: means over tasks of their means, so that quick tasks do not count for more.

A task of which no episode has ended has no mean, and is left out; `tasks_counted` says how many are in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from derex.envs.suites.dmlab_levels import LEVELS, human_normalised, plain

TASKS = "tasks"
CAP = 100.0
"""a human-normalised score counts up to this, as is usual for DMLab-30"""


def over_tasks(tasks: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The numbers of a line of metrics from those of each task, with these in it.

    Args:
        tasks: return, success, episode_length (None where there is none) and episodes, by task. Levels of DeepMind Lab
            get their human-normalised score besides, and the line the mean of all, capped and uncapped.
    """
    rows = {name: with_human_score(name, row) for name, row in tasks.items()}
    line: dict[str, Any] = {name: mean_over(rows, name) for name in ("return", "success", "episode_length")}
    line["episodes"] = sum(row["episodes"] for row in rows.values())
    line["tasks_counted"] = sum(row["episodes"] > 0 for row in rows.values())
    if any("human_normalised" in row for row in rows.values()):
        line |= {
            "human_normalised": mean_over(rows, "human_normalised"),
            "human_normalised_capped": mean_over(rows, "human_normalised", CAP),
        }
    return line | {TASKS: rows}


def with_human_score(task: str, row: dict[str, Any]) -> dict[str, Any]:
    """The row of a task, with its human-normalised score where it is a level of DMLab-30: 100 is what people reach."""
    if not is_scored(task):
        return row
    score = row["return"]
    return row | {"human_normalised": None if score is None else human_normalised(task, score)}


def is_scored(task: str) -> bool:
    """Whether it is known how people do in it."""
    return task.startswith("dmlab:") and plain(task) in LEVELS


def mean_over(rows: Mapping[str, dict[str, Any]], name: str, cap: float = np.inf) -> float | None:
    """The mean of one number over the tasks that have it, each counted up to `cap`."""
    values = [row[name] for row in rows.values() if row.get(name) is not None]
    return float(np.mean(np.minimum(values, cap))) if values else None
