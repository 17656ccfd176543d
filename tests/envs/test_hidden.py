"""The hidden agent: walks of the world underneath, pictures with and without the dot, independent hiding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from derex.envs import FOUR_ROOMS, GridWorld, HiddenAgent, Map, frame_table, frames, render
from derex.types import NO_ACTION, Indexed

WORLD = GridWorld(FOUR_ROOMS)


def as_numpy(walk):
    return jax.tree.map(np.asarray, walk)


def test_shapes_and_types():
    env = HiddenAgent(WORLD, 0.3)
    walk = env.rollout(jax.random.key(0), 5, 7)
    assert all(field.shape == (5, 8) for field in walk)
    assert [field.dtype for field in walk] == [jnp.int32, jnp.bool_, jnp.int32]
    assert env.frames.shape == (105, 30, 30, 3)
    assert env.prior.shape == (104,)
    assert repr(env) == f"HiddenAgent({WORLD!r}, p=0.3, size=30, random_start=False)"


def test_table_is_all_frames_and_the_empty_one():
    table = frame_table(WORLD)
    np.testing.assert_array_equal(table[:104], frames(WORLD))
    np.testing.assert_array_equal(table[104], render(WORLD, np.array(7), hidden=np.array(True)))
    with pytest.raises(ValueError, match="read-only"):
        table[0, 0, 0] = 0


@pytest.mark.parametrize("random_start", [False, True])
def test_previous_actions_led_where_the_agent_is(random_start):
    walk = as_numpy(HiddenAgent(WORLD, 0.5, random_start=random_start).rollout(jax.random.key(0), 32, 100))
    assert np.all(walk.previous_action[:, 0] == NO_ACTION)
    led_to = WORLD.successors[walk.state[:, :-1], walk.previous_action[:, 1:]]
    np.testing.assert_array_equal(led_to, walk.state[:, 1:])


def test_slip_and_policy_reach_the_world():
    """'Right' from everywhere: with slip 0.4 the move goes through 70% of the time, where nothing blocks it."""
    world = GridWorld(FOUR_ROOMS, slip=0.4)
    always_right = np.tile([0.0, 1.0, 0.0, 0.0], (104, 1))
    env = HiddenAgent(world, 0.5, random_start=True)
    walk = as_numpy(env.rollout(jax.random.key(0), 20_000, 1, always_right))
    assert np.all(walk.previous_action[:, 1] == 1)
    before, after = walk.state.T
    probability = world.transition_tensor()[before, 1, after]
    assert np.all(probability > 0)
    free = world.successors[before, 1] != before
    went = after[free] == world.successors[before[free], 1]
    assert stats.binomtest(int(went.sum()), len(went), 0.7).pvalue > 1e-4


def test_known_start():
    env = HiddenAgent(GridWorld(FOUR_ROOMS, start=50), 0.5)
    assert np.all(env.rollout(jax.random.key(0), 9, 3).state[:, 0] == 50)
    np.testing.assert_array_equal(env.prior, np.eye(104)[50])


def test_random_start_is_uniform_over_open_states_in_reach():
    """Closing the two doors of the last room puts its 20 cells out of reach, though they are not closed."""
    doors = FOUR_ROOMS.state_ids[[7, 10], [9, 6]]
    env = HiddenAgent(WORLD.close(doors), 0.5, random_start=True)
    possible = (WORLD.rooms != 3) & ~np.isin(np.arange(104), doors)
    assert possible.sum() == 82
    np.testing.assert_allclose(env.prior, possible / 82)
    starts = np.asarray(env.rollout(jax.random.key(0), 8200, 1).state[:, 0])
    counts = np.bincount(starts, minlength=104)
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible]).pvalue > 1e-4


def test_random_start_respects_one_way_doors():
    world = GridWorld(Map.from_text("..>S."))
    np.testing.assert_allclose(HiddenAgent(world, 0.5, random_start=True).prior, [0, 0, 0, 0.5, 0.5])


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_hidden_with_probability_p(p):
    """Binomial test of the total; and neither time, nor the state, nor the step before changes the odds."""
    walk = as_numpy(HiddenAgent(WORLD, p).rollout(jax.random.key(7), 400, 99))
    assert stats.binomtest(int(walk.hidden.sum()), walk.hidden.size, p).pvalue > 1e-4
    before, after = walk.hidden[:, :-1].ravel(), walk.hidden[:, 1:].ravel()
    room = np.where(WORLD.rooms < 0, 4, WORLD.rooms)[walk.state].ravel()
    late = np.broadcast_to(np.arange(100) >= 50, walk.hidden.shape).ravel()
    action = walk.previous_action[:, 1:].ravel()
    for given, hidden in (
        (before, after),
        (room, walk.hidden.ravel()),
        (late, walk.hidden.ravel()),
        (action, after),
    ):
        table = np.zeros((int(given.max()) + 1, 2))
        np.add.at(table, (given.astype(int), hidden.astype(int)), 1)
        assert stats.chi2_contingency(table).pvalue > 1e-4


def test_p_at_its_ends():
    assert not HiddenAgent(WORLD, 0).rollout(jax.random.key(0), 32, 100).hidden.any()
    always = HiddenAgent(WORLD, 1)
    walk = always.rollout(jax.random.key(0), 32, 100)
    assert walk.hidden.all()
    assert np.all(always.trajectories(walk).observation.index == 104)


def test_one_key_one_walk_at_every_p():
    """A larger p hides more of the same walk: studies across p compare like with like."""
    walks = [as_numpy(HiddenAgent(WORLD, p).rollout(jax.random.key(0), 20, 50)) for p in (0.2, 0.2, 0.6)]
    for walk in walks[1:]:
        np.testing.assert_array_equal(walk.state, walks[0].state)
        np.testing.assert_array_equal(walk.previous_action, walks[0].previous_action)
    np.testing.assert_array_equal(walks[0].hidden, walks[1].hidden)
    assert np.all(walks[2].hidden >= walks[0].hidden)
    other = HiddenAgent(WORLD, 0.2).rollout(jax.random.key(1), 20, 50)
    assert np.any(other.state != walks[0].state)
    assert np.any(other.hidden != walks[0].hidden)


@pytest.mark.parametrize("size", [30, 26])
def test_images_are_renderings(size):
    env = HiddenAgent(WORLD, 0.4, size, random_start=True)
    walk = env.rollout(jax.random.key(0), 3, 20)
    expected = render(WORLD, np.asarray(walk.state), size, np.asarray(walk.hidden))
    images = env.images(walk)
    assert images.shape == (3, 21, size, size, 3)
    assert images.dtype == jnp.uint8
    np.testing.assert_array_equal(images, expected)
    observation = env.trajectories(walk).observation
    np.testing.assert_array_equal(observation.values[observation.index], expected)


def test_trajectories_are_one_episode_a_row():
    env = HiddenAgent(WORLD, 0.4)
    walk = env.rollout(jax.random.key(0), 3, 20)
    seen = env.trajectories(walk)
    assert isinstance(seen.observation, Indexed)
    assert seen.shape == (3, 21)
    np.testing.assert_array_equal(seen.observation.values, env.frames)
    np.testing.assert_array_equal(seen.observation.index, np.where(walk.hidden, 104, walk.state))
    np.testing.assert_array_equal(seen.previous_action, walk.previous_action)
    np.testing.assert_array_equal(seen.first, np.tile(np.arange(21) == 0, (3, 1)))
    assert seen.valid.all()
    assert np.all(seen.lengths == 21)


def test_hidden_states_leave_no_trace():
    """Two walks that differ only where the agent is hidden give the same trajectories."""
    env = HiddenAgent(WORLD, 0.5)
    walk = env.rollout(jax.random.key(0), 3, 20)
    other = walk._replace(state=jnp.where(walk.hidden, 0, walk.state))
    assert np.any(other.state != walk.state)
    jax.tree.map(np.testing.assert_array_equal, env.trajectories(walk), env.trajectories(other))
    np.testing.assert_array_equal(env.images(walk), env.images(other))


def test_all_of_it_under_jit():
    env = HiddenAgent(GridWorld(FOUR_ROOMS, slip=0.1), 0.4, random_start=True)

    def everything(key):
        walk = env.rollout(key, 4, 10)
        return walk, env.trajectories(walk), env.images(walk), env.filter(walk)

    plain, jitted = everything(jax.random.key(0)), jax.jit(everything)(jax.random.key(0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), plain, jitted)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"p": 1.5}, r"p: .*\[0, 1\], got 1.5"),
        ({"p": -0.1}, r"p: .*\[0, 1\], got -0.1"),
        ({"p": float("nan")}, r"p: .*\[0, 1\], got nan"),
        ({"p": 0.5, "size": 12}, r"size: .* at least 13 pixels, got 12"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        HiddenAgent(WORLD, **arguments)


@pytest.mark.parametrize(("n_envs", "horizon"), [(0, 5), (5, 0)])
def test_empty_rollouts_are_refused(n_envs, horizon):
    with pytest.raises(ValueError, match="expected at least 1, got 0"):
        HiddenAgent(WORLD, 0.5, random_start=True).rollout(jax.random.key(0), n_envs, horizon)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"world": FOUR_ROOMS}, r"world: expected a GridWorld, got Map. .*GridWorld\(FOUR_ROOMS\)"),
        ({"p": "0.5"}, "p: expected a number, got '0.5' of type str"),
        ({"p": True}, "p: expected a number, got True of type bool"),
        ({"p": None}, "p: expected a number, got None"),
        ({"size": 30.0}, "size: expected an integer, got 30.0 of type float"),
        ({"random_start": "no"}, "random_start: expected True or False, got 'no'"),
    ],
)
def test_other_types_are_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        HiddenAgent(**{"world": WORLD, "p": 0.5, **arguments})


@pytest.mark.parametrize(
    ("n_envs", "horizon", "message"),
    [(2.0, 5, "n_envs: expected an integer, got 2.0"), (2, "5", "horizon: expected an integer, got '5'")],
)
def test_numbers_of_episodes_and_steps_are_integers(n_envs, horizon, message):
    with pytest.raises(TypeError, match=message):
        HiddenAgent(WORLD, 0.5, random_start=True).rollout(jax.random.key(0), n_envs, horizon)
