"""DM-Hard-8's client against real gRPC servers on this machine: good ones, and ones that die, hang or talk nonsense."""

import importlib
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from derex.envs.suites import common
from derex.envs.suites import hard8 as suite
from derex.envs.suites.hard8_connection import Options, ServerError, Unreachable, connect
from derex.types import Box, Words

pytest.importorskip("dm_env_rpc")

FORWARD, REST = np.zeros(9, np.float32), np.zeros(9, np.float32)
FORWARD[0] = 1.0
SHORT = {"ready_seconds": 5.0, "answer_seconds": 5.0}


@pytest.fixture(autouse=True)
def standin(monkeypatch):
    """The module with the servers."""
    monkeypatch.syspath_prepend(Path(__file__).with_name("standins"))
    return importlib.import_module("hard8_server")


@pytest.fixture
def serve(standin):
    """Starts servers that behave in some way; they are stopped after the test."""
    servers = []

    def start(**behaviour):
        servers.append(standin.Server(standin.Behaviour(**behaviour)))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@contextmanager
def client(server, **options):
    given: Any = {**SHORT, "repeats": 1, **options}
    env = suite.Hard8("throw_across", "hard8:throw_across", Options(server.address, **given))
    yield env
    env.close()
    env.close()


def episode(env, action, seed=0):
    env.begin(seed)
    steps = [env.act(action)]
    while not (steps[-1].terminated or steps[-1].truncated):
        steps.append(env.act(action))
    return steps


@pytest.mark.parametrize(
    "behaviour", [{}, {"reward": False}, {"discount": True}], ids=["reward", "score", "discount"]
)
def test_rewards_and_ends(serve, behaviour):
    """The apple is worth 10 and terminates; time truncates. Without a reward the score's rise counts."""
    with client(serve(**behaviour)) as env:
        steps = episode(env, FORWARD, seed=1)
        assert len(steps) == 5  # 3 + (seed + episode) % 5 places
        assert [step.reward for step in steps] == [0.0] * 4 + [10.0]
        assert (steps[-1].terminated, steps[-1].truncated) == (True, False)
        steps = episode(env, REST, seed=1)
        assert len(steps) == 24
        assert (steps[-1].terminated, steps[-1].truncated) == (False, True)
        assert sum(step.reward for step in steps) == 0.0


def test_actions_are_held(serve):
    """Four steps of the server for each of ours: rewards are added up, and the end is not overrun."""
    server = serve()
    with client(server, repeats=4) as env:
        steps = episode(env, FORWARD, seed=1)
        assert [step.reward for step in steps] == [0.0, 10.0]
        assert steps[-1].terminated
        assert len(server.steps()) == 1 + 5


def test_all_nine_actions_are_sent_every_time_within_their_bounds(serve, standin):
    server = serve()
    with client(server) as env:
        assert env.spec.action == Box(9)
        env.begin(0)
        for value in (-1.0, 1.0, 9.0, 0.0):
            env.act(np.full(9, value, np.float32))
    sent = [{uid: tensor.doubles.array[0] for uid, tensor in step.actions.items()} for step in server.steps()]
    low, high = zip(*standin.ACTIONS.values(), strict=True)
    assert all(set(each) == set(range(1, 10)) for each in sent)
    assert [each[1] for each in sent] == [0.0, -1.0, 1.0, 1.0, 0.0]
    assert [sent[1][uid] for uid in range(1, 10)] == list(low)
    assert [sent[2][uid] for uid in range(1, 10)] == [sent[3][uid] for uid in range(1, 10)] == list(high)


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_observations_follow_the_servers_specs(serve, shape, dtype):
    """Single numbers or vectors of one, float or double: the same to an agent. The score is not for its eyes."""
    with client(serve(shape=shape, dtype=dtype, text=True)) as env:
        one = jax.ShapeDtypeStruct((1,), np.float32)
        assert env.spec.observation == {
            "ACCELERATION": jax.ShapeDtypeStruct((3,), np.float32),
            "HAND_DISTANCE": one,
            "HAND_FORCE": one,
            "HAND_IS_HOLDING": one,
            "INSTR": Words(),
            "RGB_INTERLEAVED": jax.ShapeDtypeStruct((72, 96, 3), np.uint8),
        }
        seen = env.begin(7)
        assert seen["HAND_FORCE"].tolist() == [0.5]
        assert seen["RGB_INTERLEAVED"].tolist() == np.full((72, 96, 3), 8).tolist()
        np.testing.assert_array_equal(seen["INSTR"], common.encode("throw it across", Words()))
        assert env.act(FORWARD).observation["ACCELERATION"].tolist() == [1.0, 0.0, 1.0]


def test_worlds_go_on_or_are_made_anew(serve):
    """Usually episodes follow each other in one world. With fresh worlds the same seed gives the same episode."""
    server = serve()
    with client(server) as env:
        assert [len(episode(env, FORWARD, seed=1)) for _ in range(3)] == [5, 6, 7]
    made = [each for each in server.behaviour.requests if each.WhichOneof("payload") == "create_world"]
    assert len(made) == 2  # one to ask for its specs, one with the first seed
    with client(serve(), fresh_worlds=True) as env:
        assert [len(episode(env, FORWARD, seed=1)) for _ in range(3)] == [5, 5, 5]


def test_a_server_that_dies_in_the_middle_of_an_episode(serve):
    """The step raises, so that whoever runs it knows that the episode is lost; the next begins on a new connection."""
    server = serve(die_at=3)
    with client(server) as env:
        env.begin(1)
        env.act(FORWARD)
        env.act(FORWARD)
        with pytest.raises(ServerError, match=r"broke off: .*UNAVAILABLE: the server died"):
            env.act(FORWARD)
        with pytest.raises(ServerError, match="no episode under way"):
            env.act(FORWARD)
        assert len(episode(env, FORWARD, seed=1)) == 5


def test_a_server_that_is_started_again(standin):
    """Killed and started on the same port: `begin` finds it. Killed for good: it says so."""
    server = standin.Server()
    with client(server, ready_seconds=2.0) as env:
        env.begin(1)
        server.stop()
        with pytest.raises(ServerError, match="broke off"):
            env.act(FORWARD)
        server = standin.Server(address=server.address)
        assert len(episode(env, FORWARD, seed=1)) == 5
        server.stop()
        with pytest.raises(Unreachable, match="nothing answers at localhost"):
            env.begin(1)


def test_a_server_that_dies_between_episodes(standin):
    server = standin.Server()
    with client(server) as env:
        episode(env, FORWARD, seed=1)
        server.stop()
        server = standin.Server(address=server.address)
        assert len(episode(env, FORWARD, seed=1)) == 5
        server.stop()


def test_a_server_that_hangs(serve):
    with client(serve(hang_at=2), answer_seconds=0.5) as env:
        env.begin(1)
        env.act(FORWARD)
        with pytest.raises(ServerError, match=r"did not answer a step request within 0\.5 s"):
            env.act(FORWARD)


@pytest.mark.parametrize(
    ("garbage", "says"),
    [
        ("payload", "answered a step request with something else"),
        ("shape", "makes no sense: .*RGB_INTERLEAVED with shape"),
        ("type", "makes no sense: .*HAND_FORCE with dtype"),
        ("nan", "not finite in ..ACCELERATION"),
        ("missing", "left out ACCELERATION"),
        ("reward", "answered inf, expected a finite number"),
        ("state", "answered the state 99"),
    ],
)
def test_a_server_that_answers_garbage(serve, garbage, says):
    """Each kind is named, and the next episode is good again as far as the server is."""
    with client(serve(garbage=garbage)) as env:
        env.begin(1)
        env.act(FORWARD)
        with pytest.raises(ServerError, match=says):
            env.act(FORWARD)
        assert env.begin(1)["HAND_FORCE"].tolist() == [0.5]


@pytest.mark.parametrize(
    ("specs", "behaviour", "says"),
    [
        ("actions", {}, "does not take HAND_GRIP"),
        ("picture", {}, "expected RGB_INTERLEAVED of 72 x 96 x 3 bytes"),
        ("score", {"reward": False}, "neither a reward nor a Score"),
    ],
)
def test_a_server_of_something_else(serve, specs, behaviour, says, monkeypatch):
    """It is hung up on at once: neither its channel nor the thread that listens to it is left."""
    server, opened = serve(specs=specs, **behaviour), []
    monkeypatch.setattr(suite, "connect", lambda options: opened.append(connect(options)) or opened[0])
    with pytest.raises(ServerError, match=says), client(server):
        pass
    with pytest.raises(ServerError, match="is closed"):
        opened[0].send(None)
    assert "derex-hard8" not in {thread.name for thread in threading.enumerate()}


def test_a_server_that_changes_its_mind(serve):
    server = serve(specs="changing")
    with client(server) as env, pytest.raises(ServerError, match="changed its specs"):
        env.begin(0)


def test_a_server_that_is_not_one(serve):
    server = serve(open_step=True)
    with pytest.raises(ServerError, match="before any world is joined"), client(server):
        pass


def test_no_proxy_is_asked_for_this_machine(serve, monkeypatch):
    """Port 9 has nobody listening; the server is found without it."""
    for name in ("no_proxy", "no_grpc_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with client(serve()) as env:
        assert len(episode(env, FORWARD, seed=1)) == 5


def test_messages_have_a_largest_size(serve):
    server = serve(huge=True)
    with client(server, largest_message=2**20) as env, pytest.raises(ServerError, match="RESOURCE_EXHAUSTED"):
        env.begin(0)


def test_only_this_machine_without_a_certificate(tmp_path):
    for address in ("example.org:10000", "192.0.2.7:10000"):
        with pytest.raises(ValueError, match=r"is another machine.*DEREX_HARD8_CERTIFICATE"):
            Options(address).credentials()
    for address in ("localhost:1", "127.0.0.1:10000", "127.3.2.1:10000", "[::1]:10000"):
        assert Options(address).credentials() is not None
    file = tmp_path / "roots.pem"
    file.write_bytes(b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    assert Options("example.org:10000", certificate=str(file)).credentials() is not None


def test_options(monkeypatch):
    for name, value in {"ADDRESS": "localhost:7", "REPEATS": "2", "FRESH_WORLDS": "yes"}.items():
        monkeypatch.setenv(f"DEREX_HARD8_{name}", value)
    assert Options.from_environment() == Options("localhost:7", repeats=2, fresh_worlds=True)
    assert Options.from_environment(address="localhost:8").address == "localhost:8"
    monkeypatch.setenv("DEREX_HARD8_REPEATS", "often")
    with pytest.raises(ValueError, match="DEREX_HARD8_REPEATS: expected a number such as 4, got 'often'"):
        Options.from_environment()
    for wrong in ("localhost", "localhost:", ":10", "localhost:70000", "localhost:x"):
        with pytest.raises(ValueError, match="address: expected host:port"):
            Options(wrong)
    with pytest.raises(ValueError, match="repeats: expected a number above 0"):
        Options(repeats=0)


def test_names(serve, monkeypatch):
    """The levels' names and the paper's, and the server behind the @."""
    server = serve()
    monkeypatch.setenv("DEREX_HARD8_ADDRESS", "localhost:1")
    for name in ("use_object_knock_down", "Baseball", "baseball"):
        env = suite.make(f"{name}@{server.address}")
        assert env.spec.name == f"hard8:{name}@{server.address}"
        env.close()
    levels = {
        each.create_world.settings["levelName"].strings.array[0]
        for each in server.behaviour.requests
        if each.WhichOneof("payload") == "create_world"
    }
    assert levels == {"use_object_knock_down"}
    assert len(suite.names()) == 8
    with pytest.raises(ValueError, match="Did you mean 'hard8:throw_across'"):
        suite.make("throw_acros")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_env_rpc", None)
    with pytest.raises(ImportError, match=r"pip install .*\[hard8\]"):
        suite.make("throw_across")
