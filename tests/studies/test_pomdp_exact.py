"""What is known exactly of hidden agents: states and tests by enumeration, clocks, distances."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.decomposition import exact
from derex.envs import FOUR_ROOMS, GridWorld, HiddenAgent, Map
from derex.envs.grid.hidden import Walk
from derex.studies.pomdp_cases import (
    decompose_tests,
    distances,
    exact_spearman,
    share_explained_by_time,
    state_means,
)
from derex.types import NO_ACTION

CORNER = Map("corner", ("S..", ".##"))  # four cells
SQUARE = Map("square", ("S..", "...", "..."))
SMALL = 1e-7  # σ is the root of an eigenvalue that rounding moves by 1e-16


def agent(map, p, slip=0.0, random_start=True):
    return HiddenAgent(GridWorld(map, slip=slip), p, random_start=random_start)


def walked(env, n_envs, horizon, seed=0):
    return env.rollout(jax.random.key(seed), n_envs, horizon)


def every_step(world):
    """Each move from each state, state s for s + 1 times: the empirical joint is exactly D P, with d not uniform."""
    rows = [(s, a) for s, a in product(range(world.n_states), range(4)) for _ in range(s + 1)]
    s, a = np.array(rows, np.int32).T
    state = jnp.asarray(np.stack([s, world.successors[s, a]], axis=1))
    action = jnp.asarray(np.stack([np.full_like(a, NO_ACTION), a], axis=1))
    return Walk(state, jnp.zeros(state.shape, bool), action)


def kernel(left, sigma):
    """Σ_i σ_i² φ_i φ_iᵀ, which does not depend on signs, nor on which functions stand for a tie."""
    return left * sigma**2 @ left.T


# ------------------------------------------------------------------------------------- states and tests


@pytest.mark.parametrize("actions", [False, True])
def test_all_steps_seen_is_the_exact_decomposition(actions):
    env = agent(SQUARE, 0.0)
    walk = every_step(env.world)
    (state, following), action = np.asarray(walk.state).T, np.asarray(walk.previous_action)[:, 1]
    test = action * env.world.n_states + following if actions else following
    known = exact.decompose(exact.empirical_joint(state, test))
    found = decompose_tests(env, walk, 1, actions)
    np.testing.assert_allclose(found.singular_values, known.singular_values, atol=SMALL)
    np.testing.assert_allclose(found.d, known.d, atol=1e-12)
    expected = kernel(known.left, known.singular_values)
    np.testing.assert_allclose(kernel(found.left, found.singular_values), expected, atol=1e-10)


def test_where_nothing_is_hidden_tests_say_what_the_next_state_says():
    """At p = 0 without actions o_{t+1} = s_{t+1} is all that a test of any length says of s_t."""
    env, longest = agent(SQUARE, 0.0, slip=0.2, random_start=False), 3
    walk = walked(env, 2000, 12)
    found = decompose_tests(env, walk, longest, actions=False)
    state = np.asarray(walk.state)
    x, y = state[:, :-longest].ravel(), state[:, 1 : 1 - longest].ravel()
    counted = exact.empirical_joint(x, y, 9, 9)
    # The same next states, each with the posterior of its predecessor: no chance is left in the comparison.
    joint = counted.sum(axis=1)[:, None] * exact.policy_transition_matrix(env.world.transition_tensor())
    joint = joint / joint.sum(axis=0) * counted.sum(axis=0)
    np.testing.assert_allclose(found.singular_values, exact.decompose(joint).singular_values, atol=SMALL)
    # Counts in the place of P: 20 000 steps, some 2000 to a state, so probabilities within 0.01 or so.
    np.testing.assert_allclose(found.singular_values, exact.decompose(counted).singular_values, atol=0.02)


def all_tests(env, longest, actions):
    """The joint of a uniform s_t and every test of 1 ≤ L ≤ `longest` steps, from the definition: Σ over all paths."""
    P, n = env.world.transition_tensor(), env.world.n_states
    seen = np.vstack(
        [(1.0 - env.p) * np.eye(n), np.full((1, n), env.p)]
    )  # O(o|s); the last o hides the agent
    columns = []
    for length in range(1, longest + 1):
        for observations in product(range(n + 1), repeat=length):
            likelihoods = []
            for chosen in product(range(4), repeat=length):
                path = np.eye(n)  # Pr(o_1, …, o_i, s_i | s_0, a_0, …)
                for a, o in zip(chosen, observations, strict=True):
                    path = path @ P[:, a] * seen[o]
                likelihoods.append(path.sum(axis=1) / 4.0**length)
            columns += likelihoods if actions else [sum(likelihoods)]
    return np.stack(columns, axis=1) / (longest * n)


@pytest.mark.parametrize("actions", [False, True])
@pytest.mark.parametrize("p", [0.3, 0.8])
def test_hidden_tests_by_enumeration(p, actions):
    env = agent(
        CORNER, p, slip=0.2
    )  # moves and their opposites are alike: d stays uniform from a uniform start
    known = exact.decompose(all_tests(env, 2, actions))
    found = decompose_tests(env, walked(env, 20_000, 5), 2, actions)
    # 80 000 tests: averages of numbers below 1/d = 4 are within 4/√80 000 = 0.014 of their expectation, mostly closer.
    np.testing.assert_allclose(found.d, known.d, atol=0.005)
    np.testing.assert_allclose(found.singular_values**2, known.singular_values**2, atol=0.015)
    expected = kernel(known.left, known.singular_values)
    np.testing.assert_allclose(kernel(found.left, found.singular_values), expected, atol=0.06)


def test_enumerated_tests_are_told_apart():
    """The check above would notice forgotten actions or lengths: their answers differ by more than its tolerance."""
    env = agent(CORNER, 0.3, slip=0.2)
    spectra = [
        exact.decompose(all_tests(env, longest, actions)).singular_values ** 2
        for longest, actions in [(2, True), (2, False), (1, True)]
    ]
    assert all(np.abs(spectra[0] - other).max() > 0.03 for other in spectra[1:])


@pytest.mark.parametrize("actions", [False, True])
def test_functions_are_standardised_and_correlations_at_most_one(actions):
    env = agent(SQUARE, 0.4)
    found = decompose_tests(env, walked(env, 200, 20), 4, actions)
    assert found.d.sum() == pytest.approx(1.0)
    assert found.singular_values.shape == (8,)
    assert np.all(np.diff(found.singular_values) <= 0.0)
    assert 0.1 < found.singular_values[0] <= 1.0
    several = found.left[:, :6]
    np.testing.assert_allclose(several.T @ found.d, 0.0, atol=1e-10)
    np.testing.assert_allclose(several.T * found.d @ several, np.eye(6), atol=1e-10)


@pytest.mark.parametrize("actions", [False, True])
def test_tests_that_show_nothing_say_nothing(actions):
    env = agent(SQUARE, 1.0, slip=0.1)
    found = decompose_tests(env, walked(env, 50, 10), 3, actions)
    np.testing.assert_allclose(found.singular_values, 0.0, atol=SMALL)


@pytest.mark.parametrize("actions", [False, True])
def test_more_hiding_says_less(actions):
    """The same walks; where a smaller p hides, a larger does too. In expectation this holds for every σ_i."""
    found = [
        decompose_tests(env, walked(env, 1000, 12), 3, actions).singular_values
        for env in (agent(SQUARE, p) for p in (0.0, 0.3, 0.6, 0.9, 1.0))
    ]
    assert np.all(np.diff(found, axis=0) < 0.01)  # an average over 10 000 tests
    assert np.all(np.diff(found, axis=0)[:, 0] < -0.01)


def test_states_never_visited_are_left_out():
    env = agent(SQUARE, 0.0, random_start=False)
    walk = walked(env, 30, 2)
    found = decompose_tests(env, walk, 1)
    visited = np.isin(np.arange(9), np.asarray(walk.state)[:, :2])
    assert 1 < visited.sum() < 9
    np.testing.assert_array_equal(found.d > 0, visited)
    assert found.singular_values.shape == (visited.sum() - 1,)
    assert np.all(found.left[~visited] == 0.0)


def test_tests_must_fit_into_the_walk():
    env = agent(CORNER, 0.5)
    with pytest.raises(ValueError, match="longest: expected less than the 6 steps"):
        decompose_tests(env, walked(env, 3, 5), 6)


# --------------------------------------------------------------------------------------------- the world


def test_a_clock_is_explained_by_time_and_noise_is_not():
    rng = np.random.default_rng(0)
    t = np.arange(60.0)
    clock = np.broadcast_to(np.stack([np.cos(t / 9), t], axis=1), (40, 60, 2))
    noise = rng.normal(size=(40, 60, 2))
    assert share_explained_by_time(clock) == pytest.approx(1.0)
    assert share_explained_by_time(noise) < 0.01  # uncorrected: 1/40
    assert share_explained_by_time(np.concatenate([clock, noise], axis=2)) == pytest.approx(0.5, abs=0.01)
    half = clock / clock.std(axis=(0, 1)) + noise
    assert share_explained_by_time(half) == pytest.approx(0.5, abs=0.03)


def test_the_share_does_not_depend_on_shift_and_scale():
    f = np.random.default_rng(0).normal(size=(10, 20, 3)) + np.linspace(0.0, 3.0, 20)[:, None]
    assert share_explained_by_time(f * [1.0, 50.0, 0.01] + 7.0) == pytest.approx(share_explained_by_time(f))


def test_means_over_the_histories_that_end_in_a_state():
    values, state = np.array([[1.0, 2.0, 3.0], [5.0, 8.0, 10.0]]), np.array([[0, 2, 0], [0, 2, 3]])
    np.testing.assert_array_equal(state_means(values, state, 5), [3.0, np.nan, 5.0, 10.0, np.nan])


def test_distances_are_manhattans():
    found = distances(GridWorld(CORNER))  # cells (0, 0), (0, 1), (0, 2), (1, 0)
    np.testing.assert_array_equal(found, [[0, 1, 2, 1], [1, 0, 1, 2], [2, 1, 0, 3], [1, 2, 3, 0]])
    rooms = distances(GridWorld(FOUR_ROOMS))
    assert rooms.max() == 20.0  # from corner to corner of 11 x 11 cells
    np.testing.assert_array_equal(rooms, rooms.T)


def test_the_exact_bonus_follows_rarity_where_all_functions_are_kept():
    """At full rank ‖f(s)‖² = 1/d - 1; the weights Λ⁻¹ change little where σ are alike or floored."""
    env = agent(SQUARE, 0.0, random_start=False)
    state = np.asarray(walked(env, 200, 6).state)
    assert exact_spearman(state, 9, 8) > 0.8
    assert exact_spearman(state, 9, 2) <= 1.0
