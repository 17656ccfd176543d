"""Worlds whose states can be enumerated, so that what is learnt can be held against the exact answer, and tasks.

Tasks are made by name, `make("rooms-chain-8")`, and walked in many streams at once, `make_streams(env, 256)`.
"""

from derex.envs.filtering import HIDDEN, bayes_filter
from derex.envs.gridworld import GridWorld
from derex.envs.hidden import HiddenAgent, Walk
from derex.envs.interface import Environment
from derex.envs.maps import FOUR_ROOMS, Map
from derex.envs.mazes import one_way_doors, random_maze, random_rooms
from derex.envs.registry import make, names
from derex.envs.render import frame_table, frames, render
from derex.envs.wrappers import AutoReset, Batched, EpisodeSums, Statistics, make_streams

__all__ = [
    "FOUR_ROOMS",
    "HIDDEN",
    "AutoReset",
    "Batched",
    "Environment",
    "EpisodeSums",
    "GridWorld",
    "HiddenAgent",
    "Map",
    "Statistics",
    "Walk",
    "bayes_filter",
    "frame_table",
    "frames",
    "make",
    "make_streams",
    "names",
    "one_way_doors",
    "random_maze",
    "random_rooms",
    "render",
]
