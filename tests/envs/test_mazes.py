"""Generated maps: everything stays in reach, seeds decide everything, fractions mean what they say."""

import numpy as np
import pytest

from derex.envs import FOUR_ROOMS, Map, one_way_doors, random_maze, random_rooms
from derex.envs.grid.maps import TWO_WAY

SEEDS = range(25)


def one_way_count(map):
    return int((map.arrows != TWO_WAY).sum())


def passage_count(map):
    return int((map.doorways >= 0).sum())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("size", "loops", "one_way"), [(13, 0.1, 0.2), (9, 0.0, 1.0), (7, 0.5, 0.5)])
def test_every_maze_cell_is_reachable(seed, size, loops, one_way):
    maze = random_maze(seed, size, loops, one_way)
    assert maze.shape == (size, size)
    assert maze.reachable().all()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_room_is_reachable(seed):
    assert random_rooms(seed, rows=3, cols=3, room=3, one_way=1.0).reachable().all()


@pytest.mark.parametrize("seed", range(5))
def test_a_maze_without_loops_is_a_tree(seed):
    """A spanning tree of 36 cells: 36 + 35 floor cells, and as many undirected moves as a tree has."""
    maze = random_maze(seed, size=13, loops=0.0, one_way=0.0)
    n = len(maze.positions)
    assert n == 71
    moves = np.sum(maze.successors != np.arange(n)[:, None])
    assert moves == 2 * (n - 1)


def test_loops_open_that_fraction_of_the_walls():
    """A 6 x 6 lattice has 60 inner walls; the tree opens 35 and leaves 25."""
    assert len(random_maze(0, loops=1.0, one_way=0.0).positions) == 36 + 60
    assert len(random_maze(0, loops=0.2, one_way=0.0).positions) == 71 + 5


def test_one_way_fraction_of_a_maze():
    plain, drawn = random_maze(3, one_way=0.0), random_maze(3, one_way=0.2)
    assert one_way_count(plain) == 0
    assert one_way_count(drawn) == round(0.2 * passage_count(plain))
    assert passage_count(plain) == passage_count(drawn)


def test_a_tree_can_be_one_way_everywhere():
    """Away from the start is a direction that cuts nothing off, for every corridor cell of a tree."""
    tree = random_maze(1, size=9, loops=0.0, one_way=1.0)
    start_is_passage = tree.doorways[tuple(tree.positions[tree.start])] >= 0
    assert one_way_count(tree) == passage_count(tree) - start_is_passage


def test_rooms_have_one_door_for_each_shared_wall():
    drawn = random_rooms(0, rows=2, cols=3, room=4)
    assert drawn.shape == (11, 16)
    assert passage_count(drawn) == 2 * 2 + 3
    assert drawn.rooms.max() + 1 == 6
    np.testing.assert_array_equal(np.bincount(drawn.rooms[drawn.rooms >= 0]), [16] * 6)
    assert one_way_count(drawn) == 0


def test_rooms_in_a_row_can_all_be_one_way():
    drawn = random_rooms(0, rows=1, cols=5, room=3, one_way=1.0)
    assert one_way_count(drawn) == 4
    assert set("".join(drawn.rows)) & set("^v<>") == {">"}


def test_one_way_doors_in_four_rooms():
    drawn = one_way_doors(FOUR_ROOMS, 2, seed=0)
    assert one_way_count(drawn) == 2
    assert drawn.reachable().all()
    assert len(drawn.positions) == 104
    np.testing.assert_array_equal(drawn.rooms, FOUR_ROOMS.rooms)


def test_doors_already_one_way_stay_as_they_are():
    first = one_way_doors(FOUR_ROOMS, 1, seed=0)
    second = one_way_doors(first, 1, seed=1)
    kept = first.arrows != TWO_WAY
    np.testing.assert_array_equal(second.arrows[kept], first.arrows[kept])
    assert one_way_count(second) == 2


def test_seeds_decide():
    for draw in (random_maze, random_rooms, lambda seed: one_way_doors(FOUR_ROOMS, 2, seed)):
        assert draw(7) == draw(7)
        assert len({draw(seed).rows for seed in range(8)}) > 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: random_maze(0, size=12), "size: an odd number .* got 12. Try 13"),
        (lambda: random_maze(0, loops=2.0), r"loops: .* in \[0, 1\]"),
        (lambda: random_maze(0, one_way=-0.1), r"one_way: .* in \[0, 1\]"),
        (lambda: random_rooms(0, room=1), "room: expected at least 2, got 1"),
        (lambda: random_rooms(0, rows=0), "rows: expected at least 1, got 0"),
        (lambda: one_way_doors(FOUR_ROOMS, 5, 0), r"n: only \d doors of 'four rooms'"),
        (lambda: one_way_doors(FOUR_ROOMS, -1, 0), "n: expected .* >= 0"),
        (lambda: one_way_doors(Map.from_text(".#."), 0, 0), "does not reach already"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
