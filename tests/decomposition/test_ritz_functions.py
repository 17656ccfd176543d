"""Singular functions within a span: against LAPACK, the Laplacian's eigenfunctions, the bootstrap and fresh rows."""

import numpy as np
import pytest

from derex.decomposition import exact
from derex.decomposition.ritz import (
    add_moments,
    bonus_weights,
    choose_ridge,
    choose_signs,
    compute_feature_moments,
    compute_sampling_errors,
    evaluate_ritz,
    solve_ritz,
)

STATES, K = 20, 5


@pytest.fixture(scope="module")
def counts():
    """Transitions between the states of a random chain, counted."""
    rng = np.random.default_rng(0)
    joint = rng.dirichlet(np.ones(STATES))[:, None] * rng.dirichlet(np.full(STATES, 0.3), STATES)
    return rng.multinomial(50_000, joint.ravel()).reshape(STATES, STATES)


@pytest.fixture(scope="module")
def pairs(counts):
    """The distinct pairs, how often each occurred, and features that span all functions of the states."""
    x, y = np.nonzero(counts)
    rng = np.random.default_rng(1)
    return x, y, counts[x, y], rng.normal(size=(STATES, STATES)), rng.normal(size=(STATES, STATES))


def test_of_a_complete_span_it_is_the_decomposition_of_lapack(counts, pairs):
    x, y, visits, phi, psi = pairs
    truth = exact.decompose(counts / counts.sum(), K)
    learnt = solve_ritz(compute_feature_moments(phi[x], psi[y], visits), K, ridge=0.0)
    np.testing.assert_allclose(learnt.singular_values, truth.singular_values, atol=1e-9)
    f, g = (phi - learnt.mean_f) @ learnt.f, (psi - learnt.mean_g) @ learnt.g
    signs = np.sign(np.sum(f * truth.left * truth.d[:, None], axis=0))
    np.testing.assert_allclose(f * signs, truth.left, atol=1e-6)
    np.testing.assert_allclose(g * signs, truth.right, atol=1e-6)


def test_a_mixture_of_the_features_changes_nothing(pairs):
    x, y, visits, phi, psi = pairs
    rng = np.random.default_rng(2)
    narrow = phi[:, :8], psi[:, :8]
    mixed = [features @ rng.normal(size=(8, 8)) + rng.normal(size=8) for features in narrow]
    first, second = (
        solve_ritz(compute_feature_moments(a[x], b[y], visits), K, ridge=0.0) for a, b in (narrow, mixed)
    )
    np.testing.assert_allclose(first.singular_values, second.singular_values, atol=1e-9)
    f, other = (narrow[0] - first.mean_f) @ first.f, (mixed[0] - second.mean_f) @ second.f
    np.testing.assert_allclose(f * choose_signs(f), other * choose_signs(other), atol=1e-6)


def test_moments_of_parts_add_up(pairs):
    x, y, visits, phi, psi = pairs
    whole = compute_feature_moments(phi[x], psi[y], visits)
    parts = [compute_feature_moments(phi[x[i::3]], psi[y[i::3]], visits[i::3]) for i in range(3)]
    for a, b in zip(whole, add_moments(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-6)
    once = compute_feature_moments(np.repeat(phi[x], visits, axis=0), np.repeat(psi[y], visits, axis=0))
    np.testing.assert_allclose(once.fg, whole.fg, rtol=1e-9, atol=1e-6)


def test_the_energy_is_the_sum_of_squares_of_the_exact_functions_and_falls_for_others(pairs):
    x, y, visits, phi, psi = pairs
    moments = compute_feature_moments(phi[x], psi[y], visits)
    learnt = solve_ritz(moments, K, ridge=0.0)
    correlation, energy = evaluate_ritz(learnt, moments)
    np.testing.assert_allclose(correlation, learnt.singular_values, atol=1e-9)
    np.testing.assert_allclose(energy, np.cumsum(learnt.singular_values**2), atol=1e-8)
    wrong = learnt._replace(singular_values=np.minimum(learnt.singular_values + 0.3, 1.0))
    assert evaluate_ritz(wrong, moments)[1][-1] < energy[-1]


def test_chance_correlations_are_not_confirmed_by_the_other_half():
    rng = np.random.default_rng(4)
    signal = rng.normal(size=400)
    f, g = (np.c_[signal + rng.normal(size=400), rng.normal(size=(400, 80))] for _ in "fg")
    halves = [compute_feature_moments(f[rows], g[rows]) for rows in (slice(0, 200), slice(200, 400))]
    alone = solve_ritz(halves[0], 3)
    assert alone.singular_values[-1] > 0.9  # 81 features of 200 rows
    ridge, _, confirmed = choose_ridge(halves, 3)
    assert ridge == max(1e-8, ridge)
    assert np.all(np.abs(confirmed[1:]) < 0.3)


def test_sampling_errors_are_those_of_repeated_samples(counts):
    joint = counts / counts.sum()
    truth = exact.decompose(joint, K)
    rng, repeats = np.random.default_rng(5), []
    for _ in range(200):
        again = rng.multinomial(counts.sum(), joint.ravel()).reshape(joint.shape)
        repeats.append(exact.decompose(again / again.sum(), K).singular_values)
    x, y = np.nonzero(counts)
    errors = compute_sampling_errors(truth.left[x], truth.right[y], truth.singular_values, counts[x, y])
    np.testing.assert_allclose(errors, np.std(repeats, axis=0), rtol=0.35)


def test_signs_agree_between_noisy_copies_of_symmetric_functions():
    t = np.linspace(-1.0, 1.0, 101)
    values = np.stack([t, t**3, np.sin(np.pi * t), t**2 - 0.3], axis=1)
    rng = np.random.default_rng(6)
    for _ in range(50):
        noisy = (values + 0.01 * rng.normal(size=values.shape)) * rng.choice([-1.0, 1.0], 4)
        signed = noisy * choose_signs(noisy)
        np.testing.assert_allclose(signed, values * choose_signs(values), atol=0.1)


def test_a_span_of_fewer_dimensions_is_filled_with_zeros(pairs):
    x, y, visits, phi, psi = pairs
    learnt = solve_ritz(compute_feature_moments(phi[x][:, :2], psi[y][:, :3], visits), K)
    assert learnt.f.shape == (2, K)
    assert np.all(learnt.singular_values[2:] == 0.0)
    assert np.all(np.isfinite(learnt.f))


def test_what_is_not_learnt_weighs_nothing():
    weights = bonus_weights(np.array([0.9, 0.5, 0.01, 0.0]), np.array([True, True, True, False]), 0.05)
    np.testing.assert_allclose(weights, [1 / 0.9, 2.0, 20.0, 0.0])
    np.testing.assert_allclose(bonus_weights(np.zeros(1), np.ones(1, bool), 0.0), 0.0)
