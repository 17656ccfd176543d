"""MiniGrid and BabyAI: `minigrid:MiniGrid-DoorKey-8x8-v0`, `babyai:BabyAI-GoToObj-v0`; the mission is read as words.

Observations are those of the package, {"image", "direction", "mission"}: 7 x 7 tiles of (kind, colour, state) as seen
by the agent, where it faces, and what it is told. A reward above 0 comes with success only, and ends the episode.
"""

from __future__ import annotations

import contextlib
import io
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

from derex.envs import words
from derex.envs.suites.gymnasium import DrawnGymnasium, made
from derex.envs.suites.spaces import Seen
from derex.envs.suites.support import load, unknown
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

_MOST_WALKS = 8  # a mission has at most two parts, of two tasks, with two places to walk to each


class MiniGrid(DrawnGymnasium):
    """One task. BabyAI draws the time limit of each episode by its mission; the horizon is the longest of them."""

    def begin(self, seed: int) -> Any:
        """A new grid and a new mission."""
        with contextlib.redirect_stdout(
            io.StringIO()
        ):  # BabyAI prints each mission that it thought better of
            return super().begin(seed)


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
        env, f"{suite}:{name}", horizon=_horizon(env), success_return=SUCCESS, seen=Seen(OBSERVATION, read)
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
