"""Frames: where the pixels are, and that tables, jit and hiding agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.envs import FOUR_ROOMS, GridWorld, Map, frames, render
from derex.envs.drawing import AGENT_COLOUR, ARROW_COLOURS, FLOOR, WALL

WORLD = GridWorld(FOUR_ROOMS)


def red(images):
    return np.all(np.asarray(images) == AGENT_COLOUR, axis=-1)


def test_frames_of_four_rooms_are_30_by_30():
    table = frames(WORLD)
    assert table.shape == (104, 30, 30, 3)
    assert table.dtype == np.uint8


def test_agent_is_a_two_pixel_square_where_its_cell_is():
    """13 cells of 2 pixels are centred in 30: two pixels of margin on each side."""
    for state, mask in enumerate(red(frames(WORLD))):
        row, column = WORLD.positions[state] * 2 + 2
        assert mask.sum() == 4
        assert mask[row : row + 2, column : column + 2].all()


def test_walls_are_dark_and_floor_white():
    empty = render(WORLD, np.array([0]), hidden=np.array([True]))[0]
    white = np.all(empty == FLOOR, axis=-1)
    dark = np.all(empty == WALL, axis=-1)
    assert white.sum() == 104 * 4
    assert dark.sum() == 900 - 104 * 4
    assert dark[:4].all()


def test_hidden_agent_is_not_drawn():
    hidden = np.array([True, False, True])
    images = render(WORLD, np.array([5, 6, 7]), hidden=hidden)
    np.testing.assert_array_equal(red(images).any(axis=(1, 2)), ~hidden)
    np.testing.assert_array_equal(images[0], images[2])


def test_frames_are_all_different():
    assert len(np.unique(frames(WORLD).reshape(104, -1), axis=0)) == 104


def test_jax_and_numpy_agree_and_keep_their_kind():
    states, hidden = np.array([[0, 3], [99, 7]]), np.array([[True, False], [False, True]])
    host = render(WORLD, states, hidden=hidden)
    device = jax.jit(lambda s, h: render(WORLD, s, hidden=h))(jnp.asarray(states), jnp.asarray(hidden))
    assert isinstance(host, np.ndarray)
    assert host.shape == (2, 2, 30, 30, 3)
    np.testing.assert_array_equal(device, host)


@pytest.mark.parametrize("direction", range(4))
def test_one_way_doors_are_tinted_by_direction(direction):
    world = GridWorld(Map.from_text(f"...\n.{'^>v<'[direction]}.\n..."))
    image = render(world, np.array([0]), size=3)[0]
    assert tuple(image[1, 1]) == ARROW_COLOURS[direction]
    assert tuple(image[0, 0]) == AGENT_COLOUR


def test_large_cells_show_a_round_dot():
    mask = red(frames(WORLD, size=130))[0]
    assert mask[15, 15]
    assert not mask[10, 10]
    assert 30 < mask.sum() < 70


def test_oblong_maps_are_centred():
    world = GridWorld(Map.from_text("....\n...."))
    white = np.all(render(world, np.array([0]), 12, np.array([True]))[0] == FLOOR, axis=-1)
    np.testing.assert_array_equal(np.flatnonzero(white.any(axis=1)), range(3, 9))
    assert white.any(axis=0).all()


def test_too_small_frames_are_refused():
    with pytest.raises(ValueError, match=r"size: .* at least 13 pixels, got 12"):
        render(WORLD, np.array([0]), size=12)
