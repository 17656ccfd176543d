"""The chain of rooms: its plan, its shortest path, what chance can do, and what the hidden one shows."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from derex.envs import make, make_streams
from derex.envs.grid.rooms import HiddenChainState, chain_map, door_rows

UP, RIGHT, DOWN, LEFT = range(4)


def fewest_moves(doors, n):
    """6N - 2 columns to the right, and up or down to each door and to the goal's row on the way."""
    return 6 * n - 2 + int(np.abs(np.diff([2, *doors, 2])).sum())


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_plan(n):
    env: Any = make(f"rooms-chain-{n}")
    spec = env.spec
    assert env.world.map.shape == (5, 6 * n - 1)
    assert spec.n_states == 25 * n + n - 1
    assert spec.horizon == 25 * n
    assert spec.observation.shape == (5 + 6 * n - 1,)
    assert env.world.map.rooms.max() == n - 1
    assert spec.positions[env.world.start].tolist() == [2, 0]
    assert spec.positions[env.goal].tolist() == [2, 6 * n - 2]
    assert env.world.map.reachable().all()


def test_doors_are_varied_and_fixed():
    doors = door_rows(50)
    assert doors == door_rows(50)
    assert set(doors) == {0, 1, 2, 3, 4}
    assert all(a != b for a, b in itertools.pairwise(doors))
    assert doors[:7] != door_rows(8)


@pytest.mark.parametrize("n", [1, 3, 8])
def test_the_shortest_path_returns_one(walk, shortest, n):
    env: Any = make(f"rooms-chain-{n}")
    moves = shortest(env.world.successors, env.world.start, env.goal)
    assert len(moves) == fewest_moves(door_rows(n), n)
    assert len(moves) < env.spec.horizon
    walked = walk(env, moves)
    assert walked.rewards.tolist() == [0.0] * (len(moves) - 1) + [1.0]
    assert walked.terminated.tolist() == [False] * (len(moves) - 1) + [True]


def test_walls_block(walk):
    """With one door between two rooms, its row is the only one in which column 4 leads on to 5."""
    env: Any = make("rooms-chain-2")
    (door,) = door_rows(2)
    for row in range(5):
        start = jnp.int32(env.world.map.state_ids[row, 4])
        (_, after) = walk(env, [RIGHT], start=start).states
        assert env.spec.positions[int(after)].tolist() == [row, 5 if row == door else 4]
    assert int(walk(env, [LEFT]).states[-1]) == env.world.start
    corner = walk(env, [UP, UP, UP]).states[-1]
    assert env.spec.positions[int(corner)].tolist() == [0, 0]


def test_observation_is_row_and_column(walk):
    env: Any = make("rooms-chain-3")
    walked = walk(env, [DOWN, RIGHT, RIGHT, UP, RIGHT])
    for state, observation in zip(walked.states, walked.observations, strict=True):
        row, column = env.spec.positions[int(env.state_id(state))]
        assert np.flatnonzero(observation).tolist() == [row, 5 + column]
        assert observation.sum() == 2


def chance(n):
    """The exact probability that a uniformly random policy reaches the goal within the time limit."""
    env: Any = make(f"rooms-chain-{n}")
    walk = env.world.transition_tensor().mean(axis=1)
    walk[env.goal] = np.eye(env.spec.n_states)[env.goal]
    return (np.linalg.matrix_power(walk, env.spec.horizon))[env.world.start, env.goal]


def test_chance_of_a_random_walk():
    """The numbers of the module's description; and 8 rooms are out of reach of any number of random episodes."""
    assert chance(1) == pytest.approx(0.2247, abs=1e-4)
    assert 1 / chance(2) == pytest.approx(75.67, abs=0.01)
    assert chance(8) == pytest.approx(8.62e-10, rel=1e-3)


@pytest.mark.parametrize("name", ["rooms-chain-2", "rooms-chain-8"])
def test_random_streams_succeed_as_often_as_computed(name):
    """The whole stack of wrappers against the matrix power: successes of whole episodes are binomial."""
    streams = make_streams(make(name), 512)

    def step(state, key):
        action_key, step_key = jax.random.split(key)
        return streams.step(state, jax.random.randint(action_key, (512,), 0, 4), step_key)[0], None

    state, _ = streams.reset(jax.random.key(0))
    state, _ = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 10 * streams.spec.horizon))
    total = streams.summary(state).total()
    assert int(total.episodes) > 4000
    assert float(total.returns) == int(total.successes)
    if name == "rooms-chain-8":
        assert int(total.successes) == 0
    else:
        test = stats.binomtest(int(total.successes), int(total.episodes), chance(2))
        assert test.pvalue > 1e-3


def view_by_hand(map, cell, goal):
    """wall, floor, goal of the 5 x 5 cells around a place, read off the picture."""
    row, column = cell
    kinds = np.where(map.floor, 1, 0)
    kinds[goal] = 2
    around = np.pad(kinds, 2)[row : row + 5, column : column + 5]
    return np.eye(3, dtype=np.float32)[around].ravel()


@pytest.mark.parametrize("n", [1, 3])
def test_hidden_view(walk, n):
    env: Any = make(f"rooms-chain-{n}-hidden")
    doors = [1, 4, 0][:n]
    map = chain_map(n, doors[: n - 1], "by hand")
    observe = jax.jit(env.step)
    for row, column in map.positions.tolist():
        if (row, column) == (2, 6 * n - 2):
            continue
        # a step into a wall or off again: wherever it leads, the view is that of the place it led to
        for move in range(4):
            state = HiddenChainState(jnp.array([row, column], jnp.int32), jnp.array(doors, jnp.int32))
            state, observation, _, _ = observe(state, jnp.int32(move), jax.random.key(0))
            here = map.state_ids[row, column]
            assert map.positions[map.successors[here, move]].tolist() == state.cell.tolist()
            expected = view_by_hand(map, state.cell.tolist(), (2, 6 * n - 2))
            np.testing.assert_array_equal(observation, expected)
            assert int(env.state_id(state)) == state.cell[0] * (6 * n - 1) + state.cell[1]


def test_hidden_shortest_path_returns_one(walk, shortest):
    env: Any = make("rooms-chain-4-hidden")
    start, _ = env.reset(jax.random.key(5))
    doors = start.doors.tolist()[:-1]
    map = chain_map(4, doors, "as drawn")
    moves = shortest(map.successors, map.start, int(map.state_ids[2, 22]))
    assert len(moves) == fewest_moves(doors, 4)
    walked = walk(env, moves, start=start)
    assert walked.rewards.tolist() == [0.0] * (len(moves) - 1) + [1.0]
    assert walked.terminated[-1]
    # the goal is in the middle of the last view, the wall outside to its right
    last = walked.observations[-1].reshape(5, 5, 3)
    assert last[2, 2].tolist() == [0, 0, 1]
    assert last[2, 3].tolist() == [1, 0, 0]


def test_hidden_doors_are_redrawn_uniformly():
    env: Any = make("rooms-chain-4-hidden")
    states, seen = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 3000))
    for doors in np.asarray(states.doors).T[:3]:
        assert stats.chisquare(np.bincount(doors, minlength=5)).pvalue > 1e-4
    first, second = np.asarray(states.doors).T[:2]
    table = np.zeros((5, 5))
    np.add.at(table, (first, second), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-4
    assert len(np.unique(np.asarray(seen), axis=0)) == 1  # no door is within sight of the start


def test_hidden_doors_stay_during_an_episode():
    env: Any = make("rooms-chain-3-hidden")
    state, _ = env.reset(jax.random.key(0))
    doors = state.doors
    for key in jax.random.split(jax.random.key(1), 20):
        state, _, _, _ = env.step(state, jax.random.randint(key, (), 0, 4), key)
        np.testing.assert_array_equal(state.doors, doors)
