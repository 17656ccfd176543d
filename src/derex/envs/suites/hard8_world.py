"""A world on a dm_env_rpc server, of which nothing is believed before it is checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from derex.envs.suites.hard8_connection import Connection, ServerError
from derex.envs.suites.support import load

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
"""Names and bounds. The server keeps the last value of each, so that all are sent with every step."""
REST = dict.fromkeys(ACTIONS, 0.0)
PICTURE = "RGB_INTERLEAVED"
HIDDEN = ("reward", "discount", "Score")
"""of what a server answers, this is not for the agent's eyes"""


class Answer(NamedTuple):
    """What the server says after a step."""

    observations: dict[str, Any]
    discount: float
    over: bool


class World:
    """A world that is joined."""

    def __init__(self, connection: Connection, name: str, described: Any):
        """Takes the answer to a request to join, and checks that this is such a world."""
        from dm_env_rpc.v1 import spec_manager

        self._connection, self._name, self._described = connection, name, described
        with _checked("specs"):
            self._acts = spec_manager.SpecManager(described.actions)
            self._sees = spec_manager.SpecManager(described.observations)
        missing = [action for action in ACTIONS if action not in self._acts.names()]
        if missing:
            raise ServerError(
                f"specs: the server does not take {', '.join(missing)}; it is no DM-Hard-8 server."
            )
        if not {"reward", "Score"} & set(self._sees.names()):
            raise ServerError(
                "specs: the server shows neither a reward nor a Score; it is no DM-Hard-8 server."
            )
        picture = self.shown().get(PICTURE)
        if picture is None or picture.shape != (HEIGHT, WIDTH, 3) or picture.dtype != np.uint8:
            raise ServerError(
                f"specs: expected {PICTURE} of {HEIGHT} x {WIDTH} x 3 bytes, the server has {picture}."
            )

    def shown(self) -> dict[str, Any]:
        """What it shows to an agent; single numbers count as vectors of one."""
        from dm_env_rpc.v1 import dm_env_utils

        with _checked("specs"):
            found = {
                name: dm_env_utils.tensor_spec_to_dm_env_spec(self._sees.name_to_spec(name))
                for name in sorted(self._sees.names())
                if name not in HIDDEN
            }
        return {name: _at_least_one(spec) for name, spec in found.items()}

    def reset(self) -> Answer:
        """The first step of a new episode."""
        rpc = _messages()
        with _checked("reset"):
            answer = self._connection.send(rpc.ResetRequest())
            if answer.specs != self._described:
                raise ServerError("reset: the server changed its specs between two episodes.")
        first = self.step(REST)
        if first.over:
            raise ServerError("reset: the server's new episode is over before it has begun.")
        return first

    def step(self, values: dict[str, float]) -> Answer:
        """One step with these actions, all of them."""
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
        """Leaves the world and has it taken down."""
        rpc = _messages()
        with _checked("leave"):
            self._connection.send(rpc.LeaveWorldRequest())
            self._connection.send(rpc.DestroyWorldRequest(world_name=self._name))

    def _shaped(self, name: str, value: float) -> np.ndarray:
        """A single number, or a vector of one, as the server has it."""
        return np.full(tuple(self._acts.name_to_spec(name).shape), value)


def world_of(connection: Connection, level: str, seed: int) -> World:
    """Makes a world with a level and joins it."""
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
    """What dm_env_rpc raises over an answer as our error."""
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
