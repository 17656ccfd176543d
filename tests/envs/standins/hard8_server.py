"""A dm_env_rpc server on this machine with the published specification of DM-Hard-8, and servers that misbehave.

The world is a corridor: walking forward for long enough is worth 10 and ends the episode; it is cut after 24 steps. How
far one has to walk depends on the seed and on the number of the episode in its world.
"""

import threading
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from dm_env_rpc.v1 import dm_env_rpc_pb2 as rpc_messages
from dm_env_rpc.v1 import dm_env_rpc_pb2_grpc, tensor_spec_utils, tensor_utils
from google.rpc import status_pb2

rpc: Any = rpc_messages
grpc_messages: Any = dm_env_rpc_pb2_grpc
ACTIONS = {
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
LIMIT = 24


class Refused(Exception):
    """Answered as an error of dm_env_rpc."""


@dataclass
class Behaviour:
    """How a server is, and what goes wrong with it."""

    reward: bool = True
    discount: bool = False
    shape: tuple[int, ...] = ()
    """of single numbers"""
    dtype: Any = np.float64
    text: bool = False
    garbage: str = ""
    """"payload", "shape", "type", "nan", "missing", "reward", "state": what is wrong with an episode's third step"""
    specs: str = ""
    """"picture", "actions", "score", "changing": what is wrong with the specs"""
    die_at: int = 0
    """the step of an episode at which the conversation breaks off, once"""
    hang_at: int = 0
    """the step of an episode that is never answered"""
    huge: bool = False
    open_step: bool = False
    """answers a step before a world is joined"""
    requests: list[Any] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)


class Servicer(grpc_messages.EnvironmentServicer):
    """Each conversation has its own world."""

    def __init__(self, behaviour: Behaviour):
        self.behaviour = behaviour

    def Process(self, request_iterator: Any, context: Any) -> Any:
        world = Corridor(self.behaviour)
        for message in request_iterator:
            self.behaviour.requests.append(message)
            kind = message.WhichOneof("payload")
            answer = rpc.EnvironmentResponse()
            try:
                getattr(answer, kind).CopyFrom(getattr(world, kind)(getattr(message, kind)))
            except Refused as error:
                answer.error.CopyFrom(status_pb2.Status(code=9, message=str(error)))
            except ConnectionAbortedError:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the server died")
            except EOFError:
                answer.leave_world.SetInParent()  # garbage: the answer to another question
            yield answer


class Corridor:
    """One world of one conversation."""

    def __init__(self, behaviour: Behaviour):
        self.behaviour = behaviour
        self.name, self.joined, self.episode, self.running = "", False, 0, False
        self.resets = 0
        self.values = dict.fromkeys(ACTIONS, 0.0)
        self.steps, self.place, self.score, self.seed = 0, 0.0, 0.0, 0

    def create_world(self, request: Any) -> Any:
        settings = {name: tensor_utils.unpack_tensor(value) for name, value in request.settings.items()}
        if set(settings) != {"seed", "episodeId", "levelName"} or self.name:
            raise Refused(f"settings {settings}, world {self.name!r}")
        self.seed, self.name, self.episode = int(settings["seed"]), f"world of {settings['levelName']}", 0
        return rpc.CreateWorldResponse(world_name=self.name)

    def join_world(self, request: Any) -> Any:
        settings = {name: int(tensor_utils.unpack_tensor(value)) for name, value in request.settings.items()}
        if settings != {"width": 96, "height": 72} or request.world_name != self.name or self.joined:
            raise Refused(f"settings {settings}, world {request.world_name!r}")
        self.joined = True
        return rpc.JoinWorldResponse(specs=self.specs())

    def reset(self, request: Any) -> Any:
        self.resets += 1
        self.running = False
        return rpc.ResetResponse(specs=self.specs())

    def step(self, request: Any) -> Any:
        behaviour = self.behaviour
        if behaviour.open_step:
            return rpc.StepResponse()
        if not self.joined:
            raise Refused("no world is joined")
        self.act(request)
        if behaviour.die_at and self.steps == behaviour.die_at:
            behaviour.die_at = 0
            raise ConnectionAbortedError
        if behaviour.hang_at and self.steps == behaviour.hang_at:
            behaviour.release.wait()
        wrong = behaviour.garbage if self.steps == 2 else ""
        if wrong == "payload":
            raise EOFError
        answer = rpc.StepResponse(state=99 if wrong == "state" else self.state)
        for uid, (name, value) in enumerate(self.observations(wrong).items(), 1):
            if uid in request.requested_observations and not (wrong == "missing" and name == "ACCELERATION"):
                answer.observations[uid].CopyFrom(value)
        return answer

    def leave_world(self, request: Any) -> Any:
        self.joined = False
        return rpc.LeaveWorldResponse()

    def destroy_world(self, request: Any) -> Any:
        if request.world_name != self.name:
            raise Refused(f"no world {request.world_name!r}")
        self.name = ""
        return rpc.DestroyWorldResponse()

    def act(self, request: Any) -> None:
        """All nine actions, within their bounds; the first step of an episode shows where it begins."""
        given = {uid: float(np.ravel(tensor_utils.unpack_tensor(t))[0]) for uid, t in request.actions.items()}
        if set(given) != set(range(1, 10)) or any(
            t.WhichOneof("payload") != "doubles" for t in request.actions.values()
        ):
            raise Refused(f"expected nine doubles, got {request.actions}")
        for (name, (low, high)), (_, value) in zip(ACTIONS.items(), sorted(given.items()), strict=True):
            if not low <= value <= high:
                raise Refused(f"{name}: {value} is not within {low} and {high}")
            self.values[name] = value
        if not self.running:
            self.running, self.steps, self.place = True, 0, 0.0
            self.score = float(self.episode)  # cumulative, and not 0 at a first step
            self.episode += 1
            self.state, self.gain = rpc.EnvironmentStateType.RUNNING, 0.0
            return
        self.steps += 1
        self.place += self.values["MOVE_BACK_FORWARD"]
        found = self.place >= 3 + (self.seed + self.episode) % 5
        self.gain = 10.0 if found else 0.0
        self.score += self.gain
        if found:
            self.state, self.running = rpc.EnvironmentStateType.TERMINATED, False
        elif self.steps == LIMIT:
            self.state, self.running = rpc.EnvironmentStateType.INTERRUPTED, False

    def observations(self, wrong: str) -> dict[str, Any]:
        behaviour = self.behaviour
        picture = np.full((72, 96, 3), (self.seed + self.episode + int(self.place)) % 256, np.uint8)
        if wrong == "shape":
            picture = picture[:10]
        if behaviour.huge:
            picture = np.zeros((2000, 2000, 3), np.uint8)
        acceleration = np.asarray([self.place, np.nan if wrong == "nan" else 0.0, 1.0], behaviour.dtype)
        single = {"HAND_FORCE": 0.5, "HAND_IS_HOLDING": 1.0, "HAND_DISTANCE": 0.25, "Score": self.score}
        if behaviour.reward:
            single["reward"] = np.inf if wrong == "reward" else self.gain
        if behaviour.discount:
            single["discount"] = 0.0 if self.state == rpc.EnvironmentStateType.TERMINATED else 1.0
        parts: dict[str, Any] = {"RGB_INTERLEAVED": picture, "ACCELERATION": acceleration}
        parts |= {name: np.full(behaviour.shape, value, behaviour.dtype) for name, value in single.items()}
        if wrong == "type":
            parts["HAND_FORCE"] = "strong"
        if behaviour.text:
            parts["INSTR"] = "throw it across"
        return {name: tensor_utils.pack_tensor(value) for name, value in parts.items()}

    def specs(self) -> Any:
        behaviour = self.behaviour
        described = rpc.ActionObservationSpecs()
        for uid, (name, (low, high)) in enumerate(ACTIONS.items(), 1):
            if behaviour.specs == "actions" and name == "HAND_GRIP":
                continue
            spec = rpc.TensorSpec(name=name, shape=behaviour.shape, dtype=rpc.DataType.DOUBLE)
            tensor_spec_utils.set_bounds(spec, minimum=low, maximum=high)
            described.actions[uid].CopyFrom(spec)
        kind = tensor_utils.np_type_to_data_type(behaviour.dtype)
        side = 73 if behaviour.specs == "picture" else 72
        shapes = {"RGB_INTERLEAVED": (side, 96, 3), "ACCELERATION": (3,)}
        single = ["HAND_FORCE", "HAND_IS_HOLDING", "HAND_DISTANCE"]
        single += [] if behaviour.specs == "score" else ["Score"]
        single += ["reward"] if behaviour.reward else []
        single += ["discount"] if behaviour.discount else []
        shapes |= dict.fromkeys(single, behaviour.shape)
        if behaviour.specs == "changing" and self.resets:
            shapes["ACCELERATION"] = (4,)
        for uid, (name, shape) in enumerate(shapes.items(), 1):
            dtype = rpc.DataType.UINT8 if name == "RGB_INTERLEAVED" else kind
            described.observations[uid].CopyFrom(rpc.TensorSpec(name=name, shape=shape, dtype=dtype))
        if behaviour.text:
            uid = len(shapes) + 1
            described.observations[uid].CopyFrom(rpc.TensorSpec(name="INSTR", dtype=rpc.DataType.STRING))
        return described


class Server:
    """Runs on a free port until it is stopped."""

    def __init__(self, behaviour: Behaviour | None = None, address: str = "localhost:0"):
        self.behaviour = behaviour or Behaviour()
        options = [("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)]
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=options)
        dm_env_rpc_pb2_grpc.add_EnvironmentServicer_to_server(Servicer(self.behaviour), self._server)
        port = self._server.add_secure_port(address, grpc.local_server_credentials())
        self.address = f"localhost:{port}"
        self._server.start()

    def steps(self) -> list[Any]:
        """Requests for a step in a world."""
        return [each.step for each in self.behaviour.requests if each.WhichOneof("payload") == "step"][1:]

    def stop(self) -> None:
        """At once."""
        self.behaviour.release.set()
        self._server.stop(None).wait()
