"""Rooms behind locked doors: keys open their own door only, and are kept."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.envs import make
from derex.envs.grid.rooms import KeyRoomsState, door_rows, key_cells

RIGHT, LEFT = 1, 3


def cell_id(env, row, column):
    return int(env.world.map.state_ids[row, column])


@pytest.mark.parametrize("n", range(1, 12))
def test_keys_lie_in_their_rooms_away_from_doors_and_start(n):
    doors = [(row, 6 * room + 5) for room, row in enumerate(door_rows(n + 1))]
    cells = key_cells(n)
    assert len(cells) == n
    for room, (row, column) in enumerate(cells):
        assert 0 <= row < 5
        assert 0 <= column - 6 * room < 5
        for there in [(2, 0), *doors]:
            assert abs(row - there[0]) + abs(column - there[1]) >= 3
    if n > 2:
        assert len({(row, column % 6) for row, column in cells}) > 1


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fetching_each_key_reaches_the_goal(walk, shortest, n):
    """The way by hand: to the key of the first room, to that of the second, …, to the goal."""
    env: Any = make(f"key-rooms-{n}")
    stops = [env.world.start, *(cell_id(env, *cell) for cell in env.key_cells), env.goal]
    moves = [
        move
        for here, there in itertools.pairwise(stops)
        for move in shortest(env.world.successors, here, there)
    ]
    assert len(moves) < env.spec.horizon == 25 * (n + 1)
    walked = walk(env, moves)
    assert walked.rewards.tolist() == [0.0] * (len(moves) - 1) + [1.0]
    assert walked.terminated.tolist() == [False] * (len(moves) - 1) + [True]
    assert int(walked.states[-1].held) == 2**n - 1
    assert walked.observations[-1][-n:].tolist() == [1.0] * n
    assert walked.observations[0][-n:].tolist() == [0.0] * n


def test_a_door_opens_with_its_own_key_only(walk):
    env: Any = make("key-rooms-2")
    first, second = door_rows(3)
    for held, opened in ((0b00, []), (0b01, [0]), (0b10, [1]), (0b11, [0, 1])):
        for room, row in enumerate((first, second)):
            before = cell_id(env, row, 6 * room + 4)
            behind = cell_id(env, row, 6 * room + 6)
            for start, move in ((before, RIGHT), (behind, LEFT)):
                state = KeyRoomsState(jnp.int32(start), jnp.int32(held))
                after = walk(env, [move], start=state).states[-1]
                door = cell_id(env, row, 6 * room + 5)
                assert int(after.cell) == (door if room in opened else start)
                assert int(after.held) == held


def test_without_the_key_the_first_room_is_all_there_is():
    """Within reach are 24 cells of the first room without the key, since the 25th gives it, and with it everything."""
    env: Any = make("key-rooms-1")
    cells = env.world.n_states
    every = np.stack(np.meshgrid(range(cells), range(2), range(4), indexing="ij")).reshape(3, -1)
    cell, held, move = jnp.asarray(every, jnp.int32)
    after = jax.vmap(env.step, in_axes=(0, 0, None))(KeyRoomsState(cell, held), move, jax.random.key(0))[0]
    leads = np.stack(after, axis=1).reshape(cells, 2, 4, 2)
    reached, frontier = {(env.world.start, 0)}, [(env.world.start, 0)]
    while frontier:
        new = {tuple(there) for there in leads[frontier.pop()].tolist()} - reached
        reached |= new
        frontier += new
    without = [cell for cell, held in reached if held == 0]
    assert len(without) == 24
    assert env.spec.positions[without][:, 1].max() == 4
    assert len([cell for cell, held in reached if held == 1]) == cells == 51


def test_numbers_and_positions(walk):
    env: Any = make("key-rooms-2")
    assert env.spec.n_states == 77 * 4
    state = KeyRoomsState(jnp.int32(13), jnp.int32(2))
    assert int(env.state_id(state)) == 2 * 77 + 13
    for held in range(4):
        np.testing.assert_array_equal(env.spec.positions[held * 77 : held * 77 + 77], env.world.positions)


def test_observation(walk):
    env: Any = make("key-rooms-2")
    assert env.spec.observation.shape == (5 + 17 + 2,)
    start = KeyRoomsState(jnp.int32(cell_id(env, 3, 7)), jnp.int32(0b10))
    observation = walk(env, [RIGHT], start=start).observations[-1]
    taken = [22] if env.key_cells[0] == (3, 8) else []
    assert np.flatnonzero(observation).tolist() == [3, 5 + 8, *taken, 23]


@pytest.mark.parametrize(("n", "one_of"), [(1, 125), (2, 17_000), (3, 7e6)])
def test_how_rarely_a_random_walk_succeeds(n, one_of):
    """The exact probability, by following all walks at once; the figures of the module's docstring."""
    env: Any = make(f"key-rooms-{n}")
    cells, sets = env.world.n_states, 2**n
    every = np.stack(np.meshgrid(range(cells), range(sets), range(4), indexing="ij")).reshape(3, -1)
    cell, held, move = jnp.asarray(every, jnp.int32)
    after, _, _, ended = jax.vmap(env.step, in_axes=(0, 0, None))(
        KeyRoomsState(cell, held), move, jax.random.key(0)
    )
    leads = (np.asarray(after.held) * cells + np.asarray(after.cell)).astype(int)
    begins = np.asarray(held) * cells + np.asarray(cell)
    share, reached = np.zeros(cells * sets), 0.0
    share[env.world.start] = 1.0
    for _ in range(env.spec.horizon):
        moved = share[begins] / 4
        reached += moved[np.asarray(ended)].sum()
        share = np.bincount(leads, np.where(ended, 0.0, moved), minlength=len(share))
    assert reached == pytest.approx(1 / one_of, rel=0.1)
