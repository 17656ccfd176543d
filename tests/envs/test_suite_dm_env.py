"""Environments of dm_env: specs, ends, seeds."""

from pathlib import Path

import jax
import numpy as np
import pytest

from derex.envs.suites import common
from derex.envs.suites import dm_env as suite
from derex.types import Box, Discrete, MultiDiscrete, Symbols, Words

pytest.importorskip("dm_env")


@pytest.fixture(autouse=True)
def standins(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).with_name("standins"))


def test_specs_and_ends():
    env = suite.make("dm_corridor:corridor")
    assert env.spec.observation == {
        "place": Symbols((1,), (5,), np.int32),
        "where": jax.ShapeDtypeStruct((2,), np.float32),
        "text": Words(),
    }
    assert env.spec.action == Discrete(2)
    seen = env.begin(0)
    np.testing.assert_array_equal(seen["text"], common.encode("Go right.", Words()))
    place, steps = int(seen["place"][0]), []
    while not steps or not (steps[-1].terminated or steps[-1].truncated):
        steps.append(env.act(np.asarray(1)))
    assert len(steps) == 4 - place
    assert [step.reward for step in steps] == [0.0] * (3 - place) + [1.0]
    assert steps[-1].terminated
    env.begin(0)
    steps = [env.act(np.asarray(0)) for _ in range(9)]
    assert [step.truncated for step in steps] == [False] * 8 + [True]
    assert not any(step.terminated for step in steps)


def test_seeds_where_the_function_takes_them():
    """With seeds an episode comes again; without, the environment goes on as it likes."""
    seeded, free = suite.make("dm_corridor:corridor"), suite.make("dm_corridor:unseeded")
    places = [int(seeded.begin(seed)["place"][0]) for seed in range(12)]
    assert places == [int(seeded.begin(seed)["place"][0]) for seed in range(12)]
    assert len(set(places)) > 1
    assert len({int(free.begin(0)["place"][0]) for _ in range(12)}) > 1


def test_odd_specs():
    env = suite.make("dm_corridor:odd")
    assert env.spec.observation == (
        jax.ShapeDtypeStruct((3, 4, 1), np.uint8),
        jax.ShapeDtypeStruct((), np.float32),
    )
    assert env.spec.action == MultiDiscrete((3, 4))
    env.begin(0)
    for action in ([0, 0], [2, 3]):  # validated by the environment, as -1 and 0, 1 and 3
        step = env.act(np.asarray(action))
        assert (step.reward, step.terminated, step.truncated) == (0.0, False, False)


def test_real_numbers():
    env = suite.make("dm_corridor:drifting")
    assert env.spec.action == Box(2)
    env.begin(0)
    assert [env.act(np.asarray([x, x])).reward for x in (-1.0, 0.0, 0.5, 7.0)] == [0.0, 2.0, 3.0, 4.0]


def test_what_cannot_be_read():
    from dm_env import specs

    with pytest.raises(TypeError, match=r"observation_spec: .* cannot be read"):
        suite.make_reader({"a": specs.Array((), object)})
    with pytest.raises(TypeError, match=r"action_spec: .* cannot be acted in"):
        suite.make_writer(specs.Array((2,), np.int32))
    part = suite.make_reader(specs.Array((2,), np.float64, "speed"))
    np.testing.assert_array_equal(part.read([1, 2]), [1.0, 2.0])
    for wrong in (np.zeros(3), "fast"):
        with pytest.raises(ValueError, match="observation: 'speed' came as"):
            part.read(wrong)


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("dm_corridor", ValueError, "expected 'dm_env:package.module:name'"),
        (
            "no_module_of_that_name:make",
            ValueError,
            "could not be imported: No module named 'no_module_of_that_name'",
        ),
        ("dm_corridor:unseded", ValueError, "no attribute 'unseded'. Did you mean 'unseeded'"),
        ("dm_corridor:__name__", ValueError, "'__name__' is neither a function nor a class"),
        ("dm_corridor:no_environment", TypeError, "returned a int, expected a dm_env.Environment"),
    ],
)
def test_wrong_names(name, error, says):
    with pytest.raises(error, match=says):
        suite.make(name)
