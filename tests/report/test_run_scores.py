"""Scores: against scipy, by hand, and how often an interval holds the truth."""

import math

import numpy as np
import pytest
from scipy.stats import trim_mean

from derex.report.statistics import final_score, interquartile_mean, interval_words, over_seeds, stratified


def lines(steps, values, seed=0, metric="return"):
    return [{"step": step, "seed": seed, metric: value} for step, value in zip(steps, values, strict=True)]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 20])
def test_interquartile_mean_is_scipys_trimmed_mean(n):
    values = np.random.default_rng(n).normal(size=(6, n)) ** 3
    np.testing.assert_allclose(interquartile_mean(values), trim_mean(values, 0.25, axis=1), rtol=1e-12)


def test_interquartile_mean_by_hand():
    assert interquartile_mean(np.array([100.0, 1.0, 3.0, -50.0])) == 2.0
    assert interquartile_mean(np.array([4.0, 1.0, 1.0])) == 2.0


def test_few_seeds_have_their_range():
    value, low, high = over_seeds(np.array([[3.0, 1.0], [2.0, math.nan], [math.nan, math.nan]]))
    np.testing.assert_array_equal(value, [2.0, 2.0, math.nan])
    np.testing.assert_array_equal(low, [1.0, 2.0, math.nan])
    np.testing.assert_array_equal(high, [3.0, 2.0, math.nan])


def test_nan_is_left_out_and_rows_do_not_touch_each_other():
    values = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, math.nan, 6.0, 9.0]])
    together = over_seeds(values)
    np.testing.assert_array_equal(together[:, 0], over_seeds(values[:1])[:, 0])
    np.testing.assert_array_equal(together[:, 1], over_seeds(np.array([[9.0, 5.0, 6.0]]))[:, 0])
    assert together[0].tolist() == [2.5, 20 / 3]


def test_the_interval_is_the_bootstraps():
    values = np.random.default_rng(0).normal(size=12)
    rng = np.random.default_rng(1)
    resampled = trim_mean(rng.choice(values, (20_000, 12)), 0.25, axis=1)
    _, low, high = over_seeds(values[None])[:, 0]
    assert [low, high] == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=0.04)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """A percentile bootstrap of twenty values is a little too narrow, as is known: some 92 % instead of 95 %."""
    samples = np.random.default_rng(0).normal(size=(600, 20))
    _, low, high = over_seeds(samples)
    covered = np.mean((low <= 0) & (high >= 0))
    assert 0.90 <= covered <= 0.97


def test_strata_are_resampled_by_themselves():
    """Two tasks whose seeds agree: no interval, though seeds drawn from all of them would vary."""
    easy, hard = np.full(4, 1.0), np.full(4, 0.0)
    assert stratified([easy, hard]) == (0.5, 0.5, 0.5)
    one = stratified([np.array([1.0, 2.0, 3.0, 4.0])])
    assert one == pytest.approx(tuple(over_seeds(np.array([[1.0, 2.0, 3.0, 4.0]]))[:, 0]))
    assert math.isnan(stratified([np.array([math.nan])]).value)


def test_the_final_score_is_the_mean_of_the_last_two_percent():
    steps = range(1000, 101_000, 1000)
    values = [0.0] * 98 + [1.0, 2.0]
    found = final_score([*lines(steps, values), *lines(steps, [5.0] * 100, seed=3)])
    assert found == {0: 1.5, 3: 5.0}
    assert final_score(lines(steps, values), percent=4.0) == {0: 0.75}
    assert final_score(lines(steps, values), percent=100.0) == {0: 0.03}


def test_means_over_episodes_count_by_their_number():
    """One episode that ended soon, by luck, and nine that took their time."""
    pair = [
        {"step": 99, "seed": 0, "success": 1.0, "episodes": 1, "entropy": 1.0},
        {"step": 100, "seed": 0, "success": 0.0, "episodes": 9, "entropy": 2.0},
    ]
    assert final_score(pair, "success") == {0: pytest.approx(0.1)}
    assert final_score(pair, "entropy") == {0: 1.5}


def test_of_several_tasks_it_is_the_mean_over_them():
    """Not of lines, in which a task whose episodes are long may be missing."""

    def line(step: int, **tasks: tuple[float | None, int]):
        known = {name: {"success": of, "episodes": n} for name, (of, n) in tasks.items()}
        return {"step": step, "seed": 0, "success": 0.9, "episodes": 5, "tasks": known}

    both = [line(99, short=(1.0, 8), long=(None, 0)), line(100, short=(0.5, 8), long=(0.25, 2))]
    assert final_score(both, "success") == {0: pytest.approx((0.75 + 0.25) / 2)}
    assert final_score([both[0]], "success") == {0: 1.0}
    assert final_score([line(1) | {"tasks": "edited"}], "success") == {0: 0.9}


def test_with_few_lines_it_is_the_last():
    assert final_score(lines([10, 20, 30], [1.0, 2.0, 7.0])) == {0: 7.0}
    assert final_score([]) == {}


def test_lines_without_the_number_are_left_out():
    steps = range(1, 101)
    assert final_score(lines(steps, [0.0] * 98 + [4.0, None])) == {0: 4.0}
    assert math.isnan(final_score(lines(steps, [1.0] * 98 + [None, None]))[0])
    assert math.isnan(final_score(lines(steps, [1.0] * 100), "success")[0])


def test_what_an_interval_is_called():
    assert "one seed" in interval_words(1)
    assert "range" in interval_words(2)
    assert "bootstrap" in interval_words(3)
