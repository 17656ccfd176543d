"""Our V-MPO against rlax's: the same loss and the same gradients, discrete and Gaussian.

rlax comes with the `oracle` extra (`make test` installs requirements-oracle.lock) and is used in this file only. Where
the two differ on purpose it is said and shown at the end.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.agents.policy import Categorical, Gaussian, MultiCategorical
from derex.agents.vmpo import Duals, vmpo_loss

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its dependencies use deprecated names of jax
    rlax = pytest.importorskip("rlax", reason="the oracle extra is not installed; `make test` does it")
    distrax = pytest.importorskip("distrax")

N = 24
EPSILON_TEMPERATURE = 0.1
EPSILON_KL = {"policy": 0.01, "mean": 0.01, "covariance": 3e-4}


def penalty(alpha, epsilon):
    return rlax.LagrangePenalty(alpha=alpha, epsilon=jnp.asarray(epsilon))


def rlax_loss(log_prob, advantages, kl, duals, epsilon_kl, **options):
    """The mean of rlax's loss of each transition."""
    constraints = [
        (kl[:, p], penalty(alpha * jnp.ones(len(kl)), epsilon))
        for p, (alpha, epsilon) in enumerate(zip(duals.multipliers, epsilon_kl, strict=True))
    ]
    loss, _ = rlax.vmpo_loss(
        sample_log_probs=log_prob,
        advantages=advantages,
        temperature_constraint=penalty(duals.temperature, EPSILON_TEMPERATURE),
        kl_constraints=constraints,
        **options,
    )
    return jnp.mean(loss)


def distrax_categorical(parameters, old, action):
    """log_prob and kl, in distrax's words."""
    new, before = distrax.Categorical(logits=parameters), distrax.Categorical(logits=old)
    return new.log_prob(action), before.kl_divergence(new)[:, None]


def distrax_multi(parameters, old, action):
    parts = [
        distrax_categorical(parameters[:, :2], old[:, :2], action[:, 0]),
        distrax_categorical(parameters[:, 2:], old[:, 2:], action[:, 1]),
    ]
    return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]


def distrax_gaussian(parameters, old, action):
    (mu, sigma), (mu_old, sigma_old) = map(Gaussian(3).mean_and_scale, (parameters, old))
    new, before = (distrax.MultivariateNormalDiag(*pair) for pair in ((mu, sigma), (mu_old, sigma_old)))
    mean = before.kl_divergence(distrax.MultivariateNormalDiag(mu, sigma_old))
    covariance = before.kl_divergence(distrax.MultivariateNormalDiag(mu_old, sigma))
    return new.log_prob(action), jnp.stack([mean, covariance], axis=-1)


CASES = {
    "discrete": (Categorical(5), distrax_categorical),
    "several": (MultiCategorical((2, 3)), distrax_multi),
    "gaussian": (Gaussian(3), distrax_gaussian),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def inputs(policy, seed):
    """New and old parameters, actions of the old policy, advantages and duals."""
    rng = np.random.default_rng(seed)
    old = jnp.asarray(rng.normal(size=(N, policy.size)))
    new = old + jnp.asarray(0.2 * rng.normal(size=(N, policy.size)))
    action = policy.sample(old, jax.random.key(seed))
    advantages = jnp.asarray(rng.normal(size=N))
    duals = Duals(
        jnp.asarray(rng.uniform(0.2, 2.0)), jnp.asarray(rng.uniform(0.5, 5.0, size=len(policy.kl_parts)))
    )
    return new, old, action, advantages, duals


def arguments_of(policy):
    """The loss's own arguments: log_prob, advantages, kl and duals."""
    new, old, action, advantages, duals = inputs(policy, 0)
    return policy.log_prob(new, action), advantages, policy.kl(old, new), duals


def epsilons(policy):
    return jnp.array([EPSILON_KL[part] for part in policy.kl_parts])


def assert_equal(ours, theirs):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-9), ours, theirs)


@pytest.mark.parametrize("fraction", [0.5, 0.25, 1.0])
def test_loss_and_gradients_with_respect_to_parameters_and_duals(case, fraction):
    policy, words = case

    def ours(new, duals, old, action, advantages):
        loss, _ = vmpo_loss(
            policy.log_prob(new, action),
            advantages,
            policy.kl(old, new),
            duals,
            epsilon_temperature=EPSILON_TEMPERATURE,
            epsilon_kl=epsilons(policy),
            top_fraction=fraction,
        )
        return loss

    def theirs(new, duals, old, action, advantages):
        log_prob, kl = words(new, old, action)
        return rlax_loss(log_prob, advantages, kl, duals, epsilons(policy), top_k_fraction=fraction)

    functions = [jax.jit(jax.value_and_grad(function, argnums=(0, 1))) for function in (ours, theirs)]
    for seed in range(3):
        new, old, action, advantages, duals = inputs(policy, seed)
        found, expected = (function(new, duals, old, action, advantages) for function in functions)
        assert_equal(found, expected)
        assert all(np.abs(slope).max() > 1e-3 for slope in jax.tree.leaves(found[1]))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_loss_and_gradients_with_respect_to_log_probabilities_and_divergences(dtype):
    policy = Gaussian(3)
    arguments = jax.tree.map(lambda x: x.astype(dtype), arguments_of(policy))
    bounds = epsilons(policy).astype(dtype)

    def ours(*arguments):
        return vmpo_loss(*arguments, epsilon_temperature=EPSILON_TEMPERATURE, epsilon_kl=bounds)[0]

    def theirs(*arguments):
        return rlax_loss(*arguments, epsilon_kl=bounds)

    both = [jax.jit(jax.value_and_grad(f, argnums=(0, 2, 3)))(*arguments) for f in (ours, theirs)]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), *both)


def test_ties_are_treated_alike():
    policy = Gaussian(3)
    log_prob, advantages, kl, duals = arguments_of(policy)
    advantages = jnp.round(advantages)
    bounds = epsilons(policy)
    loss, terms = vmpo_loss(
        log_prob, advantages, kl, duals, epsilon_temperature=EPSILON_TEMPERATURE, epsilon_kl=bounds
    )
    assert int(terms.selected) > N // 2
    assert_equal(loss, rlax_loss(log_prob, advantages, kl, duals, bounds))


# --- where we differ, on purpose


def test_rlax_lets_the_temperature_loss_move_advantages():
    policy = Gaussian(3)
    log_prob, advantages, kl, duals = arguments_of(policy)
    slope = jax.jit(jax.grad(rlax_loss, argnums=1))(log_prob, advantages, kl, duals, epsilons(policy))
    top = advantages >= jnp.sort(advantages)[N // 2]
    assert_equal(slope, jax.nn.softmax(jnp.where(top, advantages, -jnp.inf) / duals.temperature))  # ψ


def test_rlax_takes_half_of_all_transitions_and_divergences_of_those_masked_too():
    policy = Gaussian(3)
    arguments, bounds = arguments_of(policy), epsilons(policy)
    keep = np.arange(N) % 3 > 0  # two thirds
    weights = jnp.asarray(keep.astype(float))
    duals = arguments[-1]

    def ours(log_prob, kl, duals):
        return vmpo_loss(
            log_prob,
            arguments[1],
            kl,
            duals,
            epsilon_temperature=EPSILON_TEMPERATURE,
            epsilon_kl=bounds,
            weights=weights,
        )[0]

    def theirs(log_prob, kl, duals):
        """Without what is masked, so that nothing is left to mask."""
        return rlax_loss(log_prob[keep], arguments[1][keep], kl[keep], duals, bounds)

    def masked_by_rlax(log_prob, kl, duals):
        return rlax_loss(log_prob, arguments[1], kl, duals, bounds, restarting_weights=weights)

    def evaluate(function):
        return jax.jit(jax.value_and_grad(function, argnums=(0, 1, 2)))(arguments[0], arguments[2], duals)

    assert_equal(evaluate(ours), evaluate(theirs))
    _, (by_log_prob, by_kl, _) = evaluate(masked_by_rlax)
    assert np.count_nonzero(by_log_prob) == N // 2  # of the N * 2 / 3 that count; ours are N / 3
    assert np.all(by_kl[~keep] != 0)


def test_rlax_projects_in_the_loss_where_a_dual_below_the_bound_is_stuck():
    policy = Gaussian(3)
    log_prob, advantages, kl, duals = arguments_of(policy)
    duals = duals._replace(multipliers=jnp.array([-1.0, 2.0]))
    slopes = jax.jit(jax.grad(rlax_loss, argnums=3))(log_prob, advantages, kl, duals, epsilons(policy))
    slope = slopes.multipliers
    assert slope[0] == 0
    np.testing.assert_allclose(slope[1], EPSILON_KL["covariance"] - kl[:, 1].mean())
