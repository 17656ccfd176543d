"""Catch and recall: the whole of their rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from derex.envs import make, make_streams
from derex.envs.diagnostic import CatchState, RecallState

LEFT, STAY, RIGHT = range(3)


def thrown(column):
    return CatchState(jnp.int32(0), jnp.int32(column), jnp.int32(2))


@pytest.mark.parametrize("column", range(5))
@pytest.mark.parametrize("aim", range(5))
def test_the_ball_is_caught_where_the_paddle_is(walk, column, aim):
    moves = [LEFT if aim < 2 else RIGHT] * abs(aim - 2)
    walked = walk(make("catch"), [*moves, *[STAY] * (9 - len(moves))], start=thrown(column))
    assert walked.rewards.tolist() == [0.0] * 8 + [1.0 if aim == column else -1.0]
    assert walked.terminated.tolist() == [False] * 8 + [True]


def test_the_paddle_stays_on_the_board(walk):
    walked = walk(make("catch"), [LEFT] * 4 + [RIGHT], start=thrown(4))
    assert [int(state.paddle) for state in walked.states] == [2, 1, 0, 0, 0, 1]


def test_the_board(walk):
    observations = walk(make("catch"), [RIGHT, RIGHT, LEFT], start=thrown(1)).observations
    boards = [observation.reshape(10, 5) for observation in observations[1:]]
    for step, (board, paddle) in enumerate(zip(boards, [3, 4, 3], strict=True), start=1):
        assert np.argwhere(board).tolist() == [[step, 1], [9, paddle]]
        assert board.sum() == 2


def test_balls_fall_anywhere_and_do_not_repeat():
    """Columns of one stream's episodes after each other: uniform, and independent of the one before."""
    streams = make_streams(make("catch"), 400)

    def step(state, key):
        state, _ = streams.step(state, jnp.ones(400, jnp.int32), key)
        return state, state.streams.environment.ball_column

    state, _ = streams.reset(jax.random.key(0), stagger=False)
    _, columns = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 100))
    columns = np.asarray(columns)[9::10]  # the first steps of the second and later episodes
    assert columns.shape == (10, 400)
    assert stats.chisquare(np.bincount(columns.ravel(), minlength=5)).pvalue > 1e-4
    table = np.zeros((5, 5))
    np.add.at(table, (columns[:-1].ravel(), columns[1:].ravel()), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-4


@pytest.mark.parametrize("cue", range(4))
@pytest.mark.parametrize("length", [0, 3])
def test_recall_shows_the_cue_once_and_asks_later(walk, cue, length):
    env = make(f"recall-{length}")
    state = RecallState(jnp.int32(cue), jnp.int32(0))
    for answer in range(4):
        actions = [*[(cue + 1) % 4] * (length + 1), answer]  # actions before the signal have no effect
        walked = walk(env, actions, start=state)
        assert walked.rewards.tolist() == [0.0] * (length + 1) + [float(answer == cue)]
        assert walked.terminated.tolist() == [False] * (length + 1) + [True]
        shown = [np.flatnonzero(observation).tolist() for observation in walked.observations[1:]]
        assert shown == [[]] * length + [[4], []]


def test_recall_opens_with_its_cue():
    states, observations = jax.vmap(make("recall-5").reset)(jax.random.split(jax.random.key(0), 2000))
    np.testing.assert_array_equal(np.asarray(observations)[:, :4], np.eye(4)[np.asarray(states.cue)])
    assert not np.any(np.asarray(observations)[:, 4])
    assert stats.chisquare(np.bincount(states.cue, minlength=4)).pvalue > 1e-4


@pytest.mark.parametrize("remembers", [True, False])
def test_recall_needs_the_cue(remembers):
    """A policy that keeps what it saw always succeeds; one that answers by the present alone, a quarter of the time."""
    streams = make_streams(make("recall-4"), 256)

    def step(carry, key):
        state, cue = carry
        actions = cue if remembers else jnp.full(256, 2, jnp.int32)
        state, seen = streams.step(state, actions, key)
        return (state, jnp.where(seen.first, jnp.argmax(seen.observation[:, :4], axis=1), cue)), None

    state, seen = streams.reset(jax.random.key(0), stagger=False)
    cue = jnp.argmax(seen.observation[:, :4], axis=1)
    (state, _), _ = jax.lax.scan(step, (state, cue), jax.random.split(jax.random.key(1), 69))
    total = streams.summary(state).total()
    assert int(total.episodes) == 10 * 256
    assert int(total.lengths) == 6 * 10 * 256
    if remembers:
        assert int(total.successes) == 10 * 256
    else:
        assert stats.binomtest(int(total.successes), 10 * 256, 0.25).pvalue > 1e-4
