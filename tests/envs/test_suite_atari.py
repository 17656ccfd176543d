"""Atari: the usual preprocessing, held against the plain emulator."""

import numpy as np
import pytest

from derex.envs.suites import atari as suite
from derex.envs.suites.common import resize
from derex.types import Discrete

pytestmark = pytest.mark.slow


def test_frames_rewards_and_ends():
    """Frame by frame on the emulator with the same seed and sticky actions: max of two, four stacked, points summed."""
    gymnasium, _ = pytest.importorskip("gymnasium"), pytest.importorskip("ale_py")
    env = suite.make("ALE/Breakout-v5")
    assert env.spec.action == Discrete(4)
    assert env.spec.observation.shape == (84, 84, 4)
    assert env.spec.horizon == 27_000
    plain = gymnasium.make("ALE/Breakout-v5", frameskip=1, obs_type="grayscale", disable_env_checker=True)
    seen, frame = env.begin(5), plain.reset(seed=5)[0]
    stack = [resize(frame[..., None], 84, 84)] * 4
    random, total = np.random.default_rng(0), 0.0
    for _ in range(2000):
        np.testing.assert_array_equal(seen, np.concatenate(stack, axis=-1))
        action = random.integers(4)
        step, points, frames, over = env.act(np.asarray(action)), 0.0, [], False
        while len(frames) < 4 and not over:
            frame, reward, over, _, _ = plain.step(action)
            frames.append(frame)
            points += float(reward)
        stack = [*stack[1:], resize(np.max(frames[-2:], axis=0)[..., None], 84, 84)]
        assert (step.reward, step.terminated, step.truncated) == (points, over, False)
        seen, total = step.observation, total + points
        if over:
            break
    assert over
    assert total > 0
    env.close()


def test_names():
    pytest.importorskip("ale_py")
    assert "ALE/MontezumaRevenge-v5" in suite.names()
    env = suite.make("ALE/MontezumaRevenge-v5@1")
    assert env.begin(0).shape == (84, 84, 1)
    assert env.spec.action == Discrete(18)
    env.close()
    with pytest.raises(ValueError, match="Did you mean 'atari:ALE/MontezumaRevenge-v5'"):
        suite.make("MontezumaRevenge-v5")
