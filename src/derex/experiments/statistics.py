"""Means over seeds with intervals."""

from collections.abc import Sequence

import numpy as np
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
