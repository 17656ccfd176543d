"""Trajectories: whole episodes become padded rows, and rows are what they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.types import NO_ACTION, Indexed, Trajectories

LENGTHS = (3, 1, 5)  # steps of the episodes, each with one more observation


def episodes(seed=0):
    """Observations that are never 0, so that padding can be told from them."""
    rng = np.random.default_rng(seed)
    observations = [rng.integers(1, 255, (length + 1, 2, 2), dtype=np.uint8) for length in LENGTHS]
    return observations, [rng.integers(0, 4, length) for length in LENGTHS]


def test_by_hand():
    made = Trajectories.from_episodes([np.array([7, 8, 9]), np.array([5, 6])], [[2, 0], [3]])
    np.testing.assert_array_equal(made.observation[0], [7, 8, 9])
    np.testing.assert_array_equal(made.observation[1, :2], [5, 6])
    np.testing.assert_array_equal(made.previous_action[0], [NO_ACTION, 2, 0])
    np.testing.assert_array_equal(made.previous_action[1, :2], [NO_ACTION, 3])
    np.testing.assert_array_equal(made.first, [[True, False, False]] * 2)
    np.testing.assert_array_equal(made.valid, [[True] * 3, [True, True, False]])


def test_episodes_of_unequal_lengths_are_padded_at_the_end():
    observations, actions = episodes()
    made = Trajectories.from_episodes(observations, actions)
    assert made.shape == (3, 6)
    assert made.observation.shape == (3, 6, 2, 2)
    assert (made.observation.dtype, made.previous_action.dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(made.lengths, np.array(LENGTHS) + 1)
    np.testing.assert_array_equal(made.valid, (made.observation != 0).all(axis=(2, 3)))
    for row, (seen, done) in enumerate(zip(observations, actions, strict=True)):
        np.testing.assert_array_equal(made.observation[row, : len(seen)], seen)
        assert made.previous_action[row, 0] == NO_ACTION
        np.testing.assert_array_equal(made.previous_action[row, 1 : len(seen)], done)


def test_observations_may_be_pytrees():
    observations, actions = episodes()
    speed = [np.arange(len(seen), dtype=np.float32) for seen in observations]
    dicts = [{"image": seen, "more": (moved,)} for seen, moved in zip(observations, speed, strict=True)]
    made = Trajectories.from_episodes(dicts, actions)
    plain = Trajectories.from_episodes(observations, actions)
    assert jax.tree.structure(made.observation) == jax.tree.structure(dicts[0])
    np.testing.assert_array_equal(made.observation["image"], plain.observation)
    np.testing.assert_array_equal(made.observation["more"][0][2], speed[2])
    assert made.observation["more"][0].dtype == np.float32


def test_actions_may_be_vectors_and_start_from_zero():
    observations, _ = episodes()
    rng = np.random.default_rng(1)
    actions = [rng.normal(size=(length, 2)).astype(np.float32) for length in LENGTHS]
    made = Trajectories.from_episodes(observations, actions)
    assert made.previous_action.shape == (3, 6, 2)
    assert made.previous_action.dtype == np.float32
    assert np.all(made.previous_action[:, 0] == 0)
    np.testing.assert_array_equal(made.previous_action[2, 1:], actions[2])
    scalars = Trajectories.from_episodes(observations, [action[:, 0] for action in actions])
    np.testing.assert_array_equal(scalars.previous_action, made.previous_action[..., 0])


def test_jax_arrays_and_many_episodes():
    made = Trajectories.from_episodes([jnp.arange(3)] * 200, [jnp.ones(2, jnp.int32)] * 200)
    assert made.shape == (200, 3)
    np.testing.assert_array_equal(made.previous_action, np.tile([NO_ACTION, 1, 1], (200, 1)))


def test_an_episode_may_end_where_it_begins():
    made = Trajectories.from_episodes([np.array([4]), np.array([5, 6])], [np.zeros(0, int), np.array([1])])
    np.testing.assert_array_equal(made.lengths, [1, 2])


@pytest.mark.parametrize(
    "index", [slice(1, 3), np.array([2, 0]), np.array([True, False, True]), jnp.array([1])]
)
@pytest.mark.parametrize("kind", ["array", "dict", "indexed"])
def test_rows_are_the_same_streams(kind, index):
    made = Trajectories.from_episodes(*episodes())
    table = np.arange(4 * 2).reshape(4, 2)
    places = np.random.default_rng(0).integers(0, 4, (3, 6))
    observation = {
        "array": made.observation,
        "dict": {"a": made.observation},
        "indexed": Indexed(table, places),
    }[kind]
    made = jax.tree.map(jnp.asarray, made._replace(observation=observation))
    some = made.rows(index)
    assert isinstance(some, Trajectories)
    for field in ("previous_action", "first", "valid", "lengths"):
        np.testing.assert_array_equal(getattr(some, field), np.asarray(getattr(made, field))[index])
    if kind == "indexed":
        assert isinstance(some.observation, Indexed)
        np.testing.assert_array_equal(some.observation.values, table)
        np.testing.assert_array_equal(some.observation.index, places[index])
    else:
        (leaf,) = jax.tree.leaves(some.observation)
        np.testing.assert_array_equal(leaf, np.asarray(jax.tree.leaves(made.observation)[0])[index])


def test_passes_through_jit_as_a_pytree():
    made = Trajectories.from_episodes(*episodes())
    rows = jnp.array([2, 0])
    inside = jax.jit(lambda trajectories, index: trajectories.rows(index))(made, rows)
    assert isinstance(inside, Trajectories)
    jax.tree.map(np.testing.assert_array_equal, inside, made.rows(np.asarray(rows)))
    lengths = jax.jit(lambda trajectories: trajectories.lengths)(made)
    np.testing.assert_array_equal(lengths, made.lengths)
    assert jax.eval_shape(lambda trajectories: trajectories, made).shape == (3, 6)


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        ([], [], "at least one episode; got 0 and 0"),
        ([np.zeros(3)], [np.zeros(2, int)] * 2, "got 1 and 2"),
        (
            [np.zeros(3)] * 2,
            [np.zeros(2, int), np.zeros(3, int)],
            r"episode 1 has 3 actions, .* 4 observations .*\[3\]",
        ),
        (
            [{"a": np.zeros(3), "b": np.zeros(2)}],
            [np.zeros(2, int)],
            r"episode 0 .* needs 3 observations .*\[2, 3\]",
        ),
        ([[1, 2, 3]], [np.zeros(2, int)], "observations: episode 0 .* np.asarray"),
        ([np.zeros(3)], [np.array(["up", "up"])], "actions: expected integers or floats, got <U2"),
        ([np.zeros(3)], [np.array([True, False])], "actions: expected integers or floats, got bool"),
        ([np.zeros((2, 2)), np.zeros((2, 3))], [np.zeros(1, int)] * 2, r"must agree .*\(2,\).*\(3,\)"),
        ([np.zeros(2)] * 2, [np.zeros(1), np.zeros(1, int)], "must agree in the shape and type"),
    ],
)
def test_episodes_that_do_not_fit_are_refused(observations, actions, message):
    with pytest.raises(ValueError, match=message):
        Trajectories.from_episodes(observations, actions)
