"""gymnasium's environments step as they do without us, and its spaces become parts of specifications."""

import importlib
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from derex.envs.suites import common
from derex.envs.suites import gymnasium as suite
from derex.types import Box, Discrete, MultiDiscrete, Symbols, Words

gymnasium = pytest.importorskip("gymnasium")


def test_a_time_limit_truncates_and_a_fall_terminates():
    """CartPole falls to one side under one action; balanced by a simple rule it is cut after 500 steps."""
    env = suite.make("CartPole-v1")
    assert env.spec.action == Discrete(2)
    assert env.spec.horizon == 500
    assert env.spec.success_return is None
    env.begin(3)
    steps = [env.act(np.asarray(1))]
    while not (steps[-1].terminated or steps[-1].truncated):
        steps.append(env.act(np.asarray(1)))
    assert steps[-1].terminated
    assert len(steps) < 12
    seen, count, step = env.begin(3), 0, None
    while step is None or not (step.terminated or step.truncated):
        step = env.act(np.asarray(int(seen[2] + 0.3 * seen[3] + 0.1 * seen[1] > 0), np.int32))
        seen, count = step.observation, count + 1
    assert (count, step.terminated, step.truncated) == (500, False, True)
    env.close()


def test_the_same_numbers_as_without_us():
    """Pendulum: vectors in float32, actions from [-1, 1] to [-2, 2]."""
    env, bare = suite.make("Pendulum-v1"), gymnasium.make("Pendulum-v1")
    assert env.spec.action == Box(1, -1.0, 1.0)
    seen, expected = env.begin(7), bare.reset(seed=7)[0]
    np.testing.assert_array_equal(seen, expected)
    for torque in (0.5, -1.0, 3.0, 0.0):
        step = env.act(np.asarray([torque], np.float32))
        expected, reward, *_ = bare.step(np.asarray([np.clip(2 * torque, -2, 2)], np.float32))
        np.testing.assert_array_equal(step.observation, expected)
        assert step.reward == pytest.approx(reward)
    bare.close()


def test_ids_of_other_packages_are_imported(tmp_path, monkeypatch):
    (tmp_path / "own_tasks_for_a_test.py").write_text(
        "import gymnasium\n"
        "class Task(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Discrete(3, start=5)\n"
        "    action_space = gymnasium.spaces.Discrete(2, start=-1)\n"
        "    def reset(self, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        return 5, {}\n"
        "    def step(self, action):\n"
        "        return 7 + min(action, 0), float(action), True, True, {}\n"
        "gymnasium.register('OwnTaskOfATest-v0', Task)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = suite.make("own_tasks_for_a_test:OwnTaskOfATest-v0")
    assert env.spec.observation == Symbols((1,), (3,), np.int32)
    assert env.spec.horizon == suite.HORIZON
    assert not hasattr(env, "picture")
    assert env.begin(0).tolist() == [0]
    step = env.act(np.asarray(0))
    assert (step.observation.tolist(), step.reward, step.terminated, step.truncated) == (
        [1],
        -1.0,
        True,
        False,
    )
    gymnasium.registry.pop("OwnTaskOfATest-v0")
    with pytest.raises(ImportError, match="needs the package 'no_such_package_at_all'"):
        suite.make("no_such_package_at_all:Task-v0")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"pip install .*\[gymnasium\]"):
        suite.make("CartPole-v1")


def test_a_missing_drawing_library_is_named():
    class Undrawn(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)
        render_mode = "rgb_array"

        def render(self):
            raise gymnasium.error.DependencyNotInstalled(
                'pygame is missing, run `pip install "gymnasium[x]"`'
            )

    with pytest.raises(ValueError, match=r"Undrawn.*draw itself.*pip install .gymnasium\[x\]"):
        suite.DrawnGymnasium(Undrawn(), "gymnasium:Undrawn").picture()


def test_every_space_of_observations():
    make = gymnasium.spaces
    space = make.Dict(
        {
            "vector": make.Box(-1, 1, (2,), np.float64),
            "single": make.Box(-1, 1, (), np.float32),
            "colour": make.Box(0, 255, (4, 5, 3), np.uint8),
            "grey": make.Box(0, 255, (4, 5), np.uint8),
            "counts": make.Box(-9, 9, (2,), np.int64),
            "number": make.Discrete(4, start=-1),
            "numbers": make.MultiDiscrete([3, 500], start=[0, 10]),
            "switches": make.MultiBinary(3),
            "text": make.Text(20),
            "pair": make.Tuple((make.Discrete(2), make.Dict({"deep": make.Box(0, 1, (1,))}))),
        }
    )
    part = suite.make_reader(space)
    assert part.spec == {
        "vector": jax.ShapeDtypeStruct((2,), np.float32),
        "single": jax.ShapeDtypeStruct((), np.float32),
        "colour": jax.ShapeDtypeStruct((4, 5, 3), np.uint8),
        "grey": jax.ShapeDtypeStruct((4, 5, 1), np.uint8),
        "counts": jax.ShapeDtypeStruct((2,), np.float32),
        "number": Symbols((1,), (4,), np.int32),
        "numbers": Symbols((2,), (3, 500), np.int32),
        "switches": jax.ShapeDtypeStruct((3,), np.float32),
        "text": Words(),
        "pair": (Symbols((1,), (2,), np.int32), {"deep": jax.ShapeDtypeStruct((1,), np.float32)}),
    }
    space.seed(0)
    for _ in range(20):
        drawn = space.sample()
        seen = part.read(drawn)
        for leaf, spec in zip(jax.tree.leaves(seen), jax.tree.leaves(part.spec), strict=True):
            assert (leaf.shape, leaf.dtype) == (spec.shape, spec.dtype)
        assert seen["number"] == [drawn["number"] + 1]
        np.testing.assert_array_equal(seen["numbers"], drawn["numbers"] - [0, 10])
        np.testing.assert_array_equal(seen["grey"][..., 0], drawn["grey"])
        np.testing.assert_array_equal(seen["text"], common.encode(drawn["text"], Words()))
    with pytest.raises(TypeError, match=r"observation_space: Graph .*ObservationWrapper"):
        suite.make_reader(make.Graph(make.Discrete(2), None))


def test_every_space_of_actions():
    make = gymnasium.spaces
    for space, spec in (
        (make.Discrete(3, start=4), Discrete(3)),
        (make.MultiDiscrete([2, 3], start=[5, -1]), MultiDiscrete((2, 3))),
        (make.MultiDiscrete(np.asarray([[2, 3], [4, 5]])), MultiDiscrete((2, 3, 4, 5))),
        (make.MultiBinary((2, 2)), MultiDiscrete((2, 2, 2, 2))),
        (make.Box(np.asarray([0.0, -3.0], np.float32), np.asarray([1.0, 5.0], np.float32)), Box(2)),
        (make.Box(-0.1, 0.3, (2, 3), np.float32), Box(6)),
        (make.Box(-np.inf, np.inf, (1,)), Box(1)),
        (make.Box(0, 7, (2,), np.int32), Box(2)),
    ):
        acted = suite.make_writer(space)
        assert acted.spec == spec
        random = np.random.default_rng(0)
        for _ in range(50):
            assert space.contains(acted.write(drawn(spec, random)))
    with pytest.raises(TypeError, match=r"action_space: Dict .*ActionWrapper"):
        suite.make_writer(make.Dict({"a": make.Discrete(2)}))


def drawn(spec: Any, random: np.random.Generator) -> np.ndarray:
    if isinstance(spec, Discrete):
        return np.asarray(random.integers(spec.n))
    if isinstance(spec, MultiDiscrete):
        return random.integers(spec.sizes)
    return random.uniform(-1.5, 1.5, spec.size).astype(np.float32)


def test_ranges():
    low, high = [0.0, -np.inf, -np.inf, 5.0, 50.0], [4.0, np.inf, 3.0, np.inf, np.inf]
    writer = common.write_numbers(np.asarray(low), np.asarray(high), np.float64)
    assert writer.spec == Box(5, -1.0, 1.0)
    np.testing.assert_array_equal(writer.write(np.full(5, -1.0)), [0, -10, -17, 5, 50])
    np.testing.assert_array_equal(writer.write(np.full(5, 1.0)), [4, 10, 3, 25, 70])
    np.testing.assert_array_equal(writer.write(np.zeros(5)), [2, 0, -7, 15, 60])
    np.testing.assert_array_equal(writer.write(np.full(5, 9.0)), [4, 10, 3, 25, 70])
    np.testing.assert_array_equal(writer.write(np.full(5, -9)), [0, -10, -17, 5, 50])
    with pytest.raises(ValueError, match="low <= high"):
        common.write_numbers(np.asarray([1.0]), np.asarray([0.0]), np.float64)


def test_names():
    assert "CartPole-v1" in suite.names()
    with pytest.raises(
        ValueError, match=r"Did you mean 'gymnasium:CartPole-v1'\? `derex envs gymnasium` lists all \d+"
    ):
        suite.make("cartpole-v1")
    assert common.split_number("vizdoom", "A@2", 4, (1, 2)) == ("A", 2)
    assert common.split_number("vizdoom", "A", 4, (1, 2)) == ("A", 4)
    with pytest.raises(ValueError, match=r"'vizdoom:A@x' has 'x' after the @; expected one of 1, 2"):
        common.split_number("vizdoom", "A@x", 4, (1, 2))


def test_what_a_broken_package_lacks_is_not_hidden(tmp_path, monkeypatch):
    """Only the package itself is said to be missing, not what it imports in vain."""
    (tmp_path / "broken_suite_for_a_test.py").write_text("import something_else_entirely\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_else_entirely"):
        common.load("broken_suite_for_a_test", "gymnasium")


def test_the_example_of_an_own_environment(monkeypatch, capsys):
    """One end of the hallway is rewarded, the one that the instruction names; standing about is cut after 50 steps."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    env: Any = suite.make("own_gymnasium:Hallway-v0")
    assert env.spec.horizon == 50
    told = {"go left": 0.0, "go right": 1.0}
    for sentence, total in told.items():
        seed = next(
            seed
            for seed in range(20)
            if np.array_equal(env.begin(seed)["told"], common.encode(sentence, Words()))
        )
        assert importlib.import_module("own_gymnasium").main(seed) == total
    assert env.picture().shape == (60, 220, 3)
    env.begin(0)
    steps = [env.act(np.asarray(number % 2)) for number in range(50)]
    assert [step.truncated for step in steps] == [False] * 49 + [True]
    assert "return: 1.0" in capsys.readouterr().out
