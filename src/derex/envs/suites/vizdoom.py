"""ViZDoom: `vizdoom:VizdoomMyWayHome-v1`, first-person pictures without a window; `@2` behind it repeats actions twice.

Observations are {"screen": 72 x 96 x 3} and, where a scenario has them, "gamevariables" (numbers such as health),
"notifications" (words), and "depth", "labels" and "automap" (pictures). Sound is left out. The game shows nothing once
an episode is over, so the time limit is ours: a cut episode ends with what was really seen then. After an end by the
rules the last screen is shown again.
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
from derex.envs.suites import spaces as actions
from derex.envs.suites.common import load, resized, split_number, unknown
from derex.envs.suites.gymnasium import HORIZON, Gymnasium, made

HEIGHT, WIDTH = 72, 96
REPEATS = 4
SCREEN = "RES_160X120"  # the smallest that the game draws; twice as fast as the usual 320 x 240
SUCCESS = {"VizdoomMyWayHome": 0.5}
"""returns from which an episode counts: the armour is worth 1, and each of up to 2100 frames costs 0.0001"""

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
"""what the game calls the parts of an observation"""


class VizDoom:
    """One scenario, each action held for some frames.

    The package's environment makes the game and begins its episodes. Steps are asked of the game itself: a third of the
    time that its environment takes outside of the engine goes into checks and copies that are made here, or not needed.
    """

    def __init__(self, env: Any, name: str, repeats: int, success_return: float | None):
        """Takes an environment of `vizdoom.gymnasium_wrapper` that is made, and takes over its time limit."""
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
        self._state: Any = None  # what the game showed last; it shows nothing after the end
        self._steps = 0
        self._last: Any = None

    def begin(self, seed: int) -> Any:
        """Starts the scenario anew."""
        self._last, self._steps = self._task.begin(seed), 0
        return self._last

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Holds the action for the frames of a step."""
        game = self._game
        reward = game.make_action(self._pressed(action), self._repeats)
        self._steps += 1
        if game.is_episode_finished():
            return HostStep(self._last, reward, True, False)
        self._last = self._look()
        return HostStep(self._last, reward, False, self._steps >= self.spec.horizon)

    def _look(self) -> Any:
        """What the game shows now, as our specification has it."""
        self._state = state = self._game.get_state()
        return {name: part.read(getattr(state, _BUFFERS[name])) for name, part in self._parts.items()}

    def picture(self) -> UInt8[np.ndarray, "H W 3"]:
        """The screen as the game draws it."""
        screen = np.asarray(self._state.screen_buffer)
        return np.repeat(screen[..., None], 3, axis=2) if screen.ndim == spaces.GREY_RANK else screen

    def close(self) -> None:
        """Ends the game."""
        self._task.close()


def make(name: str) -> VizDoom:
    """The scenario of that id. The number of a version that the package has given up means the present one."""
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
    """Ids of the package; those of the commercial game need its files, which nobody may pass on."""
    load("vizdoom.gymnasium_wrapper", "vizdoom")
    return sorted(name for name in load("gymnasium", "vizdoom").registry if name.startswith("Vizdoom"))


def _parts(space: Any) -> dict[str, spaces.ObservationReader]:
    """Pictures at our size, all else as its space says; each is read from the game's own buffer."""
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
    """From our action to how far the game's buttons are pressed, one number for each.

    Where scenarios number their actions, the package says which buttons each stands for; other actions are the buttons.
    """
    buttons = getattr(env.unwrapped, "button_map", None)
    if buttons is None:
        write = spaces.acts(env.action_space).write
        return lambda action: np.asarray(write(action), np.float32).tolist()
    pressed = [np.asarray(each, np.float32).tolist() for each in buttons]
    return lambda action: pressed[actions.choice(action, len(pressed))]
