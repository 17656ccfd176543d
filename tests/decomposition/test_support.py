"""The share of an input that training does not explain, and what it does to bonuses."""

import sys

import numpy as np
import pytest

from derex.decomposition.bonus import (
    UNSEEN_FLOOR,
    compute_excess,
    compute_unexplained_share,
    fit_support,
    raise_bonus,
)


@pytest.mark.parametrize(("states", "accuracy"), [(30, 0.1), (300, 0.01)])
def test_one_hot_shares_count_visits(states, accuracy):
    """1/(N + 1) visits, up to the centring, which matters less the more states there are."""
    counts = np.random.default_rng(0).integers(0, 20, states).astype(np.float64)
    counts[:2] = 0.0, 1.0
    features = np.eye(states)
    support = fit_support(features[counts > 0], counts[counts > 0])
    share = compute_unexplained_share(features, support)
    np.testing.assert_allclose(share, 1.0 / (counts + 1.0), rtol=accuracy)
    assert share[0] == pytest.approx(1.0, abs=accuracy)


def test_share_by_hand():
    """φᵀ ρ (C + ρ I)⁻¹ φ / ‖φ‖² with all of it written out."""
    rng = np.random.default_rng(1)
    features, counts = rng.normal(size=(7, 3)), rng.integers(1, 5, 7).astype(np.float64)
    fresh = rng.normal(size=(4, 3))
    n = counts.sum()
    mean = counts @ features / n
    centred, phi = features - mean, fresh - mean
    C = (centred.T * counts) @ centred / n
    rho = counts @ np.sum(centred**2, axis=1) / n / n
    wanted = np.einsum("bi,ij,bj->b", phi, rho * np.linalg.inv(C + rho * np.eye(3)), phi) / np.sum(
        phi**2, axis=1
    )
    np.testing.assert_allclose(
        compute_unexplained_share(fresh, fit_support(features, counts)), wanted, rtol=1e-4
    )


def test_rows_may_be_counted_or_repeated():
    rng = np.random.default_rng(2)
    features, counts = rng.normal(size=(6, 4)), np.array([3, 1, 2, 5, 1, 4])
    counted, repeated = (
        fit_support(features, counts * 1.0),
        fit_support(np.repeat(features, counts, axis=0), np.ones(16)),
    )
    fresh = rng.normal(size=(5, 4))
    np.testing.assert_allclose(
        compute_unexplained_share(fresh, counted), compute_unexplained_share(fresh, repeated), rtol=1e-4
    )
    np.testing.assert_allclose(counted.threshold, repeated.threshold, rtol=1e-4)


@pytest.mark.parametrize("counted", [False, True])
def test_the_threshold_is_the_share_of_fresh_visits(counted, monkeypatch):
    """By brute force: leave one visit out of mean and scatter, keeping ρ, and take the quantile over visits."""
    monkeypatch.setattr(sys.modules["derex.decomposition.bonus"], "SHARE_QUANTILE", 0.8)
    rng = np.random.default_rng(3)
    features = rng.normal(size=(12, 5))
    counts = rng.integers(1, 4, 12).astype(np.float64) if counted else np.ones(12)
    n = counts.sum()
    mean = counts @ features / n
    ridge = counts @ np.sum((features - mean) ** 2, axis=1) / n
    shares = []
    for i in range(12):
        left = counts - np.eye(12)[i]
        mean = left @ features / (n - 1)
        phi, centred = features[i] - mean, features - mean
        scatter = (centred.T * left) @ centred
        shares.append(phi @ (ridge * np.linalg.inv(scatter + ridge * np.eye(5))) @ phi / (phi @ phi))
    visits = np.sort(np.repeat(shares, counts.astype(int)))
    wanted = visits[int(np.ceil(0.8 * n)) - 1]
    assert fit_support(features, counts).threshold == pytest.approx(wanted, rel=1e-4)


def test_unseen_is_raised_and_seen_is_left_exactly_alone():
    rng = np.random.default_rng(4)
    basis = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    features = rng.normal(size=(1000, 3)) @ basis[:3]  # training spans three directions of six
    support = fit_support(features, np.ones(1000))
    bonus = rng.uniform(1.0, 2.0, 1000).astype(np.float32)
    raised = raise_bonus(bonus, compute_excess(compute_unexplained_share(features, support), support), 2.0)
    untouched = raised == bonus
    assert 0.98 < untouched.mean() <= 1.0
    assert np.all(raised >= bonus)
    new = compute_excess(compute_unexplained_share(5.0 * basis[3:], support), support)
    np.testing.assert_allclose(new, 1.0, atol=0.05)
    np.testing.assert_allclose(raise_bonus(np.zeros(3, np.float32), new, 2.0), UNSEEN_FLOOR * 2.0, rtol=0.05)


def test_excess_is_continuous_in_the_share():
    support = fit_support(np.random.default_rng(5).normal(size=(200, 4)), np.ones(200))
    threshold = float(support.threshold)
    found = compute_excess(
        np.array([0.0, threshold, 1.001 * threshold, 2 * threshold, 1e9 * threshold], np.float32), support
    )
    np.testing.assert_allclose(found, [0.0, 0.0, 0.001, 0.5, 1.0], atol=1e-5)
    assert np.all(found[:2] == 0.0)


@pytest.mark.parametrize(("n", "size"), [(10, 256), (20, 256), (100, 256), (100, 64), (1000, 64)])
def test_fresh_rows_like_the_training_rows_are_left_alone(n, size):
    """Fewer distinct rows than features: then all fresh rows look alike, and the guard stays out of it."""
    raised = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        support = fit_support(rng.normal(size=(n, size)), np.ones(n))
        share = compute_unexplained_share(rng.normal(size=(200, size)), support)
        raised.append(np.mean(compute_excess(share, support) > 0.01))
    assert np.mean(raised) < 0.05


def test_constant_features_switch_the_guard_off():
    support = fit_support(np.ones((8, 3)), np.ones(8))
    assert np.all(np.isfinite(support.filter))
    assert np.all(compute_excess(compute_unexplained_share(np.ones((2, 3)), support), support) == 0.0)
