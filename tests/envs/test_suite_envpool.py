"""envpool: many at once, laid out as the single environments are."""

import numpy as np
import pytest

from derex.envs.suites import common, minigrid
from derex.envs.suites import envpool as suite
from derex.types import Discrete, Words

pytestmark = pytest.mark.slow
LEVELS = ["GoToObj", "GoToLocal", "PickupLoc", "OpenDoor", "UnlockPickup", "PutNextLocal", "KeyInBox"]


@pytest.fixture(autouse=True)
def package():
    return pytest.importorskip("envpool")


@pytest.mark.parametrize("name", [f"BabyAI-{each}-v0" for each in LEVELS])
def test_the_layout_is_minigrids(name):
    """The same parts, and every observation within them; rewards follow the package's formula."""
    pytest.importorskip("minigrid")
    pool, single = suite.make_many(name, 8, 3), minigrid.make(name)
    assert pool.num_envs == 8
    assert pool.spec.observation == single.spec.observation
    assert pool.spec.action == single.spec.action == Discrete(7)
    assert pool.spec.success_return == single.spec.success_return
    assert pool.spec.horizon >= single.spec.horizon
    seen, random, ended = pool.reset()[0], np.random.default_rng(0), 0
    for _ in range(600):  # the longest time limit among them is 576
        assert seen["image"].shape == (8, 7, 7, 3)
        assert seen["image"].dtype == np.uint8
        assert np.all(seen["image"] < [minigrid.KINDS, minigrid.COLOURS, minigrid.STATES])
        assert seen["direction"].shape == (8, 1)
        assert np.all(seen["direction"] < 4)
        assert seen["mission"].shape == (8, Words().length)
        assert np.all(seen["mission"][:, 1] > 0)
        seen, reward, terminated, truncated, _ = pool.step(random.integers(0, 7, 8))
        assert not np.any(terminated & truncated)
        assert np.all(reward[~terminated] == 0)
        ended += np.count_nonzero(terminated | truncated)
    assert ended > 0
    pool.close()
    pool.close()


def test_missions_are_those_of_minigrid():
    """The sentences of many levels, as words, are the same set (grids of a seed are not)."""
    pytest.importorskip("minigrid")
    name, found = "BabyAI-GoToObj-v0", set()
    for seed in range(4):
        pool = suite.make_many(name, 64, 1000 * seed)
        found |= {tuple(row) for row in pool.reset()[0]["mission"].tolist()}
        pool.close()
    sentences = [
        f"go to the {colour} {thing}"
        for colour in ("red", "green", "blue", "purple", "yellow", "grey")
        for thing in ("key", "ball", "box")
    ]
    assert found == {tuple(common.encode(sentence, Words()).tolist()) for sentence in sentences}
    env = minigrid.make(name)
    assert {tuple(env.begin(seed)["mission"].tolist()) for seed in range(40)} <= found


def test_seeds_and_ends():
    """The same seed, the same streams; turning only is cut after 64 steps, and the next step begins anew."""
    one, other, third = (suite.make_many("BabyAI-GoToObj-v0", 4, seed) for seed in (5, 5, 6))
    first, same, different = (pool.reset()[0]["image"] for pool in (one, other, third))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, different)
    cuts = [one.step(np.zeros(4, int))[3] for _ in range(65)]
    assert [bool(cut.all()) for cut in cuts] == [False] * 63 + [True, False]


def test_pictures_have_their_channels_last():
    pool = suite.make_many("Pong-v5", 2, 0)
    assert pool.spec.observation.shape == (84, 84, 4)
    assert pool.reset()[0].shape == (2, 84, 84, 4)
    assert pool.step(np.zeros(2, np.int32))[0].dtype == np.uint8
    pool.close()


def test_vectors_and_real_actions():
    pool = suite.make_many("Pendulum-v1", 3, 0)
    assert pool.reset()[0].shape == (3, 3)
    seen, reward, *_ = pool.step(np.full((3, 1), 5.0, np.float32))
    assert seen.dtype == reward.dtype == np.float32
    assert pool.spec.horizon == 200
    with pytest.raises(ValueError, match="action: expected 1 finite"):
        pool.step(np.full((3, 1), np.nan))
    pool.close()


def test_what_hangs_is_refused():
    """Seed 9 of this level did not come to an end in 1.2.5; a later version is taken at its word."""
    with pytest.raises(ValueError, match=r"hangs in envpool 1\.2\.5.* Use 'babyai:BabyAI-SynthS5R2-v0'"):
        suite.check_hanging("BabyAI-SynthS5R2-v0", "1.2.5")
    suite.check_hanging("BabyAI-SynthS5R2-v0", "1.2.10")
    suite.check_hanging("BabyAI-GoToObj-v0", "1.2.5")


def test_what_is_wrong():
    pool = suite.make_many("BabyAI-GoToObj-v0", 2, 0)
    pool.reset()
    with pytest.raises(ValueError, match="expected integers from 0 to 6"):
        pool.step(np.asarray([0, 7]))
    with pytest.raises(ValueError, match="one for each of 2 environments, got 3"):
        pool.step(np.zeros(3, int))
    with pytest.raises(ValueError, match="at least one"):
        suite.make_many("BabyAI-GoToObj-v0", 0, 0)
    with pytest.raises(ValueError, match="Did you mean 'envpool:BabyAI-GoToObj-v0'"):
        suite.make_many("BabyAI-GotoObj-v0", 1, 0)
