"""Policies: every number against enumeration (discrete actions) or scipy (real ones)."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from derex.agents.policy import Categorical, Gaussian, MultiCategorical, Policy, make_policy
from derex.types import NO_ACTION, Box, Discrete, MultiDiscrete

CATEGORICAL, MULTI, GAUSSIAN = Categorical(4), MultiCategorical((2, 3)), Gaussian(2, -1.0, 3.0)
POLICIES = [CATEGORICAL, MULTI, GAUSSIAN]
ALL_ACTIONS = {
    CATEGORICAL: np.arange(4),
    MULTI: np.array(list(product(range(2), range(3)))),
}


@pytest.fixture(params=POLICIES, ids=lambda policy: type(policy).__name__)
def policy(request):
    return request.param


@pytest.fixture(params=list(ALL_ACTIONS), ids=lambda policy: type(policy).__name__)
def discrete(request):
    return request.param


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def random_parameters(policy, *shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(*shape, policy.size)))


def probabilities(policy, parameters):
    """p(a) of every action, by independent softmaxes in NumPy."""
    logits = np.asarray(parameters)
    if isinstance(policy, Categorical):
        return softmax(logits)
    first, second = softmax(logits[:2]), softmax(logits[2:])
    return np.outer(first, second).ravel()  # the order of ALL_ACTIONS


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum()


# --- what all promise


def test_each_is_a_policy(policy: object):
    assert isinstance(policy, Policy)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_any_leading_axes(policy, shape):
    parameters, key = jax.ShapeDtypeStruct((*shape, policy.size), jnp.float32), jax.random.key(0)
    action = jax.eval_shape(policy.sample, parameters, key)
    assert action.shape[: len(shape)] == shape
    assert jax.eval_shape(policy.mode, parameters) == action
    assert jax.eval_shape(policy.log_prob, parameters, action).shape == shape
    assert jax.eval_shape(policy.entropy, parameters).shape == shape
    assert jax.eval_shape(policy.kl, parameters, parameters).shape == (*shape, len(policy.kl_parts))
    encoded = jax.eval_shape(policy.encoded, action)
    assert (encoded.shape, encoded.dtype) == ((*shape, policy.width), jnp.float32)


def test_leading_axes_are_rows_apart(policy):
    old, new = random_parameters(policy, 3), random_parameters(policy, 3, seed=1)
    action = policy.sample(old, jax.random.key(0))
    for row in range(3):
        one, other, done = old[row], new[row], action[row]
        np.testing.assert_allclose(policy.log_prob(old, action)[row], policy.log_prob(one, done))
        np.testing.assert_allclose(policy.entropy(old)[row], policy.entropy(one))
        np.testing.assert_allclose(policy.kl(old, new)[row], policy.kl(one, other))
        np.testing.assert_array_equal(policy.encoded(action)[row], policy.encoded(done))


def test_a_policy_is_a_static_argument(policy):
    @partial(jax.jit, static_argnums=0)
    def entropy(policy, parameters):
        return policy.entropy(parameters)

    parameters = random_parameters(policy, 2)
    np.testing.assert_allclose(entropy(policy, parameters), policy.entropy(parameters))


def test_divergence_from_itself_is_flat_and_zero(policy):
    old = random_parameters(policy, 3)
    assert np.abs(policy.kl(old, old)).max() < 1e-15
    slope = jax.grad(lambda new: policy.kl(old, new).sum())(old)
    assert np.abs(slope).max() < 1e-12
    assert np.all(policy.kl(old, old + random_parameters(policy, 3, seed=2)) > 0)


def test_mean_log_prob_of_samples_is_minus_entropy(policy):
    parameters = jnp.broadcast_to(random_parameters(policy), (40_000, policy.size))
    action = policy.sample(parameters, jax.random.key(3))
    log_prob = np.asarray(policy.log_prob(parameters, action))
    expected = -float(policy.entropy(parameters[0]))
    assert abs(log_prob.mean() - expected) < 4 * log_prob.std() / np.sqrt(len(log_prob))


def test_nothing_is_likelier_than_the_mode(policy):
    parameters = random_parameters(policy)
    action = policy.sample(jnp.broadcast_to(parameters, (500, policy.size)), jax.random.key(4))
    best = policy.log_prob(parameters, policy.mode(parameters))
    assert np.all(policy.log_prob(jnp.broadcast_to(parameters, (500, policy.size)), action) <= best)


def test_the_wrong_number_of_parameters_is_refused(policy):
    with pytest.raises(
        ValueError, match=rf"expected shape \(…, {policy.size}\), got \(3, {policy.size + 1}\)"
    ):
        policy.mode(jnp.zeros((3, policy.size + 1)))


# --- discrete actions, enumerated


def test_discrete_numbers_by_enumeration(discrete):
    old, new = random_parameters(discrete), random_parameters(discrete, seed=1)
    p, q = probabilities(discrete, old), probabilities(discrete, new)
    actions = jnp.asarray(ALL_ACTIONS[discrete])
    rows = jnp.broadcast_to(old, (len(actions), discrete.size))
    np.testing.assert_allclose(discrete.log_prob(rows, actions), np.log(p), rtol=1e-12)
    np.testing.assert_allclose(discrete.entropy(old), stats.entropy(p), rtol=1e-12)
    np.testing.assert_allclose(discrete.kl(old, new), [stats.entropy(p, q)], rtol=1e-12)
    assert stats.entropy(p, q) != pytest.approx(stats.entropy(q, p), rel=0.01)  # the direction is tested
    np.testing.assert_array_equal(discrete.mode(old), ALL_ACTIONS[discrete][p.argmax()])


def test_discrete_samples_have_these_frequencies(discrete):
    parameters, n = random_parameters(discrete), 20_000
    rows = jnp.broadcast_to(parameters, (n, discrete.size))
    drawn = np.asarray(discrete.sample(rows, jax.random.key(0))).reshape(n, -1)
    p = probabilities(discrete, parameters)
    seen = [np.all(drawn == np.atleast_1d(action), axis=1).mean() for action in ALL_ACTIONS[discrete]]
    np.testing.assert_array_less(np.abs(seen - p), 4 * np.sqrt(p * (1 - p) / n))


def test_the_choices_of_a_vector_are_independent_draws():
    policy = MultiCategorical((8, 8))
    drawn = np.asarray(policy.sample(jnp.zeros((2000, 16)), jax.random.key(0)))
    assert abs(np.mean(drawn[:, 0] == drawn[:, 1]) - 1 / 8) < 4 * np.sqrt(7 / 64 / 2000)


def test_extreme_logits_stay_finite():
    old, new = jnp.array([1e4, 0.0, -1e4]), jnp.array([0.0, 1e4, -1e4])
    policy = Categorical(3)
    assert float(policy.entropy(old)) == 0
    np.testing.assert_allclose(policy.kl(old, new), [1e4])
    assert np.all(np.isfinite(jax.grad(lambda new: policy.kl(old, new).sum())(new)))
    assert np.all(np.isfinite(jax.grad(policy.entropy)(old)))


def test_encoded_choices():
    np.testing.assert_array_equal(
        CATEGORICAL.encoded(jnp.array([2, NO_ACTION])), [[0, 0, 1, 0], [0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        MULTI.encoded(jnp.array([[1, 0], [0, 2], [NO_ACTION, NO_ACTION]])),
        [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1], [0, 0, 0, 0, 0]],
    )


# --- Gaussians, by scipy


def test_gaussian_numbers_by_scipy():
    parameters = random_parameters(GAUSSIAN)
    mu, sigma = map(np.asarray, GAUSSIAN.mean_and_scale(parameters))
    action = np.array([0.3, -2.0])
    log_density = stats.norm.logpdf(action, mu, sigma).sum()
    np.testing.assert_allclose(GAUSSIAN.log_prob(parameters, jnp.asarray(action)), log_density)
    np.testing.assert_allclose(GAUSSIAN.entropy(parameters), stats.norm(mu, sigma).entropy().sum())
    np.testing.assert_allclose(GAUSSIAN.mode(parameters), mu)
    drawn = np.asarray(GAUSSIAN.sample(jnp.broadcast_to(parameters, (5000, 4)), jax.random.key(0)))
    for i in range(2):
        assert stats.kstest(drawn[:, i], stats.norm(mu[i], sigma[i]).cdf).pvalue > 1e-3


def test_gaussian_divergence_by_quadrature():
    old, new = random_parameters(GAUSSIAN), random_parameters(GAUSSIAN, seed=1)
    (mu, sigma), (mu_new, sigma_new) = (
        map(np.asarray, GAUSSIAN.mean_and_scale(parameters)) for parameters in (old, new)
    )

    def divergence(p, q):
        lower, upper = p.ppf(1e-16), p.isf(1e-16)
        return integrate.quad(lambda a: p.pdf(a) * (p.logpdf(a) - q.logpdf(a)), lower, upper)[0]

    before = [stats.norm(mu[i], sigma[i]) for i in range(2)]
    mean = sum(divergence(before[i], stats.norm(mu_new[i], sigma[i])) for i in range(2))
    covariance = sum(divergence(before[i], stats.norm(mu[i], sigma_new[i])) for i in range(2))
    np.testing.assert_allclose(GAUSSIAN.kl(old, new), [mean, covariance], rtol=1e-7)


def test_each_part_of_the_divergence_moves_its_own_parameters():
    old, new = random_parameters(GAUSSIAN), random_parameters(GAUSSIAN, seed=1)
    slopes = jax.jacobian(lambda new: GAUSSIAN.kl(old, new))(new)
    assert np.all(slopes[0, :2] != 0)
    assert np.all(slopes[0, 2:] == 0)
    assert np.all(slopes[1, :2] == 0)
    assert np.all(slopes[1, 2:] != 0)


def test_small_divergences_survive_float32():
    old = random_parameters(GAUSSIAN)
    new = old + 1e-3
    exact = GAUSSIAN.kl(old, new)
    assert exact[1] < 2e-6
    single = GAUSSIAN.kl(old.astype(jnp.float32), new.astype(jnp.float32))
    np.testing.assert_allclose(single, exact, rtol=2e-3)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 10.0), (-0.2, 0.6)])
def test_a_gaussian_begins_in_the_middle_of_its_range(low, high):
    mu, sigma = Gaussian(3, low, high).mean_and_scale(jnp.zeros(6))
    np.testing.assert_allclose(mu, np.full(3, (low + high) / 2))
    np.testing.assert_allclose(sigma, np.full(3, 0.5 * (high - low) / 2))


def test_a_scale_has_a_floor():
    policy = Gaussian(1)
    parameters = jnp.array([0.0, -1e3])
    np.testing.assert_allclose(policy.mean_and_scale(parameters)[1], [1e-4])
    assert np.all(np.isfinite(jax.grad(policy.entropy)(parameters)))


def test_an_encoded_vector_is_what_the_environment_does_with_it():
    np.testing.assert_array_equal(GAUSSIAN.encoded(jnp.array([-5.0, 2.0])), [-1.0, 2.0])


# --- which for which


def test_policy_for():
    assert make_policy(Discrete(5)) == Categorical(5)
    assert make_policy(MultiDiscrete((2, 3))) == MultiCategorical((2, 3))
    assert make_policy(Box(2, -0.5, 4.0)) == Gaussian(2, -0.5, 4.0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Categorical(0), "n: expected at least one choice, got 0"),
        (lambda: MultiCategorical(()), "sizes: expected at least one"),
        (lambda: MultiCategorical((2, 0)), "sizes: expected at least one, each at least 1"),
        (lambda: Gaussian(0), "dimensions: expected at least one"),
        (lambda: Gaussian(1, 1.0, 1.0), "expected finite low < high, got 1.0 and 1.0"),
        (lambda: Gaussian(1, 0.0, float("inf")), "expected finite low < high"),
        (lambda: MULTI.log_prob(jnp.zeros(5), jnp.zeros(3, int)), "action: expected 2 numbers each"),
    ],
)
def test_errors(make, says):
    with pytest.raises(ValueError, match=says):
        make()
