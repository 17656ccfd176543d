"""Scores: 1, 1 and 0 for the exact decomposition, known numbers for known mistakes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from derex.decomposition import exact, scores
from derex.envs import FOUR_ROOMS, GridWorld

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**32 - 1)


def random_joint(seed, n, m):
    weights = np.random.default_rng(seed).exponential(size=(n, m)) ** 2
    return weights / weights.sum()


@pytest.fixture(scope="module")
def joint():
    world = GridWorld(FOUR_ROOMS)
    P = exact.policy_transition_matrix(world.transition_tensor())
    return exact.joint_matrix(exact.visitation(P, world.start, 100), P)


def score(joint, f, g, bonus):
    return {
        "captured_energy": scores.captured_energy(joint, f),
        "trace_ratio": scores.trace_ratio(joint, f, g),
        "largest_off_diagonal": scores.largest_off_diagonal(joint, f, g),
        "spearman": scores.bonus_rank_correlation(bonus, joint.sum(axis=1)),
    }


@PROPERTY
@given(SEEDS, st.integers(3, 9), st.integers(3, 9), st.data())
def test_exact_decomposition_scores_one_one_zero(seed, n, m, data):
    joint = random_joint(seed, n, m)
    k = data.draw(st.integers(1, min(n, m) - 1))
    found = exact.decompose(joint, k)
    result = score(joint, found.left, found.right, found.bonus())
    assert result["captured_energy"] == pytest.approx(1.0, abs=1e-9)
    assert result["trace_ratio"] == pytest.approx(1.0, abs=1e-9)
    assert result["largest_off_diagonal"] == pytest.approx(0.0, abs=1e-9)
    sigma = scores.correlation_matrix(joint, found.left, found.right)
    np.testing.assert_allclose(sigma, np.diag(found.singular_values), atol=1e-10)


@PROPERTY
@given(SEEDS, st.integers(4, 9))
def test_captured_energy_depends_on_the_span_alone(seed, n):
    joint = random_joint(seed, n, n)
    rng = np.random.default_rng(seed)
    f = rng.normal(size=(n, 2))
    mixed = f @ np.array([[1.0, 0.3], [-0.4, 2.0]]) + rng.normal(size=2)
    energy = scores.captured_energy(joint, f)
    assert 0.0 <= energy <= 1.0 + 1e-12
    assert scores.captured_energy(joint, mixed) == pytest.approx(energy, rel=1e-9)


def test_captured_energy_of_other_components_by_hand(joint):
    """Components 2 and 4 in place of 1 and 2 capture (σ_2² + σ_4²) / (σ_1² + σ_2²)."""
    found = exact.decompose(joint, 4)
    squares = found.singular_values**2
    expected = (squares[1] + squares[3]) / (squares[0] + squares[1])
    assert scores.captured_energy(joint, found.left[:, [1, 3]]) == pytest.approx(expected, rel=1e-9)


def test_duplicated_modes_show_in_every_score(joint):
    found = exact.decompose(joint, 2)
    f, g = found.left[:, [0, 0]], found.right[:, [0, 0]]
    s1, s2 = found.singular_values
    result = score(joint, f, g, found.bonus())
    assert result["captured_energy"] == pytest.approx(s1**2 / (s1**2 + s2**2), rel=1e-9)
    assert result["trace_ratio"] == pytest.approx(2 * s1 / (s1 + s2), rel=1e-9)
    assert result["largest_off_diagonal"] == pytest.approx(s1, rel=1e-9)


def test_correlation_matrix_is_the_correlation_of_samples():
    """For uniform weights over listed pairs, Σ is the plain correlation matrix of the paired values."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 6, size=(2, 500))
    f, g = rng.normal(size=(2, 6, 3))
    A_n = exact.empirical_joint(x, y, 6, 6)
    expected = np.corrcoef(f[x], g[y], rowvar=False)[:3, 3:]
    np.testing.assert_allclose(scores.correlation_matrix(A_n, f, g), expected, atol=1e-12)


def test_scores_ignore_scale_and_shift(joint):
    found = exact.decompose(joint, 3)
    f = (5.0 * found.left - 2.0).astype(np.float32)
    g = (0.01 * found.right + 1.0).astype(np.float32)
    result = score(joint, f, g, found.bonus())
    assert result["captured_energy"] == pytest.approx(1.0, abs=1e-5)
    assert result["trace_ratio"] == pytest.approx(1.0, abs=1e-4)
    assert result["largest_off_diagonal"] < 1e-3


def test_collapsed_component_counts_for_nothing(joint):
    found = exact.decompose(joint, 2)
    f = found.left.astype(np.float32)
    f[:, 1] = 0.1
    s1, s2 = found.singular_values
    assert scores.captured_energy(joint, f) == pytest.approx(s1**2 / (s1**2 + s2**2), rel=1e-5)
    np.testing.assert_array_equal(scores.correlation_matrix(joint, f, found.right)[1], 0.0)


def test_unvisited_states_are_ignored_whatever_their_values():
    small = random_joint(0, 4, 4)
    large = np.zeros((6, 6))
    large[:4, :4] = small
    rng = np.random.default_rng(1)
    f, g = rng.normal(size=(2, 4, 2))
    bonus = np.linalg.norm(f, axis=1)
    nowhere = np.full((2, 2), np.nan)
    padded = score(
        large, np.vstack([f, nowhere]), np.vstack([g, nowhere]), np.append(bonus, [np.inf, np.nan])
    )
    for name, value in score(small, f, g, bonus).items():
        assert padded[name] == pytest.approx(value, rel=1e-9), name


def test_more_components_than_there_are():
    """k beyond the joint's own: everything can be captured, and the ratio is of all there is."""
    small = random_joint(2, 3, 3)
    f = np.random.default_rng(0).normal(size=(3, 5))
    assert scores.captured_energy(small, f) == pytest.approx(1.0, rel=1e-9)


def test_nothing_to_capture_is_nan():
    independent = np.outer([0.5, 0.5], [0.3, 0.7])
    assert np.isnan(scores.captured_energy(independent, np.array([[1.0], [-1.0]])))


@PROPERTY
@given(SEEDS, st.integers(3, 20))
def test_rank_correlation_is_spearmans(seed, n):
    rng = np.random.default_rng(seed)
    d, bonus = rng.dirichlet(np.ones(n)), rng.normal(size=n)
    expected = stats.spearmanr(bonus, 1 / d).statistic
    assert scores.bonus_rank_correlation(bonus, d) == pytest.approx(expected, abs=1e-12)
    assert scores.bonus_rank_correlation(1 / d, d) == pytest.approx(1.0)
    assert scores.bonus_rank_correlation(-1 / d, d) == pytest.approx(-1.0)


def test_rank_correlation_of_constants_is_nan():
    assert np.isnan(scores.bonus_rank_correlation(np.ones(3), np.array([0.2, 0.3, 0.5])))
    assert np.isnan(scores.bonus_rank_correlation(np.arange(4.0), np.full(4, 0.25)))


def test_auroc_by_hand():
    assert scores.auroc(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 1.0
    assert scores.auroc(np.array([0.0]), np.array([1.0, 2.0])) == 0.0
    assert scores.auroc(np.array([1.0, 1.0]), np.array([1.0])) == 0.5
    assert scores.auroc(np.array([1.0, 3.0]), np.array([1.0, 2.0])) == 0.625
    assert scores.auroc(np.array([np.inf]), np.array([1.0, 2.0])) == 1.0


@PROPERTY
@given(SEEDS, st.integers(1, 12), st.integers(1, 12))
def test_auroc_is_that_of_scikit_learn(seed, a, b):
    rng = np.random.default_rng(seed)
    unseen, seen = rng.integers(0, 5, size=a), rng.integers(0, 5, size=b)
    expected = roc_auc_score([1] * a + [0] * b, [*unseen.tolist(), *seen.tolist()])
    assert scores.auroc(unseen, seen) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda A: scores.captured_energy(A, np.ones((5, 2))), "f_values"),
        (lambda A: scores.captured_energy(A, np.full((104, 2), np.nan)), "f_values: .*NaN"),
        (lambda A: scores.correlation_matrix(A, np.ones((104, 2)), np.ones((104, 3))), "g_values"),
        (lambda A: scores.bonus_rank_correlation(np.full(104, np.nan), A.sum(axis=1)), "bonus: .*NaN"),
        (lambda A: scores.bonus_rank_correlation(np.ones(3), A.sum(axis=1)), "bonus|d"),
        (lambda A: scores.auroc(np.array([]), np.ones(2)), "scores_unseen"),
    ],
)
def test_bad_arguments_are_named(joint, call, message):
    """Shape mistakes surface as TypeError where the arrays' types are checked at run time."""
    with pytest.raises((ValueError, TypeError), match=message):
        call(joint)
