"""ViZDoom adapter: `vizdoom:VizdoomMyWayHome-v1`, rendered off-screen; append `@2` to repeat actions twice.

Observations are {"screen": 72 x 96 x 3} and, if the scenario has them, "gamevariables" (numbers such as health),
"notifications" (words), and "depth", "labels" and "automap" (images). Audio is dropped. The game shows nothing after
an episode is over, so the adapter applies the time limit itself: a truncated episode ends with a real observation, a
terminated one repeats the last screen.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped, UInt8

from derex.envs.interface import HostStep
from derex.envs.suites import common, gymnasium
from derex.envs.suites.common import ObservationReader, check_name, load, resize, split_number

HEIGHT, WIDTH = 72, 96
REPEATS = 4
SCREEN = "RES_160X120"  # the smallest supported; twice as fast as the default 320 x 240
SUCCESS = {"VizdoomMyWayHome": 0.5}
"""smallest return of a success: the armour gives 1, and each of up to 2100 frames costs 0.0001"""

ENGINE_FOLDER = "_vizdoom"
PICTURE_RANK = 3
_BUFFERS = {
    "screen": "screen_buffer",
    "depth": "depth_buffer",
    "labels": "labels_buffer",
    "automap": "automap_buffer",
    "notifications": "notifications_buffer",
    "gamevariables": "game_variables",
}
"""attribute of the game state for each part of an observation"""


class VizDoom(gymnasium.Gymnasium):
    """One scenario with repeated actions.

    The package's gymnasium environment creates the game and resets it. Steps call the game directly: a third of the
    environment's time outside the engine is spent on checks and copies that are redundant here.
    """

    def __init__(self, env: Any, name: str, repeats: int, success_return: float | None):
        """Wraps an environment of `vizdoom.gymnasium_wrapper` and takes over its time limit."""
        self._game, self._repeats = env.unwrapped.game, repeats
        frames = self._game.get_episode_timeout()
        self._game.set_episode_timeout(0)
        parts = env.observation_space.spaces.items()
        self._parts = {part: _make_reader(space, part) for part, space in parts if part != "audio"}
        spec = {part: reader.spec for part, reader in self._parts.items()}
        super().__init__(
            env,
            name,
            horizon=-(-frames // repeats) if frames else gymnasium.HORIZON,
            success_return=success_return,
            reader=ObservationReader(spec, lambda _: self._look()),
        )
        buttons = getattr(env.unwrapped, "button_map", None)
        self._buttons = (
            None if buttons is None else [np.asarray(each, np.float32).tolist() for each in buttons]
        )
        """of each discrete action; None: actions are the values of the buttons"""

    def begin(self, seed: int) -> Any:
        """Starts a new episode."""
        self._last, self._steps = super().begin(seed), 0
        return self._last

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Repeats the action for the frames of a step."""
        if self._buttons is None:
            pressed = np.asarray(self._writer.write(action), np.float32).tolist()
        else:
            pressed = self._buttons[common.choice(action, len(self._buttons))]
        reward = self._game.make_action(pressed, self._repeats)
        self._steps += 1
        if self._game.is_episode_finished():
            return HostStep(self._last, reward, True, False)
        self._last = self._look()
        return HostStep(self._last, reward, False, self._steps >= self.spec.horizon)

    def _look(self) -> Any:
        """Reads the current observation from the game."""
        self._state = state = self._game.get_state()  # kept for `picture`: there is none after the end
        return {name: part.read(getattr(state, _BUFFERS[name])) for name, part in self._parts.items()}

    def picture(self) -> UInt8[np.ndarray, "H W 3"]:
        """Returns the screen at the game's resolution."""
        screen = np.asarray(self._state.screen_buffer)
        return np.repeat(screen[..., None], 3, axis=2) if screen.ndim == common.GREY_RANK else screen


def make(name: str) -> VizDoom:
    """Makes the scenario with this id; a version that the package no longer has means the current one."""
    load("vizdoom.gymnasium_wrapper", "vizdoom")
    registry = load("gymnasium", "vizdoom")
    base, repeats = split_number("vizdoom", name, REPEATS, range(1, 17))
    present, stem = names(), re.sub(r"-v\d+$", "", base)
    if base not in present and stem != base:
        others = [each for each in present if re.sub(r"-v\d+$", "", each) == stem]
        base = others[-1] if others else base
    check_name("vizdoom", base, present)
    # The engine looks for this folder and then makes it: of two that start together, one crashes.
    Path(ENGINE_FOLDER).mkdir(exist_ok=True)
    env = gymnasium.make_registered(registry.spec(base), frame_skip=repeats, screen_resolution=SCREEN)
    return VizDoom(env, f"vizdoom:{name}", repeats, SUCCESS.get(stem.removesuffix("-MultiBinary")))


def names() -> list[str]:
    """Returns the ids of the package; some need the files of the commercial game."""
    load("vizdoom.gymnasium_wrapper", "vizdoom")
    return sorted(name for name in load("gymnasium", "vizdoom").registry if name.startswith("Vizdoom"))


def _make_reader(space: Any, name: str) -> ObservationReader:
    """A reader for one part: images are resized, other parts follow their space."""
    if len(space.shape or ()) != PICTURE_RANK:
        return gymnasium.make_reader(space, name)
    channels = space.shape[-1]
    return ObservationReader(
        jax.ShapeDtypeStruct((HEIGHT, WIDTH, channels), np.uint8),
        lambda seen: resize(seen.reshape(*seen.shape[:2], channels), HEIGHT, WIDTH),
    )
