"""Worlds whose states can be enumerated, so that what is learnt can be held against the exact answer."""

from derex.envs.filtering import HIDDEN, bayes_filter
from derex.envs.gridworld import GridWorld
from derex.envs.hidden import HiddenAgent, Walk
from derex.envs.maps import FOUR_ROOMS, Map
from derex.envs.mazes import one_way_doors, random_maze, random_rooms
from derex.envs.render import frame_table, frames, render

__all__ = [
    "FOUR_ROOMS",
    "HIDDEN",
    "GridWorld",
    "HiddenAgent",
    "Map",
    "Walk",
    "bayes_filter",
    "frame_table",
    "frames",
    "one_way_doors",
    "random_maze",
    "random_rooms",
    "render",
]
