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
        (
            [[1, 2, 3]],
            [np.zeros(3, int)],
            r"observations: episode 0 .* 4 observations .*\[3\]. A list is read as steps",
        ),
        ([{"a": [1, 2, 3]}], [np.zeros(2, int)], "observations: episode 0 .* np.asarray"),
        (
            [[np.zeros((4, 2)), np.zeros((4, 3))]],  # two parts of four steps, not two steps
            [np.zeros(3, int)],
            r"observations: episode 0 has 3 actions.*got \[2\]. A list is read as steps",
        ),
        (
            [np.zeros(2), [np.zeros(2), np.zeros(3)]],
            [[1], [1]],
            r"observations: episode 1: a list is .*one by one.* 0 has \(2,\) and number 1 has \(3,\)",
        ),
        ([[{"a": 1}, {"b": 1}]], [[1]], r"observations: episode 0: .*number 1 has {'b': \(\)}"),
        (
            [np.zeros(3)],
            [np.array(["up", "up"])],
            "actions: expected integers or floats.* got <U2 .*episode 0",
        ),
        ([np.zeros(3)], [np.array([True, False])], "actions: expected integers or floats.* got bool"),
        ([np.zeros(3)], [3], r"actions: .*one row for each step.* got int64 of shape \(\) for episode 0"),
        (
            [np.zeros((2, 2)), np.zeros((2, 3))],
            [np.zeros(1, int)] * 2,
            r"observations: episodes must agree .*episode 0 has float64 of shape \(2,\) and episode 1 .*\(3,\)",
        ),
        (
            [np.zeros(2)] * 3,
            [np.zeros(1), np.zeros(1), np.zeros(1, int)],
            "actions: episodes must agree in the shape and type .*episode 0 has float64 .*episode 2 has int32",
        ),
        (
            [{"a": np.zeros(2)}, {"a": np.zeros(2), "b": np.zeros(2)}],
            [[1], [1]],
            "observations: episodes must agree .*episode 0 has {'a': array} and episode 1 has {'a': array, 'b': array}",
        ),
        (
            [np.zeros(2), (np.zeros(2),)],
            [[1], [1]],
            r"observations: .*episode 0 has array and episode 1 has \(array,\)",
        ),
        ([{}], [[1]], "observations: episode 0 holds no array, got {}"),
        ([np.zeros(2), None], [[1], [1]], "observations: episode 1 holds no array, got None"),
        ([[]], [[1]], "observations: episode 0 has 1 actions"),
        (
            [np.zeros(2)] * 2,
            [[1], [-1]],
            "actions: episode 1 has actions from -1 to -1, expected numbers from 0",
        ),
        (
            [np.zeros(3)],
            [[0, 2**32 + 1]],
            "actions: episode 0 .* 0 to 4294967297, expected .*less than 1048576",
        ),
        ([np.zeros(2)], [np.array([2**64 - 1], np.uint64)], "actions: episode 0 .*18446744073709551615"),
    ],
)
def test_episodes_that_do_not_fit_are_refused(observations, actions, message):
    with pytest.raises(ValueError, match=message):
        Trajectories.from_episodes(observations, actions)


def test_a_list_is_read_as_steps():
    """As an agent's loop collects them: one observation after the other."""
    observations, actions = episodes()
    whole = Trajectories.from_episodes(observations, actions)
    by_steps = Trajectories.from_episodes([list(seen) for seen in observations], actions)
    jax.tree.map(np.testing.assert_array_equal, by_steps, whole)
    numbers = Trajectories.from_episodes([[7, 8, 9], [5, 6]], [[2, 0], [3]])
    np.testing.assert_array_equal(numbers.observation, [[7, 8, 9], [5, 6, 0]])
    vectors = Trajectories.from_episodes([[[0.5, 1.0], [1.5, 2.0]]], [[1]])
    np.testing.assert_array_equal(vectors.observation, [[[0.5, 1.0], [1.5, 2.0]]])


def test_steps_may_be_dicts():
    steps = [{"image": np.full((2, 2), t), "parts": [np.array([t]), np.float32(t)]} for t in range(3)]
    made = Trajectories.from_episodes([steps], [[1, 0]])
    assert made.observation["image"].shape == (1, 3, 2, 2)
    np.testing.assert_array_equal(made.observation["image"][0, :, 1, 1], [0, 1, 2])
    np.testing.assert_array_equal(made.observation["parts"][0], [[[0], [1], [2]]])
    np.testing.assert_array_equal(made.observation["parts"][1], [[0.0, 1.0, 2.0]])
    two = Trajectories.from_episodes(
        [[[np.zeros(3), np.ones(2)]] * 5], [[1, 0, 0, 1]]
    )  # five steps of two parts
    assert [leaf.shape for leaf in two.observation] == [(1, 5, 3), (1, 5, 2)]


@pytest.mark.parametrize("actions", [[1, 2], np.ones((2, 3), np.float32), np.array([1, 2], np.uint8)])
@pytest.mark.parametrize("empty", [[], (), np.zeros(0), np.zeros((0, 7))])
def test_an_episode_without_actions_takes_the_others_kind(actions, empty):
    made = Trajectories.from_episodes([np.array([4]), np.array([5, 6, 7])], [empty, actions])
    assert made.previous_action.dtype == (np.float32 if np.ndim(actions) > 1 else np.int32)
    np.testing.assert_array_equal(made.previous_action[1, 1:], actions)
    np.testing.assert_array_equal(made.lengths, [1, 3])
    alone = Trajectories.from_episodes([np.array([4])], [[]])
    np.testing.assert_array_equal(alone.previous_action, [[NO_ACTION]])


def test_episodes_may_come_from_a_generator():
    observations, actions = episodes()
    made = Trajectories.from_episodes((seen for seen in observations), iter(actions))
    jax.tree.map(np.testing.assert_array_equal, made, Trajectories.from_episodes(observations, actions))


@pytest.mark.parametrize("wrong", [{"a": np.zeros(2)}, "walk"])
def test_what_is_no_list_of_episodes_is_refused(wrong):
    with pytest.raises(TypeError, match=rf"observations: expected a list .*got {type(wrong).__name__}"):
        Trajectories.from_episodes(wrong, [[1]])
