"""Pictures of environments: what is where."""

import jax
import jax.numpy as jnp
import numpy as np

from derex.envs.diagnostic import Recall, RecallState
from derex.envs.drawing import (
    AGENT,
    BLUE,
    FLOOR,
    GOAL,
    ORANGE,
    WALL,
    box,
    canvas,
    cell_side,
    disc,
    grid_picture,
    stroke,
)
from derex.envs.grid.rooms import HiddenChainState, HiddenRoomsChain, KeyRooms, KeyRoomsState, RoomsChain


def at(picture, row, column):
    """The colour in the middle of a cell's lower half, below a dot, of rooms in a row with a wall around them."""
    side = picture.shape[0] // 7
    return tuple(picture[int((row + 1.9) * side), int((column + 1.5) * side)].tolist())


def count(picture, colour):
    return int(np.all(picture == colour, axis=-1).sum())


def test_a_disc_has_its_area_and_smooth_edges():
    picture = canvas(100, 60)
    disc(picture, (50.0, 30.0), 20.0, BLUE)
    ink = (255 - picture[..., 0].astype(float)).sum() / 255
    assert abs(ink - np.pi * 20**2) < 5
    assert len(np.unique(picture[..., 0])) > 5
    np.testing.assert_array_equal(picture, picture[::-1])
    np.testing.assert_array_equal(picture, picture[:, ::-1])


def test_boxes_and_strokes_are_where_they_should_be():
    picture = canvas(40, 20)
    box(picture, (10, 5), (30, 15), BLUE)
    assert count(picture, BLUE) == 20 * 10
    stroke(picture, (0, 2), (40, 2), 2, ORANGE)
    assert count(picture[:5], ORANGE) == 2 * 40
    disc(picture, (-50.0, -50.0), 3.0, AGENT)  # outside
    assert count(picture, AGENT) == 0


def test_a_grid_has_a_wall_around_it_and_its_cells():
    walls = np.zeros((2, 3), bool)
    walls[0, 2] = True
    picture = grid_picture(walls, (1, 0), (1, 2), {(0, 0): ORANGE})
    side = cell_side((4, 5))
    assert picture.shape == (4 * side, 5 * side, 3)
    middles = picture[side // 2 :: side, side // 2 :: side]
    assert [tuple(colour) for colour in middles[1].tolist()] == [WALL, ORANGE, FLOOR, WALL, WALL]
    assert [tuple(colour) for colour in middles[2].tolist()] == [WALL, AGENT, FLOOR, GOAL, WALL]
    assert np.all(middles[0] == WALL)


def test_long_chains_are_still_pictures():
    env = RoomsChain(40)
    assert env.render(jnp.int32(0)).shape == (7 * 4, (40 * 6 - 1 + 2) * 4, 3)


def test_the_agent_is_drawn_where_it_is():
    env = RoomsChain(2)
    side = cell_side((7, 13))
    for state in (0, 7, env.world.n_states - 1):
        row, column = env.world.positions[state]
        rows, columns = np.nonzero(np.all(env.render(jnp.int32(state)) == AGENT, axis=-1))
        assert abs(rows.mean() + 0.5 - (row + 1.5) * side) < 0.01
        assert abs(columns.mean() + 0.5 - (column + 1.5) * side) < 0.01


def test_what_the_agent_does_not_see_is_in_shade():
    env = HiddenRoomsChain(2)
    state = HiddenChainState(jnp.array([2, 0], jnp.int32), jnp.array([4, 0], jnp.int32))
    picture = env.render(state)
    assert at(picture, 2, 0) == at(picture, 0, 2) == FLOOR
    assert FLOOR != at(picture, 2, 3) != WALL
    assert at(picture, 4, 5) == at(picture, 2, 3)  # the door
    assert at(picture, 0, 5) == WALL


def test_keys_and_their_doors_vanish_together():
    env = KeyRooms(2)
    start = env.reset(jax.random.key(0))[0]
    pictures = [env.render(KeyRoomsState(start.cell, jnp.int32(held))) for held in range(4)]
    side = cell_side((7, 19))
    assert [count(picture, ORANGE) > side**2 / 2 for picture in pictures] == [True, False, True, False]
    assert [count(picture, BLUE) > side**2 / 2 for picture in pictures] == [True, True, False, False]


def test_recall_shows_the_cue_once_and_then_the_signal():
    env = Recall(3)
    shown = [env.render(RecallState(jnp.int32(2), jnp.int32(time))) for time in range(6)]
    assert [count(picture, BLUE) > 0 for picture in shown] == [True, False, False, False, False, False]
    assert [count(picture, ORANGE) > 0 for picture in shown] == [False, False, False, False, True, False]
