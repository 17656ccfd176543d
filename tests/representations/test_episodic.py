"""What an episode has not shown yet, against the definition, solved step by step.

Shapes: B streams, S steps, k features.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.decomposition.bonus import compute_ritz_bonus
from derex.decomposition.statistics import batch_normalise
from derex.networks.histories import Pairs
from derex.representations.decomposed import DecompositionConfig, compute_episodic_novelty, init_episodes

B, S, K = 4, 12, 5


def by_definition(features, first, ridge):
    """r fᵀ M⁻¹ f / ‖f‖² with M = r I + Σ f fᵀ over the steps of the episode before."""
    r = ridge * features.shape[-1]
    shares = np.ones(first.shape)
    for b in range(len(features)):
        before = []
        for t in range(features.shape[1]):
            before = [] if first[b, t] else before
            f = features[b, t]
            M = r * np.eye(len(f)) + sum((np.outer(z, z) for z in before), np.zeros((len(f), len(f))))
            shares[b, t] = r * f @ np.linalg.solve(M, f) / (f @ f)
            before.append(f)
    return shares


@pytest.fixture(scope="module")
def steps():
    rng = np.random.default_rng(0)
    return rng.normal(size=(B, S, K)), rng.random((B, S)) < 0.25


@pytest.mark.parametrize("ridge", [0.01, 0.1, 1.0])
def test_the_definition(steps, ridge):
    features, first = steps
    kept = init_episodes(B, K)
    found, _ = compute_episodic_novelty(jnp.asarray(features, jnp.float32), jnp.asarray(first), kept, ridge)
    np.testing.assert_allclose(found, by_definition(features, first, ridge), atol=2e-5)


def test_unrolls_go_on_where_the_last_one_ended(steps):
    """The last step of an unroll is step 0 of the next."""
    features, first = (jnp.asarray(part) for part in steps)
    features = features.astype(jnp.float32)
    whole, _ = compute_episodic_novelty(features, first, init_episodes(B, K), 0.1)
    early, kept = compute_episodic_novelty(features[:, :6], first[:, :6], init_episodes(B, K), 0.1)
    late, _ = compute_episodic_novelty(features[:, 5:], first[:, 5:], kept, 0.1)
    np.testing.assert_allclose(early[:, -1], late[:, 0], atol=1e-6)
    np.testing.assert_allclose(jnp.concatenate([early[:, :-1], late], axis=1), whole, atol=1e-6)


def test_what_was_seen_counts_less_and_what_is_orthogonal_in_full():
    f, other = np.eye(K)[0] * 2.0, np.eye(K)[1]
    features = jnp.asarray([[f, f, f, other]], jnp.float32)
    ridge = 0.2  # r = 1
    found, _ = compute_episodic_novelty(features, jnp.zeros((1, 4), bool), init_episodes(1, K), ridge)
    expected = [1.0, 1 / 5, 1 / 9, 1.0]  # 1 / (1 + n ‖f‖² / r)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


def test_a_new_episode_has_shown_nothing(steps):
    features, _ = steps
    first = jnp.ones((B, S), bool)
    found, _ = compute_episodic_novelty(jnp.asarray(features, jnp.float32), first, init_episodes(B, K), 0.1)
    np.testing.assert_allclose(found, 1.0, rtol=1e-5)


def test_the_bonus_is_multiplied(steps):
    """And is untouched where the option is not used: the control."""
    features, first = jnp.asarray(steps[0], jnp.float32), jnp.asarray(steps[1])
    plain, episodic = DecompositionConfig(k=K), DecompositionConfig(k=K, episodic=0.1)
    tracked = plain.track(plain.init_tracked(), Pairs(features, features, jnp.ones((B, S))))
    rare, nothing = plain.compute_bonuses(features, tracked, first, plain.init_episodes(B))
    assert nothing is None
    z, _ = batch_normalise(features.reshape(-1, K))
    C = z.T @ z / len(z)
    expected = compute_ritz_bonus(z, C, C, C, True, plain.sigma_floor).reshape(B, S)
    np.testing.assert_allclose(rare, expected, rtol=1e-3)
    found, kept = episodic.compute_bonuses(features, tracked, first, episodic.init_episodes(B))
    assert kept is not None
    assert kept.shape == (B, K, K)
    assert bool(jnp.all(found <= rare))
    white = np.asarray(features).reshape(-1, K)
    white = (white - white.mean(axis=0)) / white.std(axis=0)
    L = np.linalg.cholesky(white.T @ white / len(white))
    white = np.linalg.solve(L, white.T).T.reshape(features.shape)
    share = by_definition(white, np.asarray(first), 0.1)
    np.testing.assert_allclose(found, rare * share, rtol=2e-3)


@pytest.mark.parametrize("wrong", [-0.1, float("inf"), float("nan")])
def test_a_ridge_is_a_number(wrong):
    with pytest.raises(ValueError, match=r"decomposition\.episodic: expected a finite number"):
        DecompositionConfig(episodic=wrong)


def test_it_stays_a_share_over_long_episodes():
    """Thousands of updates in single precision."""
    key = jax.random.key(0)
    features = jax.random.normal(key, (2, 2000, 16)) * jnp.logspace(-1, 1, 16)
    found, kept = compute_episodic_novelty(features, jnp.zeros((2, 2000), bool), init_episodes(2, 16), 0.1)
    assert bool(jnp.all((found >= 0.0) & (found <= 1.0)))
    assert np.linalg.eigvalsh(np.asarray(kept, np.float64)).min() > -1e-5
    expected = by_definition(np.asarray(features[:1], np.float64), np.zeros((1, 2000), bool), 0.1)
    np.testing.assert_allclose(found[0, -50:], expected[0, -50:], rtol=0.05)
