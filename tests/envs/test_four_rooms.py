"""Four rooms with a goal: the path, the three observations, and how often the dot is hidden."""

from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

from derex.envs import FOUR_ROOMS, frame_table, make
from derex.envs.grid.rooms import GOAL_COLOUR

NAMES = ("four-rooms", "four-rooms-pixels", "four-rooms-hidden")


@pytest.mark.parametrize("name", NAMES)
def test_the_shortest_path_is_twenty_moves(walk, shortest, name):
    """From (1, 1) to (11, 11) without a detour: 10 down and 10 to the right."""
    env: Any = make(name)
    assert FOUR_ROOMS.positions[env.goal].tolist() == [11, 11]
    moves = shortest(env.world.successors, env.world.start, env.goal)
    assert len(moves) == 20
    walked = walk(env, moves)
    assert walked.rewards.tolist() == [0.0] * 19 + [1.0]
    assert walked.terminated.tolist() == [False] * 19 + [True]
    assert [int(env.state_id(state)) for state in walked.states][-1] == 103


def test_one_hot_is_over_the_rectangle(walk):
    env: Any = make("four-rooms")
    walked = walk(env, [1, 1, 2, 3])
    places = [int(np.flatnonzero(observation)[0]) for observation in walked.observations]
    assert places == [0, 1, 2, 13, 12]


def test_frames_show_agent_and_goal():
    env: Any = make("four-rooms-pixels")
    plain = frame_table(env.world)
    goal = np.s_[24:26, 24:26]  # cells of 2 pixels behind a margin of 2
    assert env.frames.shape == (105, 30, 30, 3)
    for state in (0, 50, 104):
        assert np.all(env.frames[state][goal] == GOAL_COLOUR)
        changed = np.any(env.frames[state] != plain[state], axis=-1)
        assert changed.sum() == 4
        assert changed[goal].all()
    np.testing.assert_array_equal(env.frames[103], plain[103])  # the agent stands on the goal
    assert np.all(frame_table(env.world)[0][goal] == 255)  # the shared table is as it was
    _, observation = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(observation, env.frames[0])


def test_the_dot_is_hidden_half_of_the_time_and_independently():
    env: Any = make("four-rooms-hidden")
    keys = jax.random.split(jax.random.key(0), 4000)
    state, observations = jax.vmap(env.reset)(keys)
    hidden = np.all(np.asarray(observations) == env.frames[104], axis=(1, 2, 3))
    shown = np.all(np.asarray(observations) == env.frames[0], axis=(1, 2, 3))
    assert np.all(hidden ^ shown)
    assert stats.binomtest(int(hidden.sum()), 4000, 0.5).pvalue > 1e-4
    keys = jax.random.split(jax.random.key(1), 4000)
    _, after, _, _ = jax.vmap(env.step, in_axes=(0, None, 0))(state, jax.numpy.int32(1), keys)
    later = np.all(np.asarray(after) == env.frames[104], axis=(1, 2, 3))
    table = np.array([[np.sum((hidden == a) & (later == b)) for b in (0, 1)] for a in (0, 1)])
    assert stats.chi2_contingency(table).pvalue > 1e-4
    assert stats.binomtest(int(later.sum()), 4000, 0.5).pvalue > 1e-4
