"""The wrappers on an environment small enough to say by hand what they must do."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from scipy import stats

from derex.envs import AutoReset, Batched, Environment, EpisodeStatistics, make, make_streams
from derex.types import Discrete, EnvironmentSpec

HORIZON = 5


class ClockState(NamedTuple):
    time: Array
    draw: Array


class Clock:
    """Rewards its own time; ends by itself when action 1 is taken. Each episode draws a number, each step another."""

    spec = EnvironmentSpec("clock", jax.ShapeDtypeStruct((2,), jnp.float32), Discrete(2), HORIZON, 6.0)

    def reset(self, key):
        state = ClockState(jnp.int32(0), jax.random.uniform(key))
        return state, self._observe(state)

    def step(self, state, action, key):
        state = ClockState(state.time + 1, jax.random.uniform(key))
        return state, self._observe(state), state.time.astype(jnp.float32), action == 1

    def _observe(self, state):
        return jnp.stack([state.time.astype(jnp.float32), state.draw])


def run(stream, actions, seed=0, **reset):
    """All time steps, the reset's first, for actions of shape (T,) or (T, n)."""
    keys = jax.random.split(jax.random.key(seed), len(actions) + 1)
    state, step = jax.jit(partial(stream.reset, **reset))(keys[0])
    states, steps, advance = [state], [step], jax.jit(stream.step)
    for action, key in zip(np.asarray(actions, np.int32), keys[1:], strict=True):
        state, step = advance(state, jnp.asarray(action), key)
        states.append(state)
        steps.append(step)
    return states, jax.tree.map(lambda *leaves: np.stack(leaves), *steps)


def test_an_episode_that_is_cut_and_the_next():
    _, steps = run(AutoReset(Clock()), [0] * 7)
    assert steps.observation[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert steps.reward.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert steps.truncated.tolist() == [False] * 5 + [True, False, False]
    assert steps.first.tolist() == [True] + [False] * 5 + [True, False]
    assert steps.discount.tolist() == [1.0] * 8


def test_an_episode_that_ends_by_itself():
    _, steps = run(AutoReset(Clock()), [0, 1, 1, 1, 0])
    assert steps.observation[:, 0].tolist() == [0, 1, 2, 0, 1, 0]
    assert steps.reward.tolist() == [0, 1, 2, 0, 1, 0]
    assert steps.discount.tolist() == [1, 1, 0, 1, 0, 1]
    assert steps.first.tolist() == [True, False, False, True, False, True]
    assert not steps.truncated.any()


def test_an_end_at_the_very_last_step_is_no_truncation():
    _, steps = run(AutoReset(Clock()), [0, 0, 0, 0, 1, 0])
    assert steps.discount.tolist() == [1, 1, 1, 1, 1, 0, 1]
    assert not steps.truncated.any()
    assert steps.last.tolist() == [False] * 5 + [True, False]


def test_the_action_after_a_last_step_has_no_effect():
    stream = AutoReset(Clock())
    states, _ = run(stream, [1])
    after = [stream.step(states[-1], jnp.int32(action), jax.random.key(9)) for action in (0, 1)]
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), *after))
    assert bool(after[0][1].first)


def test_every_draw_is_its_own():
    """Steps and resets share a key, of which one result is kept: no draw of a stream may come twice."""
    _, steps = run(make_streams(Clock(), 8), np.tile([[0], [0], [1]], (20, 8)), stagger=False)
    assert len(np.unique(steps.observation[..., 1])) == 61 * 8


def test_elapsed_time_shortens_one_episode():
    stream = AutoReset(Clock())
    state, _ = stream.reset(jax.random.key(0), jnp.int32(3))
    lasts, advance = [], jax.jit(stream.step)
    for key in jax.random.split(jax.random.key(1), 9):
        state, step = advance(state, jnp.int32(0), key)
        lasts.append(bool(step.truncated))
    assert lasts == [False, True, False, False, False, False, False, True, False]


def test_staggered_counters_are_uniform():
    state, _ = Batched(AutoReset(Clock()), 5000).reset(jax.random.key(0), stagger=True)
    counts = np.bincount(np.asarray(state.steps), minlength=HORIZON)
    assert len(counts) == HORIZON
    assert stats.chisquare(counts).pvalue > 1e-4
    # the counter alone is moved: the environment itself is at its beginning
    assert not np.any(state.environment.time)


def test_streams_without_stagger_end_together():
    _, steps = run(make_streams(Clock(), 4), np.zeros((6, 4)), stagger=False)
    assert steps.last.all(axis=1).tolist() == [False] * 5 + [True, False]
    assert steps.last.any(axis=1).tolist() == [False] * 5 + [True, False]


def test_statistics_by_hand():
    """Returns of an episode of m steps are m (m + 1) / 2; success begins at 6, that is with 3 steps."""
    streams = make_streams(Clock(), 2)
    #        a: cut after 5 steps (15), resets, ends after 2 (3), resets, one step
    #        b: ends after 1 (1), resets, ends after 3 (6), resets, three steps
    actions = np.array([[0, 0, 0, 0, 0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 1, 0, 0, 0, 0, 0]]).T
    states, _ = run(streams, actions, stagger=False)
    sums = streams.summary(states[-1])
    assert sums.episodes.tolist() == [2, 2]
    assert sums.returns.tolist() == [18, 7]
    assert sums.lengths.tolist() == [7, 4]
    assert sums.successes.tolist() == [1, 1]
    assert [field.item() for field in sums.total()] == [4, 25, 11, 2]
    assert states[-1].episode_length.tolist() == [1, 4]
    assert states[-1].episode_return.tolist() == [1, 10]
    assert states[-1].sums.returns.dtype == jnp.float32


def test_cleared_statistics_keep_the_episode_under_way():
    streams = make_streams(Clock(), 1)
    states, _ = run(streams, np.zeros((9, 1)), stagger=False)  # one episode of 5, three steps of the next
    assert streams.summary(states[-1]).episodes.tolist() == [1]
    state = streams.cleared(states[-1])
    assert [field.item() for field in streams.summary(state)] == [0, 0, 0, 0]
    for key in jax.random.split(jax.random.key(1), 2):
        state, _ = jax.jit(streams.step)(state, jnp.zeros(1, jnp.int32), key)
    assert [field.item() for field in streams.summary(state)] == [1, 15, 5, 1]


@pytest.mark.parametrize("action", [0, 1], ids=["cut", "ended"])
def test_a_staggered_first_episode_does_not_count(action):
    """However it ends; the whole episodes after it do."""
    streams = make_streams(Clock(), 64)
    elapsed = np.asarray(streams.reset(jax.random.split(jax.random.key(0), 14)[0])[0].streams.steps)
    states, steps = run(streams, np.full((13, 64), action))
    finished = steps.last.sum(axis=0)
    np.testing.assert_array_equal(streams.summary(states[-1]).episodes, finished - (elapsed > 0))
    assert (elapsed > 0).any()
    assert (elapsed == 0).any()


def test_success_may_be_undefined():
    class Plain(Clock):
        spec = Clock.spec._replace(success_return=None)

    streams = make_streams(Plain(), 2)
    states, _ = run(streams, np.ones((6, 2)), stagger=False)
    assert streams.summary(states[-1]).episodes.tolist() == [3, 3]
    assert streams.summary(states[-1]).successes.tolist() == [0, 0]


class Dear(Clock):
    """A clock of which one stream in four can begin anew each step."""

    reset_ratio = 4


def test_dear_resets_are_made_for_a_few_and_handed_to_those_that_end():
    """Two of eight may begin at a time, with worlds of their own; the others go on as they would have."""
    streams = make_streams(Dear(), 8)
    assert streams.streams.resets == 2
    actions = np.zeros((5, 8))
    actions[1, [2, 5]] = 1  # these end with the second step and begin with the third
    _, steps = run(streams, actions, stagger=False)
    assert steps.first[3].tolist() == [False, False, True, False, False, True, False, False]
    assert steps.observation[3, :, 0].tolist() == [3, 3, 0, 3, 3, 0, 3, 3]
    assert steps.observation[4, :, 0].tolist() == [4, 4, 1, 4, 4, 1, 4, 4]
    assert len(np.unique(steps.observation[3:, :, 1])) == 3 * 8  # no draw comes twice


def test_more_ends_than_dear_resets_begin_alike_and_go_on_apart():
    _, steps = run(make_streams(Dear(), 8), np.zeros((7, 8)), stagger=False)
    assert steps.first[6].all()
    draws = steps.observation[6, :, 1]
    assert len(np.unique(draws)) == 2
    np.testing.assert_array_equal(draws, np.tile(draws[:2], 4))
    assert len(np.unique(steps.observation[7, :, 1])) == 8


def test_dear_resets_keep_the_statistics_right():
    """The same actions give the same returns, lengths and successes as with a reset for each."""
    actions = (np.random.default_rng(0).random((60, 9)) < 0.3).astype(int)
    sums = [
        streams.summary(run(streams, actions, stagger=False)[0][-1])
        for streams in (make_streams(Clock(), 9), make_streams(Dear(), 9))
    ]
    assert int(sums[0].episodes.sum()) > 50
    assert jax.tree.all(jax.tree.map(np.array_equal, *sums))


def test_a_ratio_below_one_is_refused():
    class Wrong(Clock):
        reset_ratio = 0

    with pytest.raises(ValueError, match="reset_ratio: expected 1 or more, got 0 of 'clock'"):
        make_streams(Wrong(), 8)


def test_what_the_streams_say_of_themselves():
    env = Clock()
    assert isinstance(env, Environment)
    streams = make_streams(env, 3)
    assert isinstance(streams, EpisodeStatistics)
    assert streams.spec is env.spec
    assert streams.n == 3
    with pytest.raises(TypeError, match=r"state_id: .*'clock'.*spec\.n_states > 0"):
        streams.state_ids(streams.reset(jax.random.key(0))[0])
    with pytest.raises(ValueError, match="n: expected at least one stream, got 0"):
        make_streams(make("catch"), 0)
