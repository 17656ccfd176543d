"""The V-MPO loss: numbers by hand, gradients and their absence, masks, duals, and a bandit that it solves."""

import subprocess
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.agents.policy import Categorical
from derex.agents.vmpo import Duals, initial_duals, projected, top_advantages, vmpo_loss

EPSILON: Any = {
    "epsilon_temperature": 0.1,
    "epsilon_kl": jnp.array([2**-7, 2**-9], jnp.float32),
}  # exact in float32


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def duals_at(temperature=0.7):
    return Duals(jnp.asarray(temperature), jnp.array([5.0, 2.0]))


def batch(n=9, seed=0):
    """log_prob, advantages and kl of n transitions."""
    rng = np.random.default_rng(seed)
    return (
        jnp.asarray(-rng.exponential(size=n)),
        jnp.asarray(rng.normal(size=n)),
        jnp.asarray(rng.exponential(0.01, size=(n, 2))),
    )


def loss_only(*arguments, **options):
    return vmpo_loss(*arguments, **EPSILON, **options)[0]


@jax.jit
@partial(jax.value_and_grad, argnums=(0, 2, 3), has_aux=True)
def evaluated(log_prob, advantages, kl, duals, weights):
    """(loss, terms) and the gradients with respect to log_prob, kl and duals."""
    return vmpo_loss(log_prob, advantages, kl, duals, weights=weights, **EPSILON)


# --- values


def test_by_hand():
    # η = 2 and the top half {2 log 3, 0}: exp(A/η) = 3, 1, so ψ = 3/4, 1/4 and log mean exp = log 2.
    advantages = jnp.array([-5.0, 2 * np.log(3.0), 0.0, -1.0])
    log_prob = jnp.array([-9.0, -1.0, -2.0, -7.0])
    kl = jnp.array([[0.1], [0.2], [0.3], [0.4]])
    duals = Duals(jnp.asarray(2.0), jnp.array([3.0]))
    loss, terms = vmpo_loss(
        log_prob, advantages, kl, duals, epsilon_temperature=0.1, epsilon_kl=jnp.array([0.05])
    )
    np.testing.assert_allclose(terms.policy, 0.75 * 1 + 0.25 * 2)
    np.testing.assert_allclose(terms.temperature, 2 * 0.1 + 2 * np.log(2))
    np.testing.assert_allclose(terms.kl, 3 * (0.05 - 0.25) + 3 * 0.25)
    np.testing.assert_allclose(loss, terms.policy + terms.temperature + terms.kl)
    np.testing.assert_allclose(terms.divergence, [0.25])
    np.testing.assert_allclose(terms.relative_entropy, 0.75 * np.log(1.5) + 0.25 * np.log(0.5))
    assert int(terms.selected) == 2


def test_against_the_equations_in_numpy():
    log_prob, A, kl = map(np.asarray, batch(10))
    eta, alpha = 0.7, np.array([5.0, 2.0])
    half = np.argsort(A)[5:]
    psi = np.exp(A[half] / eta) / np.exp(A[half] / eta).sum()
    _, terms = vmpo_loss(*batch(10), duals_at(), **EPSILON)
    np.testing.assert_allclose(terms.policy, -(psi * log_prob[half]).sum())
    np.testing.assert_allclose(terms.temperature, eta * (0.1 + np.log(np.exp(A[half] / eta).mean())))
    np.testing.assert_allclose(
        terms.kl, alpha @ [2**-7, 2**-9]
    )  # α ε - α KL + α KL: KL shows in gradients alone
    np.testing.assert_allclose(terms.divergence, kl.mean(axis=0))
    np.testing.assert_allclose(terms.relative_entropy, (psi * np.log(5 * psi)).sum())


@pytest.mark.parametrize(
    ("n", "fraction", "expected"), [(8, 0.5, 4), (9, 0.5, 4), (1, 0.5, 1), (10, 0.3, 3), (7, 1.0, 7)]
)
def test_how_many_are_selected(n, fraction, expected):
    _, A, _ = batch(n)
    top = np.asarray(top_advantages(A, jnp.ones(n, bool), fraction))
    assert top.sum() == expected
    np.testing.assert_array_equal(np.flatnonzero(top), np.sort(np.argsort(A)[n - expected :]))


def test_ties_at_the_threshold_are_all_in_whatever_the_order():
    A = jnp.array([1.0, 0.0, 0.0, -1.0, 0.0, -2.0])
    counted = jnp.ones(6, bool)
    np.testing.assert_array_equal(top_advantages(A, counted, 0.5), A >= 0)
    assert top_advantages(jnp.zeros(6), counted, 0.5).all()


# --- gradients


def test_gradients_by_differences():
    log_prob, A, kl = batch()
    by_log_prob, by_duals = jax.grad(loss_only, argnums=(0, 3))(log_prob, A, kl, duals_at())
    step = 1e-6
    for i in range(len(log_prob)):
        up, down = (loss_only(log_prob.at[i].add(s), A, kl, duals_at()) for s in (step, -step))
        np.testing.assert_allclose(by_log_prob[i], (up - down) / (2 * step), atol=1e-8)
    up, down = (  # of L_η alone: L_π depends on η through ψ, whose gradient is stopped
        vmpo_loss(log_prob, A, kl, duals_at(0.7 + s), **EPSILON)[1].temperature for s in (step, -step)
    )
    np.testing.assert_allclose(by_duals.temperature, (up - down) / (2 * step), rtol=1e-6)


def test_temperature_is_driven_by_the_relative_entropy():
    slope = jax.grad(loss_only, argnums=3)(*batch(), duals_at()).temperature
    _, terms = vmpo_loss(*batch(), duals_at(), **EPSILON)
    np.testing.assert_allclose(slope, 0.1 - terms.relative_entropy)


def test_multipliers_and_divergences_see_each_other_as_constants():
    by_kl, by_duals = jax.grad(loss_only, argnums=(2, 3))(*batch(), duals_at())
    kl = np.asarray(batch()[2])
    np.testing.assert_allclose(by_duals.multipliers, np.array([2**-7, 2**-9]) - kl.mean(axis=0))
    np.testing.assert_allclose(by_kl, np.broadcast_to(np.array([5.0, 2.0]) / 9, (9, 2)))


def test_no_gradient_into_advantages():
    np.testing.assert_array_equal(jax.grad(loss_only, argnums=1)(*batch(), duals_at()), np.zeros(9))


def test_psi_is_not_differentiated():
    def policy_term(temperature):
        return vmpo_loss(*batch(), duals_at(temperature), **EPSILON)[1].policy

    assert float(policy_term(0.5)) != pytest.approx(float(policy_term(1.0)), rel=0.01)
    assert float(jax.grad(policy_term)(0.7)) == 0
    slope = jax.grad(loss_only)(*batch(), duals_at())
    np.testing.assert_allclose(-slope.sum(), 1.0)  # ψ sums to 1
    assert np.count_nonzero(slope) == 4


# --- masks


@pytest.mark.parametrize("kind", [bool, float])
@pytest.mark.parametrize("garbage", [1e6, -1e6, np.nan, np.inf])
def test_a_masked_batch_is_the_compacted_batch(kind, garbage):
    log_prob, A, kl = batch(11)
    keep = np.array([1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1], bool)
    compact = log_prob[keep], A[keep], kl[keep]
    dirty = tuple(
        jnp.where(jnp.asarray(keep.reshape(-1, *[1] * (x.ndim - 1))), x, garbage) for x in (log_prob, A, kl)
    )
    (loss, terms), slopes = evaluated(*compact, duals_at(), None)
    weights = jnp.asarray(keep.astype(kind))
    (masked_loss, masked_terms), masked_slopes = evaluated(*dirty, duals_at(), weights)
    np.testing.assert_allclose(masked_loss, loss, rtol=1e-12)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), masked_terms, terms)
    for masked_slope, slope in zip(masked_slopes[:2], slopes[:2], strict=True):
        np.testing.assert_allclose(masked_slope[keep], slope, rtol=1e-12)
        assert np.all(masked_slope[~keep] == 0)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), masked_slopes[2], slopes[2])


def test_one_compilation_for_every_mask():
    traces = []

    @jax.jit
    def loss(weights):
        traces.append(1)
        return vmpo_loss(*batch(), duals_at(), weights=weights, **EPSILON)[1].selected

    assert [int(loss(jnp.arange(9) < n)) for n in (9, 5, 1)] == [4, 2, 1]
    assert len(traces) == 1


def test_nothing_counted_is_no_loss_and_no_gradient():
    function = partial(loss_only, weights=jnp.zeros(9))
    loss, slopes = jax.value_and_grad(function, argnums=(0, 1, 2, 3))(*batch(), duals_at())
    assert float(loss) == 0
    assert all(np.all(np.asarray(slope) == 0) for slope in jax.tree.leaves(slopes))


# --- numbers at the edge


@pytest.mark.parametrize("temperature", [1e-8, 1e-3, 1e6])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_float32_is_enough(temperature, size):
    log_prob, A, kl = (x.astype(jnp.float32) for x in batch())
    duals = Duals(jnp.asarray(temperature, jnp.float32), jnp.array([5.0, 2.0], jnp.float32))
    single = log_prob, size * A, kl, duals
    (loss, _), slopes = evaluated(*single, None)
    (expected, _), expected_slopes = evaluated(*jax.tree.map(lambda x: x.astype(jnp.float64), single), None)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), slopes, expected_slopes)


def test_advantages_may_be_shifted():
    log_prob, A, kl = batch()
    _, terms = vmpo_loss(log_prob, A, kl, duals_at(), **EPSILON)
    _, shifted = vmpo_loss(log_prob, A + 100, kl, duals_at(), **EPSILON)
    np.testing.assert_allclose(shifted.policy, terms.policy)
    np.testing.assert_allclose(shifted.temperature, terms.temperature + 100)


# --- duals


def test_initial_duals():
    duals = initial_duals(2)
    assert float(duals.temperature) == 1
    np.testing.assert_array_equal(duals.multipliers, [5, 5])
    assert initial_duals(1, 0.5, 0.1).multipliers.shape == (1,)


def test_projected():
    duals = projected(Duals(jnp.asarray(-3.0), jnp.array([2.0, -1e-12])))
    np.testing.assert_allclose(duals.temperature, 1e-8)
    np.testing.assert_allclose(duals.multipliers, [2.0, 1e-8])
    np.testing.assert_allclose(projected(duals, smallest=0.1).multipliers, [2.0, 0.1])


def test_a_projected_dual_comes_back():
    """At the bound the gradient is the true one: too concentrated a ψ raises η again."""
    duals = projected(duals_at(-1.0))
    assert float(jax.grad(loss_only, argnums=3)(*batch(), duals).temperature) < 0


@pytest.mark.parametrize("fraction", [0.0, 1.5])
def test_fractions_that_are_none(fraction):
    with pytest.raises(ValueError, match=r"top_fraction: expected a number in \(0, 1\]"):
        vmpo_loss(*batch(), duals_at(), top_fraction=fraction, **EPSILON)


def test_one_multiplier_for_each_part():
    with pytest.raises(ValueError, match="kl: expected 1 parts, one for each multiplier, got 2"):
        vmpo_loss(*batch(), initial_duals(1), epsilon_temperature=0.1, epsilon_kl=0.01)


# --- together


def test_a_bandit_is_solved_within_its_bounds():
    policy, rewards, epsilon_kl = Categorical(3), jnp.array([0.0, 1.0, 0.5]), 0.01

    def loss(trained, target, action):
        logits, duals = trained
        rows = jnp.broadcast_to(logits, (256, 3))
        A = rewards[action] - jax.nn.softmax(target) @ rewards
        kl = policy.kl(jnp.broadcast_to(target, (256, 3)), rows)
        return vmpo_loss(
            policy.log_prob(rows, action), A, kl, duals, epsilon_temperature=0.1, epsilon_kl=epsilon_kl
        )

    @jax.jit
    def improve(trained, key):
        """One target policy and ten steps of gradient descent on its actions."""
        target = trained[0]
        action = policy.sample(jnp.broadcast_to(target, (256, 3)), key)

        def step(trained, _):
            slopes, terms = jax.grad(loss, has_aux=True)(trained, target, action)
            logits, duals = jax.tree.map(lambda x, slope: x - 0.1 * slope, trained, slopes)
            return (logits, projected(duals)), terms.divergence[0]

        return jax.lax.scan(step, trained, length=10)

    trained, divergences = (jnp.zeros(3), initial_duals(1)), []
    for key in jax.random.split(jax.random.key(0), 150):
        trained, divergence = improve(trained, key)
        divergences.append(float(divergence[-1]))
    assert float(jax.nn.softmax(trained[0])[1]) > 0.9
    assert max(divergences) < 5 * epsilon_kl


SHARDED = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from derex.agents.vmpo import initial_duals, vmpo_loss

def loss(log_prob, advantages, kl, weights, duals):
    return vmpo_loss(
        log_prob, advantages, kl, duals, epsilon_temperature=0.1, epsilon_kl=0.01, weights=weights, top_fraction=0.5
    )

function = jax.jit(jax.value_and_grad(loss, argnums=(0, 2, 4), has_aux=True))
advantages = np.arange(8, dtype=np.float32)  # all of the top half lives on the second device
kl = np.linspace(0, 1, 16, dtype=np.float32).reshape(8, 2)
arrays = -np.sqrt(1 + advantages), advantages, kl, np.arange(8) != 3
duals = initial_duals(2)
expected = function(*arrays, duals)
assert int(expected[0][1].selected) == 3
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    split = [jax.device_put(array, NamedSharding(mesh, PartitionSpec("data"))) for array in arrays]
    assert all(len(array.sharding.device_set) == 2 for array in split)
    everywhere = jax.device_put(duals, NamedSharding(mesh, PartitionSpec()))
    found = function(*split, everywhere)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, expected)
"""


def test_the_top_half_is_of_the_global_batch():
    answer = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
