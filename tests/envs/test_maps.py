"""Maps: reading text, numbering cells, one-way doors, rooms."""

import numpy as np
import pytest

from derex.envs.grid.maps import FOUR_ROOMS, TWO_WAY, Map

UP, RIGHT, DOWN, LEFT = range(4)

CORRIDOR = Map.from_text(
    """
    #####
    #.>.#
    #####
    """,
    name="corridor",
)


def test_four_rooms_is_the_classic_map():
    assert FOUR_ROOMS.shape == (13, 13)
    assert len(FOUR_ROOMS.positions) == 104
    assert FOUR_ROOMS.start == 0
    np.testing.assert_array_equal(FOUR_ROOMS.positions[0], [1, 1])
    np.testing.assert_array_equal(FOUR_ROOMS.positions[-1], [11, 11])
    assert FOUR_ROOMS.reachable().all()


def test_four_rooms_has_four_doors_and_four_rooms():
    doors = FOUR_ROOMS.positions[FOUR_ROOMS.rooms == -1]
    np.testing.assert_array_equal(doors, [(3, 6), (6, 2), (7, 9), (10, 6)])
    sizes = np.bincount(FOUR_ROOMS.rooms[FOUR_ROOMS.rooms >= 0])
    np.testing.assert_array_equal(sizes, [25, 30, 25, 20])
    top_left, bottom_right = FOUR_ROOMS.state_ids[1, 1], FOUR_ROOMS.state_ids[11, 11]
    assert FOUR_ROOMS.rooms[top_left] == 0
    assert FOUR_ROOMS.rooms[bottom_right] == 3


def test_states_are_numbered_in_reading_order():
    drawn = Map.from_text(".#.\n...", name="u")
    np.testing.assert_array_equal(drawn.positions, [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)])
    np.testing.assert_array_equal(drawn.state_ids, [[0, -1, 1], [2, 3, 4]])


def test_successors_by_hand():
    drawn = Map.from_text(".#.\n...")
    expected = {0: (0, 0, 2, 0), 1: (1, 1, 4, 1), 2: (0, 3, 2, 2), 3: (3, 4, 3, 2), 4: (1, 4, 4, 3)}
    for state, row in expected.items():
        assert tuple(drawn.successors[state]) == row, f"moves from state {state}"


def test_moves_come_back_where_there_are_no_arrows():
    successors = FOUR_ROOMS.successors
    for move, back in ((UP, DOWN), (RIGHT, LEFT), (DOWN, UP), (LEFT, RIGHT)):
        moved = successors[:, move] != np.arange(104)
        np.testing.assert_array_equal(successors[successors[moved, move], back], np.flatnonzero(moved))


def test_one_way_door_is_entered_and_left_only_along_its_arrow():
    west, door, east = range(3)
    assert CORRIDOR.successors[west, RIGHT] == door
    assert CORRIDOR.successors[door, RIGHT] == east
    assert CORRIDOR.successors[door, LEFT] == door
    assert CORRIDOR.successors[east, LEFT] == east
    np.testing.assert_array_equal(CORRIDOR.reachable(east), [False, False, True])


def test_one_way_door_in_the_open_is_closed_sideways():
    drawn = Map.from_text("...\n.^.\n...")
    left_of_door, door, above = drawn.state_ids[1, 0], drawn.state_ids[1, 1], drawn.state_ids[0, 1]
    assert drawn.successors[left_of_door, RIGHT] == left_of_door
    assert drawn.successors[above, DOWN] == above
    np.testing.assert_array_equal(drawn.successors[door], [above, door, door, door])


@pytest.mark.parametrize(("arrow", "move"), [("^", UP), (">", RIGHT), ("v", DOWN), ("<", LEFT)])
def test_arrows_name_their_moves(arrow, move):
    drawn = Map.from_text(f"...\n.{arrow}.\n...")
    assert drawn.arrows[1, 1] == move
    assert (drawn.arrows == TWO_WAY).sum() == 8


def test_start_cell_is_floor():
    drawn = Map.from_text("..\n.S")
    assert drawn.start == 3
    assert len(drawn.positions) == 4


def test_spaces_and_dots_are_the_same_floor():
    assert Map.from_text("# #\n#.#", name="a") == Map.from_text("#.#\n# #", name="a")
    assert str(Map.from_text("# #")) == "#.#"


def test_replace_cells_leaves_the_original():
    walled = FOUR_ROOMS.replace_cells({(3, 6): "#"}, name="walled")
    assert walled.name == "walled"
    assert len(walled.positions) == 103
    assert len(FOUR_ROOMS.positions) == 104


def test_arrays_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        FOUR_ROOMS.successors[0, 0] = 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("###\n#.", r"'bad'.*widths \[2, 3\]"),
        ("#.x", r"unknown characters \['x'\]"),
        ("##\n##", "no floor cell"),
        ("S.S", "2 start cells"),
    ],
)
def test_bad_maps_are_refused_with_a_reason(text, message):
    with pytest.raises(ValueError, match=message):
        Map.from_text(text, name="bad")
