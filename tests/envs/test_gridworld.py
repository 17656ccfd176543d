"""Grid worlds: the sampler and the exact tensor describe the same process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from derex.envs import FOUR_ROOMS, GridWorld, Map

ONE_WAY = Map.from_text(
    """
    ######
    #..>.#
    #.##.#
    #..<.#
    ######
    """,
    name="loop with two one-way doors",
)


def random_policy(world, seed):
    return np.random.default_rng(seed).dirichlet(np.ones(4), size=world.n_states)


def test_four_rooms_numbers():
    world = GridWorld(FOUR_ROOMS)
    assert (world.n_states, world.n_actions, world.start) == (104, 4, 0)
    assert world.inside_shape == (11, 11)
    assert world.successors.dtype == np.int32


@pytest.mark.parametrize("slip", [0.0, 0.3, 1.0])
def test_transition_tensor_is_stochastic(slip):
    P = GridWorld(FOUR_ROOMS, slip=slip).transition_tensor()
    assert P.shape == (104, 4, 104)
    np.testing.assert_allclose(P.sum(axis=2), 1.0, atol=1e-12)


def test_slip_by_hand():
    """In the corner of an open square, 'right' moves right unless it slips; two of four moves stay."""
    P = GridWorld(Map.from_text("..\n.."), slip=0.4).transition_tensor()
    np.testing.assert_allclose(P[0, 1], [0.2, 0.7, 0.1, 0.0], atol=1e-12)


def test_full_slip_makes_all_actions_equal():
    P = GridWorld(FOUR_ROOMS, slip=1).transition_tensor()
    np.testing.assert_allclose(P, np.broadcast_to(P[:, :1], P.shape), atol=1e-12)


@pytest.mark.parametrize("slip", [0.0, 0.25])
@pytest.mark.parametrize("map", [FOUR_ROOMS, ONE_WAY], ids=lambda map: map.name)
def test_rollout_frequencies_match_the_tensor(map, slip):
    """Chi-squared test of the counts of (s, a, s') against π(a|s) P(s'|s, a); impossible ones never occur."""
    world = GridWorld(map, slip=slip)
    policy, repeats = random_policy(world, 1), 1000
    starts = np.repeat(np.arange(world.n_states), repeats)
    states, actions = world.rollout(jax.random.key(0), len(starts), 1, policy, starts=starts)
    counts = np.zeros((world.n_states, 4, world.n_states))
    np.add.at(counts, (np.asarray(states[:, 0]), np.asarray(actions[:, 0]), np.asarray(states[:, 1])), 1)
    expected = repeats * policy[:, :, None] * world.transition_tensor()
    assert np.all(counts[expected == 0] == 0)
    used = expected > 5
    statistic = np.sum((counts - expected)[used] ** 2 / expected[used])
    assert stats.chi2.sf(statistic, df=used.sum() - world.n_states) > 1e-4


def test_uniform_policy_is_the_default():
    world = GridWorld(FOUR_ROOMS)
    _, actions = world.rollout(jax.random.key(3), 1000, 40)
    counts = np.bincount(np.asarray(actions).ravel(), minlength=4)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_successive_actions_are_independent():
    """A reused PRNG key would repeat the actions from step to step, or across environments."""
    _, actions = GridWorld(FOUR_ROOMS).rollout(jax.random.key(4), 2000, 20)
    actions = np.asarray(actions)
    table = np.zeros((4, 4))
    np.add.at(table, (actions[:, :-1].ravel(), actions[:, 1:].ravel()), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-4
    np.testing.assert_allclose(actions.mean(axis=0), 1.5, atol=0.15)


def test_rollout_follows_the_map_without_slip():
    world = GridWorld(ONE_WAY)
    states, actions = world.rollout(jax.random.key(0), 16, 50)
    assert states.shape == (16, 51)
    assert actions.shape == (16, 50)
    assert states.dtype == actions.dtype == jnp.int32
    assert np.all(states[:, 0] == world.start)
    np.testing.assert_array_equal(states[:, 1:], world.successors[states[:, :-1], actions])


def test_same_key_same_rollout_other_key_other_rollout():
    world = GridWorld(FOUR_ROOMS, slip=0.1)
    first, again, other = (world.rollout(jax.random.key(seed), 8, 30)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_deterministic_policy_is_followed():
    world = GridWorld(FOUR_ROOMS)
    always_right = np.tile([0.0, 1.0, 0.0, 0.0], (104, 1))
    states, actions = world.rollout(jax.random.key(0), 2, 6, always_right)
    assert np.all(actions == 1)
    np.testing.assert_array_equal(states[0], [0, 1, 2, 3, 4, 4, 4])


@pytest.mark.parametrize("n", [100, 333])
def test_sample_transitions_gives_exactly_n_within_episodes(n):
    world = GridWorld(FOUR_ROOMS)
    sample = world.sample_transitions(jax.random.key(0), n, horizon=100)
    assert all(column.shape == (n,) and column.dtype == jnp.int32 for column in sample)
    np.testing.assert_array_equal(sample.next_state, world.successors[sample.state, sample.action])


def test_sample_transitions_are_episodes_in_order():
    world = GridWorld(FOUR_ROOMS)
    sample = world.sample_transitions(jax.random.key(0), 500, horizon=100)
    state, next_state = (np.asarray(x).reshape(5, 100) for x in (sample.state, sample.next_state))
    assert np.all(state[:, 0] == world.start)
    np.testing.assert_array_equal(state[:, 1:], next_state[:, :-1])


def test_dropped_surplus_does_not_favour_early_steps():
    """Half an episode's worth of samples comes from its whole length, not from its first half."""
    corridor = GridWorld(Map.from_text("." * 41))
    always_right = np.tile([0.0, 1.0, 0.0, 0.0], (41, 1))
    states = [
        np.asarray(corridor.sample_transitions(jax.random.key(seed), 20, 40, always_right).state)
        for seed in range(30)
    ]
    assert abs(np.mean(states) - 19.5) < 1.5


def test_closed_states_keep_their_ids_and_are_never_entered():
    world = GridWorld(FOUR_ROOMS)
    closed = world.close(world.rooms == 3)
    assert closed.n_states == world.n_states
    P = closed.transition_tensor()
    assert P[~closed.closed][:, :, closed.closed].sum() == 0
    assert np.array_equal(closed.close(world.rooms == 2).closed, np.isin(world.rooms, (2, 3)))
    states, _ = closed.rollout(jax.random.key(0), 64, 500)
    assert not np.any(closed.closed[np.asarray(states)])
    assert len(np.unique(states)) == 104 - 20


def test_coordinates_span_the_square():
    world = GridWorld(FOUR_ROOMS)
    coordinates = world.coordinates(np.arange(104))
    assert coordinates.dtype == np.float32
    np.testing.assert_allclose(coordinates[0], [-1, -1])
    np.testing.assert_allclose(coordinates[-1], [1, 1])
    np.testing.assert_allclose(coordinates[FOUR_ROOMS.state_ids[6, 2]], [0, -0.8], atol=1e-6)
    np.testing.assert_allclose(GridWorld(Map.from_text("...")).coordinates(np.arange(3))[:, 0], 0.0)


def test_one_hot_has_121_dimensions_in_four_rooms():
    world = GridWorld(FOUR_ROOMS)
    encoded = world.one_hot(np.arange(104))
    assert encoded.shape == (104, 121)
    assert encoded.dtype == np.float32
    np.testing.assert_array_equal(encoded @ encoded.T, np.eye(104))
    np.testing.assert_array_equal(np.argmax(encoded, axis=1), world.inside_index)
    assert world.inside_index[world.map.state_ids[2, 1]] == 11


def test_features_agree_under_jit():
    world = GridWorld(FOUR_ROOMS)
    states = np.array([[3, 50], [103, 0]])
    for feature in (world.one_hot, world.coordinates):
        np.testing.assert_array_equal(jax.jit(feature)(jnp.asarray(states)), feature(states))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slip": 1.5}, r"slip: .*\[0, 1\], got 1.5"),
        ({"start": 104}, r"start: .*\[0, 103\], got 104"),
        ({"closed": np.zeros(5, dtype=bool)}, r"closed: .*\(104,\), got \(5,\)"),
        ({"closed": np.ones(104, dtype=bool)}, "start state 0 cannot be closed"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        GridWorld(FOUR_ROOMS, **arguments)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (np.full((104, 4), 0.5), "policy: every row .* sum to one"),
        (np.full((10, 4), 0.25), r"policy: expected shape \(104, 4\)"),
        (np.tile([1.5, -0.5, 0.0, 0.0], (104, 1)), "non-negative"),
    ],
)
def test_bad_policies_are_named(policy, message):
    with pytest.raises(ValueError, match=message):
        GridWorld(FOUR_ROOMS).rollout(jax.random.key(0), 2, 2, policy)


@pytest.mark.parametrize("arguments", [{"n": 0}, {"n": 5, "horizon": 0}])
def test_empty_samples_are_refused(arguments):
    with pytest.raises(ValueError, match="expected at least 1, got 0"):
        GridWorld(FOUR_ROOMS).sample_transitions(jax.random.key(0), **arguments)
