"""Connection to a dm_env_rpc server with a time limit and a size limit on every answer.

Without a certificate only servers on this machine are allowed. Every failure of the server (it is unreachable, too
slow, or sends an invalid answer) raises `ServerError`.
"""

from __future__ import annotations

import ipaddress
import os
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from derex.envs.suites.common import load

_BETWEEN_TRIES = 0.2  # seconds


class ServerError(ConnectionError):
    """The server is unreachable, too slow, or sent an invalid answer."""


class Unreachable(ServerError):
    """No server answered within `Options.ready_seconds`."""


@dataclass(frozen=True)
class Options:
    """Connection settings; each can be set by an environment variable `DEREX_HARD8_<NAME>`."""

    address: str = "localhost:10000"
    """host:port or [host]:port"""
    certificate: str = ""
    """PEM file of trusted certificates; required for servers on other machines"""
    ready_seconds: float = 40.0
    """time limit for the server to become ready"""
    answer_seconds: float = 30.0
    """time limit for each answer"""
    largest_message: int = 2**24
    """size limit of a message in bytes"""
    repeats: int = 4
    """number of server steps per action; rewards are summed"""
    fresh_worlds: bool = False
    """create a new world for each episode, so that seeds are reproducible; otherwise worlds are reset"""

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ValueError(f"address: expected host:port, such as localhost:10000, got {self.address!r}.")
        for name in ("ready_seconds", "answer_seconds", "largest_message", "repeats"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a number above 0, got {getattr(self, name)}.")

    @classmethod
    def from_environment(cls, **given: Any) -> Options:
        """Reads the environment variables; keyword arguments override them."""
        found: dict[str, Any] = {}
        for name, usual in vars(cls()).items():
            variable = f"DEREX_HARD8_{name.upper()}"
            text = os.environ.get(variable)
            if text is None:
                continue
            try:
                yes = text.lower() in ("1", "true", "yes")
                found[name] = yes if isinstance(usual, bool) else type(usual)(text)
            except ValueError as error:
                raise ValueError(f"{variable}: expected a number such as {usual}, got {text!r}.") from error
        return cls(**{**found, **given})

    @property
    def host(self) -> str:
        """The address without its port."""
        return self.address.rpartition(":")[0].removeprefix("[").removesuffix("]")

    def is_loopback(self) -> bool:
        """Returns whether the server is on this machine."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def credentials(self) -> Any:
        """Returns TLS credentials, or local ones on this machine; refuses an unencrypted connection to another."""
        import grpc

        if self.certificate:
            return grpc.ssl_channel_credentials(Path(self.certificate).read_bytes())
        if not self.is_loopback():
            raise ValueError(
                f"address: {self.host!r} is another machine, and the connection would not be encrypted. Set "
                "DEREX_HARD8_CERTIFICATE to the file of its certificate, or forward its port to localhost."
            )
        return grpc.local_channel_credentials()


class Connection:
    """A connection that sends one request at a time and waits for its answer."""

    def __init__(self, options: Options):
        """Connects within `options.ready_seconds`."""
        grpc = load("grpc", "hard8")
        from dm_env_rpc.v1 import dm_env_rpc_pb2_grpc

        self._options = options
        settings = [
            (f"grpc.max_{way}_message_length", options.largest_message) for way in ("receive", "send")
        ]
        if options.is_loopback():
            settings.append(("grpc.enable_http_proxy", 0))  # localhost would be the proxy's own
        self._channel = grpc.secure_channel(options.address, options.credentials(), settings)
        try:
            grpc.channel_ready_future(self._channel).result(options.ready_seconds)
        except grpc.FutureTimeoutError as error:
            self._channel.close()
            raise Unreachable(
                f"address: nothing answers at {options.address} within {options.ready_seconds} s. Check that the "
                "container is running and that its port 10000 is published there."
            ) from error
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        stub = dm_env_rpc_pb2_grpc.EnvironmentStub(self._channel)
        self._call = stub.Process(iter(self._requests.get, None))
        # a blocking gRPC read has no time limit; a reader thread and a queue provide one
        self._reader = threading.Thread(target=self._read, name="derex-hard8", daemon=True)
        self._reader.start()
        self._open = True

    def send(self, request: Any) -> Any:
        """Returns the answer to a request; raises DmEnvRpcError if the server rejects the request."""
        from dm_env_rpc.v1 import message_utils

        options = self._options
        if not self._open:
            raise ServerError(f"address: the connection to {options.address} is closed.")
        message, field = message_utils.pack_environment_request(request)
        self._requests.put(message)
        cause: Exception | None = None
        try:
            answer = self._answers.get(timeout=options.answer_seconds)
            if not isinstance(answer, Exception):
                return message_utils.unpack_environment_response(answer, field)
            code, details = (
                getattr(answer, "code", None),
                getattr(answer, "details", None),
            )  # of gRPC's errors
            told = f"{code()}: {details()}" if code and details else f"{type(answer).__name__}: {answer}"
            problem, cause = f"broke off: {told}", answer
        except queue.Empty:
            problem = f"did not answer a {field} request within {options.answer_seconds} s."
        except ValueError as error:
            problem, cause = f"answered a {field} request with something else: {error}", error
        self.close()
        raise ServerError(f"address: {options.address} {problem}") from cause

    def close(self) -> None:
        """Closes the connection; later calls do nothing."""
        if self._open:
            self._open = False
            self._requests.put(None)
            self._call.cancel()
            self._channel.close()
            self._reader.join(self._options.answer_seconds)

    def _read(self) -> None:
        try:
            for answer in self._call:
                self._answers.put(answer)
            self._answers.put(EOFError("the server ended the conversation"))
        except Exception as error:
            self._answers.put(error)


def connect(options: Options) -> Connection:
    """Connects and waits until the server is ready: a step outside any world must return an error."""
    from dm_env_rpc.v1 import error

    until = time.monotonic() + options.ready_seconds
    while True:
        connection = Connection(options)
        try:
            connection.send(load_messages().StepRequest())
        except error.DmEnvRpcError:
            return connection
        except ServerError:
            connection.close()
            if time.monotonic() + _BETWEEN_TRIES > until:
                raise
            time.sleep(_BETWEEN_TRIES)
        else:
            connection.close()
            raise ServerError(
                f"address: {options.address} answers a step before any world is joined; this is not a DM-Hard-8 server."
            )


def load_messages() -> Any:
    """Imports the messages of dm_env_rpc; if it is missing, the error says how to install it."""
    return load("dm_env_rpc.v1.dm_env_rpc_pb2", "hard8")
