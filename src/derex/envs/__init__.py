"""Environments: grid worlds with exact transition matrices, and tasks for agents.

Tasks are made by name, `make("rooms-chain-8")`, and run as parallel streams, `make_streams(env, 256)`.
"""

from derex.envs.drawing import frame_table, frames, render
from derex.envs.grid.gridworld import GridWorld
from derex.envs.grid.hidden import HIDDEN, HiddenAgent, Walk, bayes_filter
from derex.envs.grid.maps import FOUR_ROOMS, Map, one_way_doors, random_maze, random_rooms
from derex.envs.interface import Environment
from derex.envs.registry import make, names
from derex.envs.wrappers import AutoReset, Batched, EpisodeStatistics, EpisodeSums, make_streams

__all__ = [
    "FOUR_ROOMS",
    "HIDDEN",
    "AutoReset",
    "Batched",
    "Environment",
    "EpisodeStatistics",
    "EpisodeSums",
    "GridWorld",
    "HiddenAgent",
    "Map",
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
