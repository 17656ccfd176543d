"""MiniGrid and BabyAI: `minigrid:MiniGrid-DoorKey-8x8-v0`, `babyai:BabyAI-GoToObj-v0`; the mission is read as words.

Observations are those of the package, {"image", "direction", "mission"}: 7 x 7 tiles of (kind, colour, state) as seen
by the agent, where it faces, and what it is told. A reward above 0 comes with success only, and ends the episode.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

from derex.envs.suites import common as words
from derex.envs.suites.common import load, unknown
from derex.envs.suites.gymnasium import DrawnGymnasium, made
from derex.envs.suites.spaces import ObservationReader
from derex.types import Symbols, Words

VIEW = (7, 7, 3)
KINDS, COLOURS, STATES = 11, 6, 3
"""of a tile: `OBJECT_TO_IDX`, `COLOR_TO_IDX`, `STATE_TO_IDX` of the package"""
SUCCESS = 0.05
"""the least that success is rewarded with is 0.1"""
OBSERVATION = {
    "direction": Symbols((1,), (4,)),
    "image": Symbols(VIEW, (KINDS, COLOURS, STATES)),
    "mission": Words(),
}

MOST_PLACES = 1000  # that are tried for an agent, one after the other
_MOST_WALKS = 8  # a mission has at most two parts, of two tasks, with two places to walk to each


class MiniGrid(DrawnGymnasium):
    """One task. BabyAI draws the time limit of each episode by its mission; the horizon is the longest of them."""

    def begin(self, seed: int) -> Any:
        """A new grid and a new mission."""
        # BabyAI prints each mission that it thought better of
        with contextlib.redirect_stdout(io.StringIO()), _giving_up_in_time(self._env.unwrapped):
            return super().begin(seed)


@contextlib.contextmanager
def _giving_up_in_time(level: Any) -> Iterator[None]:
    """Ends the search for a place that has nothing before it where there is none.

    `RoomGrid.place_agent` would go on for ever in a small room full of things: in one of a thousand grids of
    SynthS5R2. The error is the one that BabyAI knows as a grid to be drawn again.
    """
    place, tried = level.place_obj, 0

    def place_obj(obj: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal tried
        tried = tried + 1 if obj is None else 0  # None: a place for the agent
        if tried > MOST_PLACES:
            tried = 0
            raise RecursionError("there is no place for the agent")
        return place(obj, *arguments, **options)

    level.place_obj = place_obj
    try:
        yield
    finally:
        del level.place_obj


def make(name: str) -> MiniGrid:
    """The task of that id, of either package."""
    load("minigrid", "minigrid")
    gymnasium = load("gymnasium", "minigrid")
    suite = suite_of(name)
    if name not in names():
        raise unknown(suite, name, names())
    env = made(gymnasium.spec(name))
    view = env.observation_space["image"].shape
    if view != VIEW:
        raise ValueError(f"name: {name!r} shows {view}, expected {VIEW}.")
    return MiniGrid(
        env,
        f"{suite}:{name}",
        horizon=_horizon(env),
        success_return=SUCCESS,
        seen=ObservationReader(OBSERVATION, read),
    )


def names() -> list[str]:
    """Ids of MiniGrid and BabyAI."""
    load("minigrid", "minigrid")
    registry = load("gymnasium", "minigrid").registry
    return sorted(name for name in registry if name.startswith(("MiniGrid-", "BabyAI-")))


def suite_of(name: str) -> str:
    """Under which name of a suite a task is written."""
    return "babyai" if name.startswith("BabyAI") else "minigrid"


def read(seen: dict[str, Any]) -> dict[str, UInt8[np.ndarray, "..."] | Int32[np.ndarray, "..."]]:
    """The package's observation as ours."""
    return {
        "direction": np.asarray([seen["direction"]], np.uint8),
        "image": np.asarray(seen["image"], np.uint8),
        "mission": mission_words(seen["mission"]).copy(),
    }


@lru_cache(maxsize=4096)
def mission_words(mission: str) -> Int32[np.ndarray, " words"]:
    """A mission as numbers of words; the same one comes at every step of an episode."""
    return words.encode(mission, OBSERVATION["mission"])


def longest(room_size: int, rows: int, columns: int) -> int:
    """No episode of BabyAI in a house of so many rooms is longer."""
    return _MOST_WALKS * room_size**2 * rows * columns


def _horizon(env: Any) -> int:
    level: Any = env.unwrapped
    return level.max_steps or longest(level.room_size, level.num_rows, level.num_cols)
