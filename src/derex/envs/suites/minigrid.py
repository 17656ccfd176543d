"""MiniGrid and BabyAI adapter: `minigrid:MiniGrid-DoorKey-8x8-v0`, `babyai:BabyAI-GoToObj-v0`.

Observations are {"image", "direction", "mission"}: the agent's view of 7 x 7 tiles of (kind, colour, state), its
heading, and the mission as word ids. Only success gives a positive reward, and it terminates the episode.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

from derex.envs.suites.common import ObservationReader, check_name, encode, load
from derex.envs.suites.gymnasium import DrawnGymnasium, make_registered
from derex.types import Symbols, Words

VIEW = (7, 7, 3)
KINDS, COLOURS, STATES = 11, 6, 3
"""numbers of values of a tile: `OBJECT_TO_IDX`, `COLOR_TO_IDX`, `STATE_TO_IDX` of the package"""
SUCCESS = 0.05
"""below the smallest reward of a success, 0.1"""
OBSERVATION = {
    "direction": Symbols((1,), (4,)),
    "image": Symbols(VIEW, (KINDS, COLOURS, STATES)),
    "mission": Words(),
}

MOST_PLACES = 1000  # attempts to place the agent before the grid is drawn again
_MOST_WALKS = 8  # a mission has at most 2 parts of 2 tasks, each with 2 places to walk to


class MiniGrid(DrawnGymnasium):
    """One task. BabyAI's time limit depends on the mission; `spec.horizon` is the longest one."""

    def begin(self, seed: int) -> Any:
        """Starts an episode with a new grid and mission."""
        # BabyAI prints each rejected mission
        with contextlib.redirect_stdout(io.StringIO()), _limit_placement(self._env.unwrapped):
            return super().begin(seed)


@contextlib.contextmanager
def _limit_placement(level: Any) -> Iterator[None]:
    """Limits the number of attempts to place the agent.

    `RoomGrid.place_agent` never returns when a small room is full, which happens in about one in a thousand grids of
    SynthS5R2. BabyAI handles `RecursionError` by drawing a new grid.
    """
    place, tried = level.place_obj, 0

    def place_obj(obj: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal tried
        tried = tried + 1 if obj is None else 0  # None: placing the agent
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
    """Makes the MiniGrid or BabyAI task with this id."""
    load("minigrid", "minigrid")
    gymnasium = load("gymnasium", "minigrid")
    suite = suite_of(name)
    check_name(suite, name, names())
    env = make_registered(gymnasium.spec(name))
    view = env.observation_space["image"].shape
    if view != VIEW:
        raise ValueError(f"name: {name!r} shows {view}, expected {VIEW}.")
    level: Any = env.unwrapped
    return MiniGrid(
        env,
        f"{suite}:{name}",
        horizon=level.max_steps or longest(level.room_size, level.num_rows, level.num_cols),
        success_return=SUCCESS,
        reader=ObservationReader(OBSERVATION, read),
    )


def names() -> list[str]:
    """Returns the ids of MiniGrid and BabyAI."""
    load("minigrid", "minigrid")
    registry = load("gymnasium", "minigrid").registry
    return sorted(name for name in registry if name.startswith(("MiniGrid-", "BabyAI-")))


def suite_of(name: str) -> str:
    """Returns the suite prefix of a task id: "minigrid" or "babyai"."""
    return "babyai" if name.startswith("BabyAI") else "minigrid"


def read(seen: dict[str, Any]) -> dict[str, UInt8[np.ndarray, "..."] | Int32[np.ndarray, "..."]]:
    """Converts the package's observation to arrays of `OBSERVATION`."""
    return {
        "direction": np.asarray([seen["direction"]], np.uint8),
        "image": np.asarray(seen["image"], np.uint8),
        "mission": mission_words(seen["mission"]).copy(),
    }


@lru_cache(maxsize=4096)
def mission_words(mission: str | bytes) -> Int32[np.ndarray, " words"]:
    """Encodes a mission as word ids; cached, since every step of an episode repeats it."""
    return encode(mission, OBSERVATION["mission"])


def longest(room_size: int, rows: int, columns: int) -> int:
    """Returns an upper bound on the length of a BabyAI episode in a grid of rows x columns rooms."""
    return _MOST_WALKS * room_size**2 * rows * columns
