"""Stands in for `deepmind_lab` where it is not built: the published interface, and no patience with its misuse.

The world behind it is a corridor. Moving forward is rewarded at every third place, and an episode lasts as long as its
seed says.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

LEVELS = Path(__file__).with_name("dmlab30_levels.txt").read_text().split()
ACTION_SPEC = [
    {"name": "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", "min": -512, "max": 512},
    {"name": "LOOK_DOWN_UP_PIXELS_PER_FRAME", "min": -512, "max": 512},
    {"name": "STRAFE_LEFT_RIGHT", "min": -1, "max": 1},
    {"name": "MOVE_BACK_FORWARD", "min": -1, "max": 1},
    {"name": "FIRE", "min": 0, "max": 1},
    {"name": "JUMP", "min": 0, "max": 1},
    {"name": "CROUCH", "min": 0, "max": 1},
]
opened: list["Lab"] = []


class Lab:
    """A level; `log` tells what was asked of it."""

    def __init__(
        self,
        level: str,
        observations: list[str],
        config: dict[str, str] = {},  # noqa: B006 (the published default)
        renderer: str = "software",
        level_cache: Any = None,
        temp_folder: str | None = None,
    ):
        if not isinstance(level, str) or level not in [f"contributed/dmlab30/{name}" for name in LEVELS]:
            raise RuntimeError(f"Invalid level: {level!r}")
        if not isinstance(observations, list) or set(observations) - {"RGB_INTERLEAVED", "RGB", "INSTR"}:
            raise RuntimeError(f"Unknown observation in {observations!r}")
        if not all(isinstance(text, str) for pair in config.items() for text in pair):
            raise TypeError(f"config: keys and values must be str, got {config!r}")
        if not {"width", "height"} <= set(config):
            raise RuntimeError("width and height must be set")
        if level.endswith("_test") and config.get("allowHoldOutLevels") != "true":
            raise RuntimeError("hold-out levels are not allowed")
        if renderer not in ("software", "hardware"):
            raise ValueError(f"renderer: {renderer!r}")
        self.level, self.config, self.wanted, self.log = level, dict(config), observations, []
        self._width, self._height = int(config["width"]), int(config["height"])
        self._picture = np.zeros((self._height, self._width, 3), np.uint8)
        self._cache, self._temp = level_cache, temp_folder
        self._running = self._closed = False
        opened.append(self)

    def reset(self, episode: int = -1, seed: int | None = None) -> bool:
        self._check_open()
        if type(episode) is not int or (seed is not None and type(seed) is not int):
            raise TypeError("episode and seed must be int")
        if seed is not None and not 0 <= seed < 2**31 - 1:
            raise ValueError(f"seed: {seed}")
        self._compile()
        self._seed = 0 if seed is None else seed
        self._frames, self._place, self._angle, self._running = 0, 0, 0, True
        self._length = 40 + self._seed % 20
        self.log.append(("reset", seed))
        return True

    def step(self, action: np.ndarray, num_steps: int = 1) -> float:
        self._check_open()
        if not self._running:
            raise RuntimeError("Environment in wrong status to advance.")
        if not isinstance(action, np.ndarray) or action.dtype != np.intc or action.shape != (7,):
            raise ValueError(f"action must be an array of 7 np.intc, got {action!r}")
        if any(
            not spec["min"] <= value <= spec["max"] for spec, value in zip(ACTION_SPEC, action, strict=True)
        ):
            raise ValueError(f"action out of bounds: {action}")
        if type(num_steps) is not int or num_steps < 1:
            raise TypeError(f"num_steps: {num_steps!r}")
        self.log.append(("step", tuple(action.tolist()), num_steps))
        reward = 0.0
        for _ in range(num_steps):
            self._frames += 1
            self._place += int(action[3])
            self._angle += int(action[0])
            reward += float(action[3] > 0 and self._place % 3 == 0)
            self._running = self._frames < self._length
            if not self._running:
                break
        return reward

    def is_running(self) -> bool:
        self._check_open()
        return self._running

    def observations(self) -> dict[str, Any]:
        self._check_open()
        if not self._running:
            raise RuntimeError("Environment in wrong status for call to observations()")
        self._picture[...] = (
            self._seed + self._place + 2 * self._angle + np.arange(self._width)[:, None]
        ) % 251
        seen = {"RGB_INTERLEAVED": self._picture, "INSTR": f"Go to place {self._seed % 7}!"}
        return {name: seen[name] for name in self.wanted}

    def observation_spec(self) -> list[dict[str, Any]]:
        return [
            {"name": "RGB_INTERLEAVED", "shape": (self._height, self._width, 3), "dtype": np.uint8},
            {"name": "INSTR", "shape": (), "dtype": str},
        ]

    def action_spec(self) -> list[dict[str, Any]]:
        return ACTION_SPEC

    def close(self) -> None:
        self._check_open()
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("wrong environment status: closed")

    def _compile(self) -> None:
        if self._cache is None:
            return
        with tempfile.TemporaryDirectory(dir=self._temp) as folder:
            path = str(Path(folder) / "level.pk3")
            kept = self._cache.fetch(f"key/of {self.level}", path)
            if type(kept) is not bool or kept != Path(path).exists():
                raise RuntimeError(f"fetch returned {kept!r}")
            if not kept:
                self.log.append(("compile",))
                Path(path).write_bytes(self.level.encode())
                self._cache.write(f"key/of {self.level}", path)
            elif Path(path).read_bytes() != self.level.encode():
                raise RuntimeError("the cache returned another level")
