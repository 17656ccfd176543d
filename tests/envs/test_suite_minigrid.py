"""MiniGrid and BabyAI: tiles, direction and mission as the packages give them."""

import numpy as np
import pytest

from derex.envs.suites import common
from derex.envs.suites import minigrid as suite
from derex.types import Discrete, Symbols, Words

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")


@pytest.mark.parametrize(
    "name",
    ["MiniGrid-DoorKey-5x5-v0", "BabyAI-PutNextLocal-v0", "BabyAI-SynthS5R2-v0", "BabyAI-UnlockPickup-v0"],
)
def test_the_same_as_without_us(name):
    env, bare = suite.make(name), gymnasium.make(name)
    for seed in range(2):
        ours, theirs = env.begin(seed), bare.reset(seed=seed)[0]
        random, over = np.random.default_rng(seed), False
        for _ in range(80):
            np.testing.assert_array_equal(ours["image"], theirs["image"])
            assert ours["direction"].tolist() == [theirs["direction"]]
            np.testing.assert_array_equal(ours["mission"], common.encode(theirs["mission"], Words()))
            if over:
                break
            action = random.integers(7)
            step = env.act(np.asarray(action))
            theirs, reward, terminated, truncated, _ = bare.step(action)
            assert (step.reward, step.terminated, step.truncated) == (reward, terminated, truncated)
            ours, over = step.observation, terminated or truncated
    env.close()
    bare.close()


def test_specification():
    from minigrid.core import constants

    env = suite.make("BabyAI-GoToObj-v0")
    assert env.spec.name == "babyai:BabyAI-GoToObj-v0"
    assert env.spec.action == Discrete(7)
    assert env.spec.observation["image"] == Symbols((7, 7, 3), (11, 6, 3))
    sizes = [
        len(table) for table in (constants.OBJECT_TO_IDX, constants.COLOR_TO_IDX, constants.STATE_TO_IDX)
    ]
    assert sizes == [suite.KINDS, suite.COLOURS, suite.STATES]
    assert env.spec.observation["direction"] == Symbols((1,), (4,))
    assert suite.make("MiniGrid-Empty-5x5-v0").spec.horizon == 100
    assert suite.make("MiniGrid-Dynamic-Obstacles-5x5-v0").spec.action == Discrete(3)


def test_success_is_a_reward_and_time_truncates():
    """To the goal in the corner of an empty room: reward 1 - 0.9 steps / 100. Turning only: cut after 100 steps."""
    env = suite.make("MiniGrid-Empty-5x5-v0")
    env.begin(0)
    *_, last = [env.act(np.asarray(action)) for action in (2, 2, 1, 2, 2)]
    assert last.terminated
    assert last.reward == pytest.approx(1 - 0.9 * 5 / 100)
    assert last.reward >= suite.SUCCESS == env.spec.success_return
    env.begin(0)
    steps = [env.act(np.asarray(0)) for _ in range(100)]
    assert [step.truncated for step in steps] == [False] * 99 + [True]
    assert sum(step.reward for step in steps) < suite.SUCCESS


@pytest.mark.parametrize("name", ["BabyAI-GoToObj-v0", "BabyAI-BossLevel-v0", "BabyAI-MoveTwoAcrossS5N2-v0"])
def test_no_episode_of_babyai_is_longer_than_the_horizon(name, capsys):
    env = suite.make(name)
    limits = []
    for seed in range(8):
        env.begin(seed)
        limits.append(env._env.unwrapped.max_steps)
    assert 0 < min(limits) <= max(limits) <= env.spec.horizon
    assert capsys.readouterr().out == ""  # the package's remarks are held back


def test_missions_fit():
    """The longest instructions of all levels that are made here are not cut."""
    env = suite.make("BabyAI-BossLevel-v0")
    longest = max(np.count_nonzero(env.begin(seed)["mission"]) for seed in range(20))
    assert 10 < longest < Words().length


def test_names():
    names = suite.names()
    assert len(names) >= 170
    assert {suite.suite_of(name) for name in names} == {"minigrid", "babyai"}
    with pytest.raises(
        ValueError, match=r"babyai has no 'BabyAI-GotoObj-v0'\. Did you mean 'babyai:BabyAI-GoToObj-v0'"
    ):
        suite.make("BabyAI-GotoObj-v0")


@pytest.mark.parametrize("seed", [4527, 5139])
def test_a_room_without_a_place_for_the_agent_is_drawn_again(seed):
    """With these seeds the package itself goes on for ever."""
    environment = suite.make("BabyAI-SynthS5R2-v0")
    first = environment.begin(seed)
    again = suite.make("BabyAI-SynthS5R2-v0").begin(seed)
    for name, part in first.items():
        np.testing.assert_array_equal(again[name], part)
    level = environment._env.unwrapped
    assert level.grid.get(*level.agent_pos) is None
    assert "place_obj" not in vars(level)
