"""DM-Hard-8: `hard8:throw_across`, played on a server that speaks dm_env_rpc (the suite comes as a container).

Start the container with its port 10000 published, and set `DEREX_HARD8_ADDRESS` if that is not localhost:10000, or
name the server: `hard8:throw_across@localhost:10001`. `hard8_connection.Options` has the other settings.

Tested against a server of ours with the published specification; it has not been run on the real container.

An action is nine numbers. What is seen is what the server says that it shows: RGB_INTERLEAVED at 72 x 96, numbers
such as HAND_FORCE as vectors, text as words. `Score`, `reward` and `discount` are not shown to the agent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8

from derex.envs.interface import HostStep
from derex.envs.suites import actions, dm_specs
from derex.envs.suites.hard8_connection import Connection, Options, ServerError, Unreachable, connect
from derex.envs.suites.hard8_world import ACTIONS, World, world_of
from derex.envs.suites.support import load, unknown
from derex.types import EnvironmentSpec

HORIZON = 10_000
"""the server ends episodes sooner"""
SUCCESS = 1e-3
"""reaching the apple is the only thing that is rewarded"""
TRIES = 3
"""times that a new episode is tried to begin, each time with a new connection"""

LEVELS = {
    "ball_room_navigation_cubes": "Navigation Cubes",
    "drawbridge_max3fork_safe_randomwall": "Drawbridge",
    "reach_wall": "Wall Sensor",
    "reach_wall_require_stack": "Wall Sensor Stack",
    "sensorhidden_color_novary_greywall": "Remember Sensor",
    "slot_colored_block": "Push Blocks",
    "throw_across": "Throw Across",
    "use_object_knock_down": "Baseball",
}
"""levels, and what the paper calls them"""

_BOUNDS = actions.make_range(
    np.asarray([low for low, _ in ACTIONS.values()]), np.asarray([high for _, high in ACTIONS.values()])
)


class Hard8:
    """One level on a server. Errors of the server are raised; the next episode begins with a new connection."""

    def __init__(self, level: str, name: str, options: Options):
        """Connects, makes a world and asks it what it shows."""
        self._level, self._options = level, options
        self._connection: Connection | None = None
        self._world: World | None = None
        self._used = False
        self._score, self._image = 0.0, None
        try:
            self._specs = self._joined(seed=0).shown()
            self._seen = dm_specs.observations(self._specs)
        except BaseException:
            self._drop()  # whoever is told has nothing to close
            raise
        self.spec = EnvironmentSpec(name, self._seen.spec, _BOUNDS.spec, HORIZON, SUCCESS)

    def begin(self, seed: int) -> Any:
        """A new episode, if need be on a new connection."""
        for number in range(TRIES):
            try:
                return self._begun(seed)
            except ServerError as error:
                self._drop()
                if number == TRIES - 1 or isinstance(error, Unreachable):
                    raise
        raise AssertionError("unreachable")

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Holds the action for some steps of the server."""
        values = dict(zip(ACTIONS, _BOUNDS.scaled(action).tolist(), strict=True))
        if self._world is None:
            raise ServerError("act: there is no episode under way. Call begin.")
        try:
            reward, discount = 0.0, 1.0
            for _ in range(self._options.repeats):
                step = self._world.step(values)
                reward += self._reward(step.observations)
                discount *= step.discount
                if step.over:
                    break
            seen = self._read(step.observations)
        except ServerError:
            self._drop()
            raise
        return HostStep(seen, reward, step.over and discount == 0, step.over and discount != 0)

    def picture(self) -> UInt8[np.ndarray, "H W 3"]:
        """What the agent sees."""
        return np.zeros((72, 96, 3), np.uint8) if self._image is None else self._image

    def close(self) -> None:
        """Leaves the world and hangs up; again does no harm."""
        world, self._world = self._world, None
        try:
            if world is not None:
                world.leave()
        except ServerError:
            pass  # gone already
        finally:
            self._drop()

    def _begun(self, seed: int) -> Any:
        world = self._world
        if world is None or not self._used or self._options.fresh_worlds:
            world = self._joined(seed)
            if world.shown() != self._specs:
                raise ServerError(f"observations: {self._options.address} shows other things than before.")
        self._used = True
        step = world.reset()
        self._score = step.observations.get("Score", 0.0)
        return self._read(step.observations)

    def _joined(self, seed: int) -> World:
        if self._world is not None:
            self._world.leave()
            self._world = None
        if self._connection is None:
            self._connection = connect(self._options)
        self._world = world_of(self._connection, self._level, seed)
        return self._world

    def _drop(self) -> None:
        connection, self._connection, self._world, self._used = self._connection, None, None, False
        if connection is not None:
            connection.close()

    def _reward(self, observations: dict[str, Any]) -> float:
        """The server's, or how much the score has risen."""
        before, self._score = self._score, float(np.ravel(observations.get("Score", 0.0))[0])
        reward = (
            observations["reward"] if "reward" in observations else self._score - float(np.ravel(before)[0])
        )
        value = float(np.ravel(reward)[0])
        if not np.isfinite(value):
            raise ServerError(f"reward: {self._options.address} answered {value}, expected a finite number.")
        return value

    def _read(self, observations: dict[str, Any]) -> Any:
        try:
            seen = self._seen.read(observations)
        except (ValueError, KeyError) as error:
            raise ServerError(
                f"observation: {self._options.address} does not keep to its specs: {error}"
            ) from error
        wrong = [name for name, part in seen.items() if not np.all(np.isfinite(part))]
        if wrong:
            raise ServerError(
                f"observation: {self._options.address} answered numbers that are not finite in {wrong}."
            )
        self._image = seen["RGB_INTERLEAVED"]
        return seen


def make(name: str) -> Hard8:
    """The level of that name, or of the paper's name for it, on the server behind the @ if there is one."""
    load("dm_env_rpc", "hard8")
    asked, at, address = name.partition("@")
    by_name = {level: level for level in LEVELS} | {_slug(title): level for level, title in LEVELS.items()}
    level = by_name.get(_slug(asked))
    if level is None:
        raise unknown("hard8", asked, by_name)
    return Hard8(level, f"hard8:{name}", Options.from_environment(**({"address": address} if at else {})))


def names() -> list[str]:
    """The eight levels."""
    return list(LEVELS)


def _slug(title: str) -> str:
    return title.strip().lower().replace(" ", "_")
