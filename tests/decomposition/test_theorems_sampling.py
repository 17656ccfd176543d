"""Theorems 4 and 5: expected gradients over *every* mini-batch of a small data set, against the exact one.

The data are n fixed pairs, f and g one-layer networks. A batch of b draws with replacement is a vector of counts,
and its probability is multinomial; independent batches may overlap. Biases are relative: |E ĝ - g| / |g|.
"""

from functools import partial
from itertools import combinations, combinations_with_replacement, product
from math import factorial, prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.decomposition.objectives import (
    DeRexObjective,
    NestedObjective,
    diag_loss,
    double_sampled_off_loss,
    off_loss,
    off_value,
)
from derex.decomposition.statistics import Half, batch_normalise, sigma_hat

N, K = 6, 3
X, Y = np.random.default_rng(2).normal(size=(2, N, 4))
THETA = np.random.default_rng(102).normal(size=(2, 4, K))  # the weights of f and of g
EXACT = 1e-14  # relative: 1e-12 is what the theorems are asked for, rounding alone leaves 1e-15


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


# ------------------------------------------------------------------------ batches and expectations


def draws(b):
    """Every outcome of b draws with replacement from the N rows: counts (outcomes, N), and probabilities."""
    rows = combinations_with_replacement(range(N), b)
    counts = np.stack([np.bincount(row, minlength=N) for row in rows]).astype(float)
    ways = [factorial(b) / prod(factorial(int(c)) for c in count) for count in counts]
    return counts, np.array(ways) / N**b


def pairs(b):
    """Every pair of independent outcomes, and probabilities."""
    counts, probabilities = draws(b)
    i, j = (index.ravel() for index in np.indices((len(counts), len(counts))))
    return counts[i], counts[j], probabilities[i] * probabilities[j]


def halves():
    """Every way to cut the data set into two disjoint halves, in both orders: all equally likely."""
    first = np.array([np.isin(range(N), rows) for rows in combinations(range(N), N // 2)], float)
    return first, 1.0 - first, np.full(len(first), 1 / len(first))


def outputs(theta, counts=None):
    return Half(jnp.tanh(X @ theta[0]), jnp.tanh(Y @ theta[1]), counts)


def sigma(theta, counts):
    return sigma_hat(*outputs(theta, counts))


def normalised_sigma(theta, counts):
    f, g, _ = outputs(theta, counts)
    return sigma_hat(batch_normalise(f, counts)[0], batch_normalise(g, counts)[0], counts)


@partial(jax.jit, static_argnums=0)
def gradients(loss, *batches):
    """∂loss/∂θ on each of many batches, or pairs of batches: (batches, 2, 4, K)."""
    return jax.vmap(jax.grad(loss), in_axes=(None,) + (0,) * len(batches))(jnp.asarray(THETA), *batches)


def expectation(values, probabilities):
    return np.tensordot(probabilities, np.asarray(values), axes=1)


def expected_gradients(loss, *kinds):
    """E[∂loss/∂θ] over each of several kinds of batches, all in one call."""
    *batches, probabilities = zip(*kinds, strict=True)
    each = np.asarray(gradients(loss, *map(np.concatenate, batches)))
    parts = np.split(each, np.cumsum([len(p) for p in probabilities])[:-1])
    return [expectation(part, p) for part, p in zip(parts, probabilities, strict=True)]


def bias(expected, exact):
    return np.linalg.norm(expected - exact) / np.linalg.norm(exact)


def off_diagonal(matrix):
    return matrix - np.diag(np.diag(matrix))


# --------------------------------------------------------------- exact gradients, without autodiff


def through_the_networks(push_f, push_g, rows=N):
    """∂L/∂θ from ∂L/∂f and ∂L/∂g at every row: the backward pass of tanh(x W)."""
    f, g = np.tanh(X[:rows] @ THETA[0]), np.tanh(Y[:rows] @ THETA[1])
    return np.stack([X[:rows].T @ (push_f * (1 - f**2)), Y[:rows].T @ (push_g * (1 - g**2))])


def exact_gradient(push, rows=N):
    """∂L(Σ)/∂θ over the whole data set, push = ∂L/∂Σ as a function of Σ = f gᵀ / n."""
    f, g = np.tanh(X[:rows] @ THETA[0]), np.tanh(Y[:rows] @ THETA[1])
    push = push(f.T @ g / rows)
    return through_the_networks(g @ push.T / rows, f @ push / rows, rows)


def diag_push(sigma):
    return np.eye(K) / K


def off_push(sigma):
    return 2 * off_diagonal(sigma) / (K * K - K)


def exact_nested_gradient():
    """Component i: -2 Σ_ii + C_f,ii C_g,ii + 2 Σ_{j<i} C_f,ij C_g,ij, all j < i held fixed."""
    f, g = np.tanh(X @ THETA[0]), np.tanh(Y @ THETA[1])
    f, g = f - f.mean(0), g - g.mean(0)
    push_f = 2 / N * (-g + f @ np.tril(g.T @ g / N).T)
    push_g = 2 / N * (-f + g @ np.tril(f.T @ f / N).T)
    return through_the_networks(push_f, push_g)


# ------------------------------------------------------------------------------------ the losses


def diag(theta, counts):
    return diag_loss(sigma(theta, counts))


def plain_off(theta, counts):
    return off_loss(sigma(theta, counts))


def double_off(theta, first, second):
    return double_sampled_off_loss(sigma(theta, first), sigma(theta, second))


def normalised_double_off(theta, first, second):
    return double_sampled_off_loss(normalised_sigma(theta, first), normalised_sigma(theta, second))


def nested(theta, first, second):
    return NestedObjective()(outputs(theta, first), outputs(theta, second)).loss


# -------------------------------------------------------------------------------------- Theorem 4


def test_probabilities_of_batches():
    """56 outcomes stand for 6³ = 216 ordered batches; they count every row b/n times on average."""
    counts, probabilities = draws(3)
    assert counts.shape == (56, N)
    np.testing.assert_allclose(probabilities.sum(), 1.0, rtol=1e-14)
    np.testing.assert_allclose(probabilities @ counts, np.full(N, 3 / N), rtol=1e-14)


def test_theorem_4_gradient_of_l_diag_is_unbiased():
    (expected,) = expected_gradients(diag, draws(3))
    assert bias(expected, exact_gradient(diag_push)) < EXACT


@pytest.fixture(scope="module")
def plain_errors():
    """E[∂L_off(Σ̂)] - ∂L_off(Σ) for 1, 2 and 3 draws with replacement, and for 3 without."""
    first, _, probabilities = halves()
    with jax.enable_x64(True):
        found = expected_gradients(plain_off, draws(1), draws(2), draws(3), (first, probabilities))
    return [expected - exact_gradient(off_push) for expected in found]


def test_theorem_4_gradient_of_l_off_is_biased(plain_errors):
    """E ∂Σ̂² = ∂Σ² + ∂Var/b: the bias is large, and exactly the one of the proof, b = 1, divided by b."""
    size = np.linalg.norm(exact_gradient(off_push))
    relative = [np.linalg.norm(error) / size for error in plain_errors]
    np.testing.assert_allclose(relative, [2.666, 1.333, 0.889, 0.533], atol=1e-3)
    np.testing.assert_allclose(plain_errors[1], plain_errors[0] / 2, atol=1e-14)
    np.testing.assert_allclose(plain_errors[2], plain_errors[0] / 3, atol=1e-14)


# -------------------------------------------------------------------------------------- Theorem 5


def test_theorem_5_needs_independent_batches(plain_errors):
    """Exact over all 56² pairs of batches of three, which may overlap; wrong over all 20 disjoint halves.

    Then Σ̂ + Σ̂' = 2Σ: the halves' errors are opposite, so that the bias is exactly that of one half, turned
    round. Drawing 3 of 6 without replacement has (6 - 3) / (6 - 1) of the variance of free draws.
    """
    exact = exact_gradient(off_push)
    independent, disjoint = expected_gradients(double_off, pairs(3), halves())
    assert bias(independent, exact) < EXACT
    assert bias(disjoint, exact) == pytest.approx(0.533, abs=1e-3)
    np.testing.assert_allclose(disjoint - exact, -plain_errors[3], atol=1e-14)
    np.testing.assert_allclose(disjoint - exact, -3 / 5 * plain_errors[2], atol=1e-14)


def test_theorem_5_by_brute_force():
    """All 16² pairs of ordered batches, n = 4 and b = 2, through the whole objective and without weights."""
    batches = np.array(list(product(range(4), repeat=2)))
    first, second = (batches[index.ravel()] for index in np.indices((16, 16)))

    def loss(theta, first, second):
        f, g, _ = outputs(theta)
        objective = DeRexObjective(3.0, normalise=False)
        return objective(Half(f[first], g[first]), Half(f[second], g[second])).loss

    expected = np.mean(gradients(loss, first, second), axis=0)
    exact = exact_gradient(lambda sigma: -diag_push(sigma) + 3.0 * off_push(sigma), rows=4)
    assert bias(expected, exact) < EXACT


def test_value_of_l_off_is_unbiased_from_two_halves_and_twice_as_large_in_the_loss():
    counts, probabilities = draws(2)

    @jax.jit
    def values(batches):
        """L_off of every batch, and both estimates of it from every pair of batches."""
        sigmas = jax.vmap(partial(sigma, jnp.asarray(THETA)))(batches)
        in_pairs = [
            jax.vmap(jax.vmap(function, in_axes=(None, 0)), in_axes=(0, None))(sigmas, sigmas)
            for function in (off_value, double_sampled_off_loss)
        ]
        return jax.vmap(off_loss)(sigmas), *in_pairs

    single, value, loss = values(np.concatenate([counts, np.ones((1, N))]))
    exact = float(single[-1])
    assert probabilities @ value[:-1, :-1] @ probabilities == pytest.approx(exact, rel=1e-12)
    assert probabilities @ loss[:-1, :-1] @ probabilities == pytest.approx(2 * exact, rel=1e-12)
    assert probabilities @ single[:-1] > 1.5 * exact


# ------------------------------------------------------------------------------ what the paper leaves out


@jax.jit
def normalised_sigmas(counts):
    """Σ̂ of batch-normalised outputs and ∂Σ̂/∂θ, on each of many batches."""
    functions = normalised_sigma, jax.jacrev(normalised_sigma)
    return [jax.vmap(one, in_axes=(None, 0))(jnp.asarray(THETA), counts) for one in functions]


def off_gradient(value, jacobian):
    """2/(k² - k) Σ_{i≠j} E[∂Σ̂_ij] E[Σ̂_ij]: what independent halves amount to."""
    return 2 / (K * K - K) * np.einsum("ij,ijabc->abc", off_diagonal(value), jacobian)


def test_batch_normalisation_adds_a_bias_that_shrinks_with_the_batch():
    """Theorem 5 holds without it: statistics of b rows make Σ̂ itself a biased estimate of Σ."""
    sizes = (2, 3, 4, 5, 8)
    batches = [draws(b) for b in sizes] + [(np.ones((1, N)), np.ones(1))]  # and the whole data set
    results = normalised_sigmas(np.concatenate([counts for counts, _ in batches]))
    ends = np.cumsum([len(counts) for counts, _ in batches])[:-1]
    split = zip(*(np.split(np.asarray(result), ends) for result in results), strict=True)
    *found, exact = (
        off_gradient(expectation(value, p), expectation(jacobian, p))
        for (value, jacobian), (_, p) in zip(split, batches, strict=True)
    )
    (from_pairs,) = expected_gradients(normalised_double_off, pairs(3))
    np.testing.assert_allclose(from_pairs, found[1], atol=1e-13)
    biases = [bias(gradient, exact) for gradient in found]
    np.testing.assert_allclose(biases[:4], [0.931, 0.553, 0.377, 0.274], atol=1e-3)
    assert np.all(np.diff(biases) < 0)
    assert 0.1 < biases[-1] < 0.2


def test_gradient_of_the_nested_objective_is_unbiased_from_two_batches_and_biased_from_one():
    """Products of covariances, each with Bessel's factor; one batch for both factors correlates them."""
    first, second, weights = pairs(3)
    each = np.asarray(gradients(nested, first, second))
    exact = exact_nested_gradient()
    assert bias(expectation(each, weights), exact) < EXACT
    _, probabilities = draws(3)
    shared = each.reshape(56, 56, *each.shape[1:])[np.arange(56), np.arange(56)]
    assert bias(expectation(shared, probabilities), exact) == pytest.approx(0.164, abs=1e-3)
