"""Worlds whose states can be enumerated, so that what is learnt can be held against the exact answer."""

from derex.envs.gridworld import GridWorld
from derex.envs.maps import FOUR_ROOMS, Map
from derex.envs.mazes import one_way_doors, random_maze, random_rooms
from derex.envs.render import frames, render

__all__ = [
    "FOUR_ROOMS",
    "GridWorld",
    "Map",
    "frames",
    "one_way_doors",
    "random_maze",
    "random_rooms",
    "render",
]
