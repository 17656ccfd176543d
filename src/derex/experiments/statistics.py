"""Means over seeds with intervals."""

from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Mean and its percentile-bootstrap interval over seeds; with one seed the interval is the value itself."""
    data = np.asarray(values, np.float64)
    if data.size == 0:
        raise ValueError("values: expected at least one, got none.")
    draws = np.random.default_rng(0).integers(0, data.size, (RESAMPLES, data.size))
    low, high = np.quantile(data[draws].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(data.mean()), float(low), float(high)
