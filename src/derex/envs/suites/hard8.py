"""DM-Hard-8 adapter: `hard8:throw_across`, played on a dm_env_rpc server (the suite is published as a container).

Start the container with its port 10000 published. Set `DEREX_HARD8_ADDRESS` if it is not localhost:10000, or name the
server: `hard8:throw_across@localhost:10001`. `hard8_connection.Options` has the other settings.

Tested against a test server with the published specification, not against the real container.

An action is nine numbers. Observations follow the server's specs: RGB_INTERLEAVED at 72 x 96, numbers such as
HAND_FORCE as vectors, text as words; `Score`, `reward` and `discount` are not observed. Every answer is validated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped, UInt8

from derex.envs.interface import HostStep
from derex.envs.suites import dm_env as dm_specs
from derex.envs.suites import spaces as actions
from derex.envs.suites.common import load, unknown
from derex.envs.suites.hard8_connection import Connection, Options, ServerError, Unreachable, connect
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
REST = dict.fromkeys(ACTIONS, 0.0)
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

_BOUNDS = actions.make_range(
    np.asarray([low for low, _ in ACTIONS.values()]), np.asarray([high for _, high in ACTIONS.values()])
)


class Answer(NamedTuple):
    """The server's answer to a step."""

    observations: dict[str, Any]
    discount: float
    over: bool


class World:
    """A joined world on a server."""

    def __init__(self, connection: Connection, name: str, described: Any):
        """Checks the specs in the server's answer to a join request."""
        from dm_env_rpc.v1 import spec_manager

        self._connection, self._name, self._described = connection, name, described
        with _checked("specs"):
            self._acts = spec_manager.SpecManager(described.actions)
            self._sees = spec_manager.SpecManager(described.observations)
        missing = [action for action in ACTIONS if action not in self._acts.names()]
        if missing:
            raise ServerError(
                f"specs: the server does not take {', '.join(missing)}; this is not a DM-Hard-8 server."
            )
        if not {"reward", "Score"} & set(self._sees.names()):
            raise ServerError(
                "specs: the server shows neither a reward nor a Score; this is not a DM-Hard-8 server."
            )
        picture = self.shown().get(PICTURE)
        if picture is None or picture.shape != (HEIGHT, WIDTH, 3) or picture.dtype != np.uint8:
            raise ServerError(
                f"specs: expected {PICTURE} of {HEIGHT} x {WIDTH} x 3 bytes, the server has {picture}."
            )

    def shown(self) -> dict[str, Any]:
        """Returns the dm_env specs of the agent's observations; scalars become vectors of length 1."""
        from dm_env_rpc.v1 import dm_env_utils

        with _checked("specs"):
            found = {
                name: dm_env_utils.tensor_spec_to_dm_env_spec(self._sees.name_to_spec(name))
                for name in sorted(self._sees.names())
                if name not in HIDDEN
            }
        return {name: _at_least_one(spec) for name, spec in found.items()}

    def reset(self) -> Answer:
        """Starts a new episode and returns its first step."""
        rpc = _messages()
        with _checked("reset"):
            answer = self._connection.send(rpc.ResetRequest())
            if answer.specs != self._described:
                raise ServerError("reset: the server changed its specs between two episodes.")
        first = self.step(REST)
        if first.over:
            raise ServerError("reset: the server ended the new episode at its first step.")
        return first

    def step(self, values: dict[str, float]) -> Answer:
        """Takes one step; `values` must contain every action."""
        rpc = _messages()
        with _checked("step"):
            packed = {name: self._shaped(name, value) for name, value in values.items()}
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
            discount = float(np.ravel(observations.get("discount", usual))[0])
        return Answer(observations, discount, answer.state != states.RUNNING)

    def leave(self) -> None:
        """Leaves the world and destroys it on the server."""
        rpc = _messages()
        with _checked("leave"):
            self._connection.send(rpc.LeaveWorldRequest())
            self._connection.send(rpc.DestroyWorldRequest(world_name=self._name))

    def _shaped(self, name: str, value: float) -> np.ndarray:
        """Returns the value in the shape of the server's spec: a scalar or a vector of length 1."""
        return np.full(tuple(self._acts.name_to_spec(name).shape), value)


def world_of(connection: Connection, level: str, seed: int) -> World:
    """Creates a world with this level on the server and joins it."""
    from dm_env_rpc.v1 import tensor_utils

    rpc = _messages()

    def settings(**values: Any) -> dict[str, Any]:
        return {name: tensor_utils.pack_tensor(value) for name, value in values.items()}

    with _checked("join"):
        created = connection.send(
            rpc.CreateWorldRequest(settings=settings(seed=seed, episodeId=0, levelName=level))
        )
        joined = connection.send(
            rpc.JoinWorldRequest(world_name=created.world_name, settings=settings(width=WIDTH, height=HEIGHT))
        )
    return World(connection, created.world_name, joined.specs)


def _messages() -> Any:
    return load("dm_env_rpc.v1.dm_env_rpc_pb2", "hard8")


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


def _at_least_one(spec: Any) -> Any:
    from dm_env import specs

    plain = not isinstance(spec, specs.DiscreteArray | specs.StringArray) and spec.shape == ()
    return specs.Array((1,), spec.dtype, spec.name) if plain else spec


class Hard8:
    """One level on a server. After a `ServerError` the next episode uses a new connection."""

    def __init__(self, level: str, name: str, options: Options):
        """Connects, creates a world and reads its specs."""
        self._level, self._options = level, options
        self._connection: Connection | None = None
        self._world: World | None = None
        self._used = False
        self._score, self._image = 0.0, None
        try:
            self._specs = self._joined(seed=0).shown()
            self._seen = dm_specs.observations(self._specs)
        except BaseException:
            self._drop()  # the caller gets no object to close
            raise
        self.spec = EnvironmentSpec(name, self._seen.spec, _BOUNDS.spec, HORIZON, SUCCESS)

    def begin(self, seed: int) -> Any:
        """Starts a new episode, reconnecting if necessary."""
        for number in range(TRIES):
            try:
                return self._begun(seed)
            except ServerError as error:
                self._drop()
                if number == TRIES - 1 or isinstance(error, Unreachable):
                    raise
        raise AssertionError("unreachable")

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Repeats the action for `Options.repeats` server steps and sums the rewards."""
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
        """Returns the agent's current view."""
        return np.zeros((HEIGHT, WIDTH, 3), np.uint8) if self._image is None else self._image

    def close(self) -> None:
        """Leaves the world and closes the connection; later calls do nothing."""
        world, self._world = self._world, None
        try:
            if world is not None:
                world.leave()
        except ServerError:
            pass  # the server is already gone
        finally:
            self._drop()

    def _begun(self, seed: int) -> Any:
        world = self._world
        if world is None or not self._used or self._options.fresh_worlds:
            world = self._joined(seed)
            if world.shown() != self._specs:
                raise ServerError(f"observations: {self._options.address} changed its observation specs.")
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
        """Returns the server's reward, or else the increase of its score."""
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
    level = by_name.get(_slug(asked))
    if level is None:
        raise unknown("hard8", asked, by_name)
    return Hard8(level, f"hard8:{name}", Options.from_environment(**({"address": address} if at else {})))


def names() -> list[str]:
    """Returns the names of the eight levels."""
    return list(LEVELS)


def _slug(title: str) -> str:
    return title.strip().lower().replace(" ", "_")
