"""Atari 2600 adapter: `atari:ALE/MontezumaRevenge-v5`; append `@1` for single frames instead of a stack of 4.

Standard preprocessing: each action is repeated for 4 frames; the pixelwise maximum of the last two removes flicker;
frames are greyscale, 84 x 84, and the last 4 are stacked as channels. Sticky actions follow the id (0.25 for v5).
Losing a life does not end an episode, rewards are unclipped, and episodes are truncated after 108 000 frames.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped, UInt8

from derex.envs.interface import HostStep
from derex.envs.suites.common import ObservationReader, check_name, load, resize, split_number
from derex.envs.suites.gymnasium import DrawnGymnasium, make_registered

SIDE = 84
REPEATS = 4
STACK = 4
MOST_FRAMES = 108_000


class Atari(DrawnGymnasium):
    """One Atari game, drawn in colour."""

    def __init__(self, env: Any, name: str, stack: int, most_frames: int):
        """Wraps an `ale_py` environment made with `frameskip=1` and `obs_type="grayscale"`."""
        reader = ObservationReader(jax.ShapeDtypeStruct((SIDE, SIDE, stack), np.uint8), self._shrink)
        super().__init__(env, name, horizon=-(-most_frames // REPEATS), reader=reader)
        self._stack = stack

    def begin(self, seed: int) -> UInt8[np.ndarray, "84 84 stack"]:
        """Starts a new game; the first frame fills all channels."""
        self._frames = np.repeat(super().begin(seed), self._stack, axis=-1)
        return self._frames

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Repeats the action for four frames."""
        button = self._writer.write(action)
        total, terminated, truncated = 0.0, False, False
        before: Any = None
        after: Any = None
        for _ in range(REPEATS):
            before = after
            after, reward, terminated, truncated, _ = self._env.step(button)
            total += float(reward)
            if terminated or truncated:
                break
        brighter = after if before is None else np.maximum(before, after)
        self._frames = np.concatenate([self._frames[..., 1:], self._shrink(brighter)], axis=-1)
        return HostStep(self._frames, total, bool(terminated), bool(truncated) and not terminated)

    @staticmethod
    def _shrink(frame: Any) -> UInt8[np.ndarray, "84 84 1"]:
        return resize(np.asarray(frame, np.uint8)[..., None], SIDE, SIDE)


def make(name: str) -> Atari:
    """Makes the game with this id."""
    base, stack = split_number("atari", name, STACK, (1, 2, 3, 4))
    check_name("atari", base, names())
    spec = load("gymnasium", "atari").spec(base)
    env = make_registered(spec, frameskip=1, obs_type="grayscale")
    return Atari(env, f"atari:{name}", stack, spec.kwargs.get("max_num_frames_per_episode") or MOST_FRAMES)


def names() -> list[str]:
    """Returns the ids of all games."""
    package, gymnasium = load("ale_py", "atari"), load("gymnasium", "atari")
    gymnasium.register_envs(package)
    return sorted(name for name in gymnasium.registry if name.startswith("ALE/"))
