"""Intervals and final scores: by hand, against a formula or scipy, and by how often an interval covers the truth."""

import math

import numpy as np
import pytest
from scipy.stats import trim_mean

from derex.report.statistics import (
    bootstrap_interval,
    bootstrap_intervals,
    describe_interval,
    final_score,
    interquartile_mean,
    mean_interval,
    proportion_interval,
    stratified_interval,
)


def lines(steps, values, seed=0, metric="return"):
    return [{"step": step, "seed": seed, metric: value} for step, value in zip(steps, values, strict=True)]


def test_mean_interval_by_hand():
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert high - mean == pytest.approx(4.302653 / np.sqrt(3))  # t quantile at two degrees of freedom, s = 1
    assert mean - low == pytest.approx(high - mean)
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])


def test_mean_interval_of_one_value():
    assert mean_interval([2.0]) == (2.0, 2.0, 2.0)
    value, *ends = mean_interval(np.array([2.0]), ends_of_one=math.nan)
    assert value == 2.0
    assert np.isnan(ends).all()


def test_mean_interval_has_its_coverage():
    rng = np.random.default_rng(0)
    found = [mean_interval(rng.normal(size=3)) for _ in range(2000)]
    assert np.mean([low <= 0.0 <= high for _, low, high in found]) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(("successes", "count"), [(9, 10), (10, 10), (0, 7), (3, 8)])
def test_proportion_interval_is_wilsons(successes, count):
    z, p = 1.959963984540054, successes / count
    centre = (p + z**2 / (2 * count)) / (1 + z**2 / count)
    margin = z / (1 + z**2 / count) * math.sqrt(p * (1 - p) / count + z**2 / (4 * count**2))
    expected = (p, max(centre - margin, 0.0), min(centre + margin, 1.0))
    assert proportion_interval(np.arange(count) < successes) == pytest.approx(expected, abs=1e-12)


def test_interquartile_mean_by_hand():
    assert interquartile_mean(np.array([100.0, 1.0, 3.0, -50.0])) == 2.0
    assert interquartile_mean(np.array([4.0, 1.0, 1.0])) == 2.0
    np.testing.assert_array_equal(
        interquartile_mean(np.array([[0.0, 1, 2, 3, 99], [5, 4, 3, 2, 1]])), [2.0, 3.0]
    )


def test_few_seeds_have_their_range():
    value, low, high = bootstrap_intervals(np.array([[3.0, 1.0], [2.0, math.nan], [math.nan, math.nan]]))
    np.testing.assert_array_equal(value, [2.0, 2.0, math.nan])
    np.testing.assert_array_equal(low, [1.0, 2.0, math.nan])
    np.testing.assert_array_equal(high, [3.0, 2.0, math.nan])


def test_bootstrap_leaves_out_nan_and_rows_are_independent():
    values = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, math.nan, 6.0, 9.0]])
    together = bootstrap_intervals(values)
    np.testing.assert_array_equal(together[:, 0], bootstrap_interval(values[0]))
    np.testing.assert_array_equal(together[:, 1], bootstrap_interval(np.array([9.0, 5.0, 6.0])))
    assert together[0].tolist() == [2.5, 20 / 3]


def test_bootstrap_against_scipys_trimmed_mean():
    values = np.random.default_rng(0).normal(size=12)
    rng = np.random.default_rng(1)
    resampled = trim_mean(rng.choice(values, (20_000, 12)), 0.25, axis=1)
    _, low, high = bootstrap_interval(values)
    assert [low, high] == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=0.04)


def test_bootstrap_of_the_mean():
    values = np.array([0.0, 0.0, 1.0, 1.0, 1.0])
    mean, low, high = bootstrap_interval(values, trimmed=False)
    assert mean == pytest.approx(0.6)
    # A resample has binomial(5, 0.6) ones: at most 0 in 1.0 %, at most 1 in 8.7 %, all five in 7.8 %.
    assert (low, high) == (pytest.approx(0.2), pytest.approx(1.0))
    assert bootstrap_interval(values, trimmed=False) == (mean, low, high)  # the same resamples each time
    spread = np.random.default_rng(1).normal(size=400)
    mean, low, high = bootstrap_interval(spread, trimmed=False)
    expected = 1.96 * spread.std() / 20  # large samples: the normal interval
    assert (mean - low, high - mean) == (pytest.approx(expected, rel=0.1), pytest.approx(expected, rel=0.1))


def test_bootstrap_has_about_its_coverage():
    """A percentile bootstrap of twenty values is known to be a little too narrow: about 92 % instead of 95 %."""
    samples = np.random.default_rng(0).normal(size=(600, 20))
    _, low, high = bootstrap_intervals(samples)
    covered = np.mean((low <= 0) & (high >= 0))
    assert 0.90 <= covered <= 0.97


def test_strata_are_resampled_separately():
    """Two tasks whose seeds agree have no interval, though seeds drawn from both together would vary."""
    easy, hard = np.full(4, 1.0), np.full(4, 0.0)
    assert stratified_interval([easy, hard]) == (0.5, 0.5, 0.5)
    one = np.array([1.0, 2.0, 3.0, 4.0])
    assert stratified_interval([one]) == bootstrap_interval(one)
    assert math.isnan(stratified_interval([np.array([math.nan])]).value)


def test_final_score_is_the_mean_of_the_last_two_percent():
    steps = range(1000, 101_000, 1000)
    values = [0.0] * 98 + [1.0, 2.0]
    found = final_score([*lines(steps, values), *lines(steps, [5.0] * 100, seed=3)])
    assert found == {0: 1.5, 3: 5.0}
    assert final_score(lines(steps, values), percent=4.0) == {0: 0.75}
    assert final_score(lines(steps, values), percent=100.0) == {0: 0.03}


def test_means_over_episodes_are_weighted_by_their_number():
    pair = [
        {"step": 99, "seed": 0, "success": 1.0, "episodes": 1, "entropy": 1.0},
        {"step": 100, "seed": 0, "success": 0.0, "episodes": 9, "entropy": 2.0},
    ]
    assert final_score(pair, "success") == {0: pytest.approx(0.1)}
    assert final_score(pair, "entropy") == {0: 1.5}


def test_final_score_of_several_tasks_is_the_mean_over_tasks():
    """Not over lines, in which a task with long episodes may be missing."""

    def line(step: int, **tasks: tuple[float | None, int]):
        known = {name: {"success": of, "episodes": n} for name, (of, n) in tasks.items()}
        return {"step": step, "seed": 0, "success": 0.9, "episodes": 5, "tasks": known}

    both = [line(99, short=(1.0, 8), long=(None, 0)), line(100, short=(0.5, 8), long=(0.25, 2))]
    assert final_score(both, "success") == {0: pytest.approx((0.75 + 0.25) / 2)}
    assert final_score([both[0]], "success") == {0: 1.0}
    assert final_score([line(1) | {"tasks": "edited"}], "success") == {0: 0.9}


def test_final_score_of_few_lines_is_the_last_line():
    assert final_score(lines([10, 20, 30], [1.0, 2.0, 7.0])) == {0: 7.0}
    assert final_score([]) == {}


def test_final_score_leaves_out_lines_without_the_metric():
    steps = range(1, 101)
    assert final_score(lines(steps, [0.0] * 98 + [4.0, None])) == {0: 4.0}
    assert math.isnan(final_score(lines(steps, [1.0] * 98 + [None, None]))[0])
    assert math.isnan(final_score(lines(steps, [1.0] * 100), "success")[0])


def test_describe_interval():
    assert "one seed" in describe_interval(1)
    assert "range" in describe_interval(2)
    assert "bootstrap" in describe_interval(3)
