"""ViZDoom adapter: `vizdoom:VizdoomMyWayHome-v1`, rendered off-screen; append `@2` to repeat actions twice.

Observations are {"screen": 72 x 96 x 3} and, if the scenario has them, "gamevariables" (numbers such as health),
"notifications" (words), and "depth", "labels" and "automap" (images). Audio is dropped. The game shows nothing after
an episode is over, so the adapter applies the time limit itself: a truncated episode ends with a real observation, a
terminated one repeats the last screen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped, UInt8

from derex.envs.interface import HostStep
from derex.envs.suites import spaces
from derex.envs.suites.common import load, resized, split_number, unknown
from derex.envs.suites.gymnasium import HORIZON, Gymnasium, made

HEIGHT, WIDTH = 72, 96
REPEATS = 4
SCREEN = "RES_160X120"  # the smallest supported; twice as fast as the default 320 x 240
SUCCESS = {"VizdoomMyWayHome": 0.5}
"""smallest return of a success: the armour gives 1, and each of up to 2100 frames costs 0.0001"""

PICTURE_RANK = 3
_LEFT_OUT = ("audio",)
_BUFFERS = {
    "screen": "screen_buffer",
    "depth": "depth_buffer",
    "labels": "labels_buffer",
    "automap": "automap_buffer",
    "notifications": "notifications_buffer",
    "gamevariables": "game_variables",
}
"""attribute of the game state for each part of an observation"""


class VizDoom:
    """One scenario with repeated actions.

    The package's gymnasium environment creates the game and resets it. Steps call the game directly: a third of the
    environment's time outside the engine is spent on checks and copies that are redundant here.
    """

    def __init__(self, env: Any, name: str, repeats: int, success_return: float | None):
        """Wraps an environment of `vizdoom.gymnasium_wrapper` and takes over its time limit."""
        self._game = env.unwrapped.game
        frames = self._game.get_episode_timeout()
        self._game.set_episode_timeout(0)
        horizon = -(-frames // repeats) if frames else HORIZON
        self._parts = _parts(env.observation_space)
        seen = spaces.ObservationReader(
            {part: of.spec for part, of in self._parts.items()}, lambda _: self._look()
        )
        self._task = Gymnasium(env, name, horizon=horizon, success_return=success_return, seen=seen)
        self.spec = self._task.spec
        self._repeats, self._pressed = repeats, _buttons(env)
        self._state: Any = None  # the last game state; there is none after the end
        self._steps = 0
        self._last: Any = None

    def begin(self, seed: int) -> Any:
        """Starts a new episode."""
        self._last, self._steps = self._task.begin(seed), 0
        return self._last

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Repeats the action for the frames of a step."""
        game = self._game
        reward = game.make_action(self._pressed(action), self._repeats)
        self._steps += 1
        if game.is_episode_finished():
            return HostStep(self._last, reward, True, False)
        self._last = self._look()
        return HostStep(self._last, reward, False, self._steps >= self.spec.horizon)

    def _look(self) -> Any:
        """Reads the current observation from the game."""
        self._state = state = self._game.get_state()
        return {name: part.read(getattr(state, _BUFFERS[name])) for name, part in self._parts.items()}

    def picture(self) -> UInt8[np.ndarray, "H W 3"]:
        """Returns the screen at the game's resolution."""
        screen = np.asarray(self._state.screen_buffer)
        return np.repeat(screen[..., None], 3, axis=2) if screen.ndim == spaces.GREY_RANK else screen

    def close(self) -> None:
        """Closes the game."""
        self._task.close()


def make(name: str) -> VizDoom:
    """Makes the scenario with this id; a version that the package no longer has means the current one."""
    load("vizdoom.gymnasium_wrapper", "vizdoom")
    gymnasium = load("gymnasium", "vizdoom")
    base, repeats = split_number("vizdoom", name, REPEATS, range(1, 17))
    present = names()
    stem = re.sub(r"-v\d+$", "", base)
    found = [each for each in present if each == base] or [
        each for each in present if re.fullmatch(re.escape(stem) + r"-v\d+", each)
    ]
    if not found or stem == base:
        raise unknown("vizdoom", base, present)
    env = made(gymnasium.spec(found[-1]), frame_skip=repeats, screen_resolution=SCREEN)
    return VizDoom(env, f"vizdoom:{name}", repeats, SUCCESS.get(stem.removesuffix("-MultiBinary")))


def names() -> list[str]:
    """Returns the ids of the package; some need the files of the commercial game."""
    load("vizdoom.gymnasium_wrapper", "vizdoom")
    return sorted(name for name in load("gymnasium", "vizdoom").registry if name.startswith("Vizdoom"))


def _parts(space: Any) -> dict[str, spaces.ObservationReader]:
    """Returns a reader for each part: images are resized, other parts follow their space."""
    return {
        name: _picture(part) if len(part.shape or ()) == PICTURE_RANK else spaces.observations(part)
        for name, part in space.spaces.items()
        if name not in _LEFT_OUT
    }


def _picture(space: Any) -> spaces.ObservationReader:
    channels = space.shape[-1]
    spec = jax.ShapeDtypeStruct((HEIGHT, WIDTH, channels), np.uint8)
    return spaces.ObservationReader(
        spec, lambda seen: resized(seen.reshape(*seen.shape[:2], channels), HEIGHT, WIDTH)
    )


def _buttons(env: Any) -> Callable[[Any], list[float]]:
    """Returns a function from an action to the values of the game's buttons.

    A discrete action is looked up in the package's `button_map`; other actions are the button values themselves.
    """
    buttons = getattr(env.unwrapped, "button_map", None)
    if buttons is None:
        write = spaces.acts(env.action_space).write
        return lambda action: np.asarray(write(action), np.float32).tolist()
    pressed = [np.asarray(each, np.float32).tolist() for each in buttons]
    return lambda action: pressed[spaces.choice(action, len(pressed))]
