"""ViZDoom: the same game as without us, at our size, with ends that are told apart."""

import jax
import numpy as np
import pytest

from derex.envs.suites import common
from derex.envs.suites import vizdoom as suite
from derex.types import Discrete, MultiDiscrete

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("vizdoom")


def bare(name, **options):
    import vizdoom.gymnasium_wrapper  # noqa: F401 (registers the ids)

    return gymnasium.make(name, screen_resolution=suite.SCREEN, disable_env_checker=True, **options)


def test_the_same_game_as_without_us():
    """Screens and rewards; the game itself gives up after 2100 frames, which is after 132 steps of 16."""
    env, game = suite.make("VizdoomMyWayHome-v1@16"), bare("VizdoomMyWayHome-v1", frame_skip=16)
    assert env.spec.observation == {"screen": jax.ShapeDtypeStruct((72, 96, 3), np.uint8)}
    assert env.spec.action == Discrete(6)
    assert env.spec.horizon == 132
    ours, theirs = env.begin(7), game.reset(seed=7)[0]
    random, total = np.random.default_rng(0), 0.0
    for number in range(132):
        np.testing.assert_array_equal(ours["screen"], common.resize(theirs["screen"], 72, 96))
        action = random.integers(6)
        step = env.act(np.asarray(action))
        theirs, reward, _, cut, _ = game.step(np.int64(action))
        assert step.truncated == cut == (number == 131)
        assert not step.terminated
        ours, total = step.observation, total + step.reward
        if number < 131:
            assert step.reward == pytest.approx(reward)
    assert not theirs["screen"].any()  # the game shows nothing at its time limit,
    assert len(np.unique(ours["screen"])) > 20  # we do
    assert total < suite.SUCCESS["VizdoomMyWayHome"]
    env.close()
    game.close()


def test_the_armour_is_a_success():
    """Seed 10 begins near to it; these moves find it. The last screen stays."""
    env = suite.make("VizdoomMyWayHome-v1")
    assert env.spec.horizon == 525
    random = np.random.default_rng(10)
    env.begin(10)
    total, steps, step = 0.0, 0, None
    while step is None or not (step.terminated or step.truncated):
        move = int(random.choice([3, 4, 5], p=[0.6, 0.2, 0.2]))
        for _ in range(int(random.integers(1, 16 if move == 3 else 8))):
            step = env.act(np.asarray(move))
            total, steps = total + step.reward, steps + 1
            if step.terminated or step.truncated:
                break
    assert step.terminated
    assert steps < 100
    assert total == pytest.approx(1 - 0.0001 * 4 * steps, abs=0.002)
    assert total >= 0.5 == env.spec.success_return
    assert len(np.unique(step.observation["screen"])) > 20
    env.close()


def test_scenarios_with_more_to_see():
    env = suite.make("VizdoomHealthGathering-v1")
    assert env.spec.observation["gamevariables"] == jax.ShapeDtypeStruct((1,), np.float32)
    game = bare("VizdoomHealthGathering-v1", frame_skip=4)
    health = game.reset(seed=0)[0]["gamevariables"]
    np.testing.assert_array_equal(env.begin(0)["gamevariables"], health)
    assert 0 < health[0] < 100
    game.close()
    assert env.spec.success_return is None
    env.close()


def test_buttons_pressed_at_once_and_words():
    """Actions and parts of observations go to the game and come from it as the package's environment has them."""
    env = suite.make("VizdoomBasicNotifications-MultiBinary-v1")
    game = bare("VizdoomBasicNotifications-MultiBinary-v1", frame_skip=4)
    assert env.spec.action == MultiDiscrete((2, 2, 2))
    ours, theirs = env.begin(0), game.reset(seed=0)[0]
    random, said = np.random.default_rng(0), set()
    for _ in range(40):
        np.testing.assert_array_equal(ours["screen"], common.resize(theirs["screen"], 72, 96))
        np.testing.assert_array_equal(ours["gamevariables"], theirs["gamevariables"])
        np.testing.assert_array_equal(
            ours["notifications"],
            common.encode(theirs["notifications"], env.spec.observation["notifications"]),
        )
        said.add(theirs["notifications"])
        action = random.integers(0, 2, 3)
        step = env.act(action)
        theirs, reward, ended, _, _ = game.step(action.astype(np.int8))
        assert (step.reward, step.terminated) == (pytest.approx(reward), ended)
        if ended:
            break
        ours = step.observation
    assert ours["gamevariables"][0] < 50  # something was shot
    with pytest.raises(ValueError, match="expected 3 integers"):
        env.act(np.asarray([1, 0]))
    env.close()
    game.close()
    assert len(said) > 1


def test_names():
    """A version that was given up means the present one; a name without a version is none."""
    assert "VizdoomMyWayHome-v1" in suite.names()
    env = suite.make("VizdoomMyWayHome-v0")
    assert env.spec.name == "vizdoom:VizdoomMyWayHome-v0"
    assert env.spec.success_return == 0.5
    env.close()
    with pytest.raises(ValueError, match="Did you mean 'vizdoom:VizdoomMyWayHome-v1'"):
        suite.make("VizdoomMyWayHome")
    with pytest.raises(ValueError, match="after the @; expected one of 1, 2"):
        suite.make("VizdoomMyWayHome-v1@0")


def by_pixels(picture, height, width):
    """The mean of samples as it is defined, pixel by pixel."""
    H, W, channels = picture.shape
    whole = np.zeros((height, width, channels), np.int64)
    m, n = -(-H // height), -(-W // width)
    for i in range(m):
        for j in range(n):
            rows = ((np.arange(height) + (i + 0.5) / m) * H / height).astype(int)
            columns = ((np.arange(width) + (j + 0.5) / n) * W / width).astype(int)
            whole += picture[rows][:, columns]
    return ((whole + m * n // 2) // (m * n)).astype(np.uint8)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((120, 160, 3), (72, 96)),
        ((120, 160, 1), (72, 96)),
        ((210, 160, 1), (84, 84)),
        ((37, 53, 4), (20, 11)),
        ((10, 10, 3), (20, 20)),
        ((48, 48, 1), (3, 3)),  # 256 white samples fill 16 bits,
        ((51, 51, 1), (3, 3)),  # 289 more than that
    ],
)
def test_every_pixel_is_the_mean_of_its_samples(old, new):
    picture = np.random.default_rng(0).integers(0, 256, old).astype(np.uint8)
    picture[: old[0] // 2] = 255
    np.testing.assert_array_equal(common.resize(picture, *new), by_pixels(picture, *new))
    turned = np.ascontiguousarray(picture.transpose(1, 0, 2)).transpose(
        1, 0, 2
    )  # not in the order of its memory
    np.testing.assert_array_equal(common.resize(turned, *new), by_pixels(picture, *new))


def test_pictures_at_another_size():
    """The mean is kept, nothing is left out, flat pictures stay flat, and whole factors give exact means."""
    random = np.random.default_rng(0)
    picture = random.integers(0, 256, (120, 160, 3)).astype(np.uint8)
    small = common.resize(picture, 72, 96)
    assert small.shape == (72, 96, 3)
    assert small.mean() == pytest.approx(picture.mean(), abs=1.0)
    halves = common.resize(picture, 60, 80)
    exact = picture.reshape(60, 2, 80, 2, 3).mean(axis=(1, 3))
    assert np.abs(halves - exact).max() <= 0.5
    np.testing.assert_array_equal(common.resize(picture, 120, 160), picture)
    assert set(np.unique(common.resize(np.full((210, 160, 1), 77, np.uint8), 84, 84))) == {77}
    for row in range(210):  # a line of one pixel shows wherever it is
        line = np.zeros((210, 160, 1), np.uint8)
        line[row] = 255
        assert common.resize(line, 84, 84).max() >= 60
