"""DM-Hard-8 adapter: `hard8:throw_across`, played on a dm_env_rpc server (the suite is published as a container).

Start the container with its port 10000 published. Set `DEREX_HARD8_ADDRESS` if it is not localhost:10000, or name the
server: `hard8:throw_across@localhost:10001`. `hard8_connection.Options` has the other settings.

Tested against a test server with the published specification, not against the real container.

An action is nine numbers. Observations follow the server's specs: RGB_INTERLEAVED at 72 x 96, numbers such as
HAND_FORCE as vectors, text as words; `Score`, `reward` and `discount` are not observed. Every answer is validated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8

from derex.envs.interface import HostStep
from derex.envs.suites import dm_env
from derex.envs.suites.common import check_name, load, write_numbers
from derex.envs.suites.hard8_connection import (
    Connection,
    Options,
    ServerError,
    Unreachable,
    connect,
    load_messages,
)
from derex.types import EnvironmentSpec

HEIGHT, WIDTH = 72, 96
ACTIONS: dict[str, tuple[float, float]] = {
    "MOVE_BACK_FORWARD": (-1.0, 1.0),
    "STRAFE_LEFT_RIGHT": (-1.0, 1.0),
    "LOOK_DOWN_UP": (-1.0, 1.0),
    "LOOK_LEFT_RIGHT": (-1.0, 1.0),
    "HAND_ROTATE_AROUND_FORWARD": (-1.0, 1.0),
    "HAND_ROTATE_AROUND_RIGHT": (-1.0, 1.0),
    "HAND_ROTATE_AROUND_UP": (-1.0, 1.0),
    "HAND_PUSH_PULL": (-10.0, 10.0),
    "HAND_GRIP": (0.0, 1.0),
}
"""Names and bounds. The server keeps the last value of each, so every step sends all of them."""
LOW, HIGH = np.transpose(list(ACTIONS.values()))
WRITER = write_numbers(LOW, HIGH, np.float64)
PICTURE = "RGB_INTERLEAVED"
HIDDEN = ("reward", "discount", "Score")
"""parts of an answer that the agent does not observe"""
HORIZON = 10_000
"""upper bound; the server ends episodes earlier"""
SUCCESS = 1e-3
"""only reaching the apple is rewarded"""
TRIES = 3
"""attempts to start an episode, each with a new connection"""

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
"""level names, with their titles in the paper"""


class World:
    """A world on a server, created and joined."""

    def __init__(self, connection: Connection, level: str, seed: int):
        """Creates the world, joins it and checks its specs."""
        from dm_env_rpc.v1 import dm_env_utils, spec_manager, tensor_utils

        def settings(**values: Any) -> dict[str, Any]:
            return {name: tensor_utils.pack_tensor(value) for name, value in values.items()}

        self._connection, rpc = connection, load_messages()
        with _checked("join"):
            level_settings = settings(seed=seed, episodeId=0, levelName=level)
            self._name = connection.send(rpc.CreateWorldRequest(settings=level_settings)).world_name
            size = settings(width=WIDTH, height=HEIGHT)
            self._specs = connection.send(rpc.JoinWorldRequest(world_name=self._name, settings=size)).specs
        with _checked("specs"):
            self._acts = spec_manager.SpecManager(self._specs.actions)
            self._sees = spec_manager.SpecManager(self._specs.observations)
            seen = {name: self._sees.name_to_spec(name) for name in sorted(self._sees.names())}
            shown = {name: spec for name, spec in seen.items() if name not in HIDDEN}
            self.shown = {
                name: _at_least_one(dm_env_utils.tensor_spec_to_dm_env_spec(spec))
                for name, spec in shown.items()
            }
            """dm_env specs of the agent's observations"""
            missing = [action for action in ACTIONS if action not in self._acts.names()]
        if missing or not {"reward", "Score"} & set(seen):
            lack = f"does not take {', '.join(missing)}" if missing else "shows neither a reward nor a Score"
            raise ServerError(f"specs: the server {lack}; this is not a DM-Hard-8 server.")
        picture = self.shown.get(PICTURE)
        if picture is None or picture.shape != (HEIGHT, WIDTH, 3) or picture.dtype != np.uint8:
            raise ServerError(
                f"specs: expected {PICTURE} of {HEIGHT} x {WIDTH} x 3 bytes, the server has {picture}."
            )

    def reset(self) -> dict[str, Any]:
        """Starts a new episode and returns the observations of its first step."""
        with _checked("reset"):
            answer = self._connection.send(load_messages().ResetRequest())
            if answer.specs != self._specs:
                raise ServerError("reset: the server changed its specs between two episodes.")
        observations, _, over = self.step(dict.fromkeys(ACTIONS, 0.0))
        if over:
            raise ServerError("reset: the server ended the new episode at its first step.")
        return observations

    def step(self, values: dict[str, float]) -> tuple[dict[str, Any], float, bool]:
        """Takes one step with a value of every action; returns observations, discount and whether it was the last."""
        rpc = load_messages()
        with _checked("step"):
            # in the shape of the server's specs: scalars or vectors of length 1
            packed = {
                name: np.full(tuple(self._acts.name_to_spec(name).shape), value)
                for name, value in values.items()
            }
            request = rpc.StepRequest(
                requested_observations=sorted(self._sees.name_to_uid(name) for name in self._sees.names()),
                actions=self._acts.pack(packed),
            )
            answer = self._connection.send(request)
            observations = dict(self._sees.unpack(answer.observations))
            missing = sorted(set(self._sees.names()) - set(observations))
            if missing:
                raise ServerError(f"step: the server left out {', '.join(missing)}.")
            states = rpc.EnvironmentStateType
            if answer.state not in (states.RUNNING, states.TERMINATED, states.INTERRUPTED):
                raise ServerError(f"step: the server answered the state {answer.state}.")
            usual = 0.0 if answer.state == states.TERMINATED else 1.0
            discount = _first(observations.get("discount", usual))
        return observations, discount, answer.state != states.RUNNING

    def leave(self) -> None:
        """Leaves the world and destroys it on the server."""
        with _checked("leave"):
            self._connection.send(load_messages().LeaveWorldRequest())
            self._connection.send(load_messages().DestroyWorldRequest(world_name=self._name))


def _first(value: Any) -> float:
    return float(np.ravel(value)[0])


def _at_least_one(spec: Any) -> Any:
    """The dm_env spec; a vector of length 1 in place of a single number."""
    from dm_env import specs

    plain = not isinstance(spec, specs.DiscreteArray | specs.StringArray) and spec.shape == ()
    return specs.Array((1,), spec.dtype, spec.name) if plain else spec


@contextmanager
def _checked(what: str) -> Iterator[None]:
    """Converts errors of dm_env_rpc, and of invalid answers, to `ServerError`."""
    from dm_env_rpc.v1 import error

    try:
        yield
    except error.DmEnvRpcError as problem:
        raise ServerError(
            f"{what}: the server refused: {problem.message} (code {problem.code})."
        ) from problem
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as problem:
        raise ServerError(f"{what}: the server's answer makes no sense: {problem!r}") from problem


class Hard8:
    """One level on a server. After a `ServerError` the next episode uses a new connection."""

    def __init__(self, level: str, name: str, options: Options):
        """Connects, creates a world and reads its specs."""
        self._level, self._options = level, options
        self._connection: Connection | None = None
        self._world: World | None = None
        self._used = False
        self._image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        try:
            self._specs = self._join(seed=0).shown
            self._reader = dm_env.make_reader(self._specs)
        except BaseException:
            self._drop()  # the caller gets no object to close
            raise
        self.spec = EnvironmentSpec(name, self._reader.spec, WRITER.spec, HORIZON, SUCCESS)

    def begin(self, seed: int) -> Any:
        """Starts a new episode, reconnecting if necessary."""
        for number in range(TRIES):
            try:
                return self._begin(seed)
            except ServerError as error:
                self._drop()
                if number == TRIES - 1 or isinstance(error, Unreachable):
                    raise
        raise AssertionError("unreachable")

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Repeats the action for `Options.repeats` server steps and sums the rewards."""
        values = dict(zip(ACTIONS, WRITER.write(action).tolist(), strict=True))
        if self._world is None:
            raise ServerError("act: there is no episode under way. Call begin.")
        try:
            reward, discount, over = 0.0, 1.0, False
            for _ in range(self._options.repeats):
                observations, factor, over = self._world.step(values)
                reward, discount = reward + self._reward(observations), discount * factor
                if over:
                    break
            seen = self._read(observations)
        except ServerError:
            self._drop()
            raise
        return HostStep(seen, reward, over and discount == 0, over and discount != 0)

    def picture(self) -> UInt8[np.ndarray, "H W 3"]:
        """Returns the agent's current view."""
        return self._image

    def close(self) -> None:
        """Leaves the world and closes the connection; later calls do nothing."""
        with suppress(ServerError):  # the server may be gone already
            if self._world is not None:
                self._world.leave()
        self._drop()

    def _begin(self, seed: int) -> Any:
        world = self._world
        if world is None or not self._used or self._options.fresh_worlds:
            world = self._join(seed)
            if world.shown != self._specs:
                raise ServerError(f"observations: {self._options.address} changed its observation specs.")
        self._used = True
        observations = world.reset()
        self._score = _first(observations.get("Score", 0.0))
        return self._read(observations)

    def _join(self, seed: int) -> World:
        """Joins a new world, after leaving the one before."""
        if self._world is not None:
            self._world.leave()
            self._world = None
        if self._connection is None:
            self._connection = connect(self._options)
        self._world = World(self._connection, self._level, seed)
        return self._world

    def _drop(self) -> None:
        connection, self._connection, self._world, self._used = self._connection, None, None, False
        if connection is not None:
            connection.close()

    def _reward(self, observations: dict[str, Any]) -> float:
        """Returns the server's reward, or else the increase of its score."""
        before, self._score = self._score, _first(observations.get("Score", 0.0))
        reward = _first(observations["reward"]) if "reward" in observations else self._score - before
        if not np.isfinite(reward):
            raise ServerError(f"reward: {self._options.address} answered {reward}, expected a finite number.")
        return reward

    def _read(self, observations: dict[str, Any]) -> Any:
        try:
            seen = self._reader.read(observations)
        except (ValueError, KeyError) as error:
            raise ServerError(
                f"observation: {self._options.address} sent an observation that does not match its specs: {error}"
            ) from error
        wrong = [name for name, part in seen.items() if not np.all(np.isfinite(part))]
        if wrong:
            raise ServerError(
                f"observation: {self._options.address} returned values that are not finite in {wrong}."
            )
        self._image = seen[PICTURE]
        return seen


def make(name: str) -> Hard8:
    """Makes a level, given by its name or its title in the paper, optionally with `@host:port` of the server."""
    load("dm_env_rpc", "hard8")
    asked, at, address = name.partition("@")
    by_name = {level: level for level in LEVELS} | {_slug(title): level for level, title in LEVELS.items()}
    check_name("hard8", _slug(asked), by_name)
    options = Options.from_environment(**({"address": address} if at else {}))
    return Hard8(by_name[_slug(asked)], f"hard8:{name}", options)


def names() -> list[str]:
    """Returns the names of the eight levels."""
    return list(LEVELS)


def _slug(title: str) -> str:
    return title.strip().lower().replace(" ", "_")
