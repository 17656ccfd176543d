"""Advantages against sums written out over hand-made streams with resets, truncations and terminations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.agents.vmpo import generalised_advantage_estimation

GAMMA = 0.9

# Each stream by its steps: "." goes on, "T" terminated here, "C" cut here (truncated). The step after a T or C is a
# first one, and the transition into it is only the reset.
STREAMS = [
    *("........", "...T....", "...C....", "..T..C..", ".T.C.T.C"),
    *(".......T", ".......C", "T......C", "C.......", "..C.T.TC"),  # ".TC": an episode of two steps
]


def unroll(stream, seed=0):
    """reward, discount, last, valid (T,) and value (T + 1,) of a stream of T + 1 steps."""
    rng = np.random.default_rng([seed, *map(ord, stream)])
    ends = np.array([step in "TC" for step in stream])
    terminated = np.array([step == "T" for step in stream])
    valid = ~ends[:-1]
    reward = np.where(valid, rng.normal(size=len(stream) - 1), 0.0)
    discount = np.where(terminated[1:] & valid, 0.0, 1.0)
    return reward, discount, ends[1:] & valid, valid, rng.normal(size=len(stream))


def n_step_return(reward, discount, last, value, t, n):
    """r_t + γ r_{t+1} + … over n transitions at most, plus the value of where that stops."""
    total, factor = 0.0, 1.0
    for i in range(t, min(t + n, len(reward))):
        total += factor * reward[i]
        factor *= GAMMA * discount[i]
        stop = i + 1
        if last[i]:
            break
    return total + factor * value[stop]


def lambda_return(reward, discount, last, value, t, lambda_):
    """Σ_n (1 - λ) λⁿ⁻¹ G⁽ⁿ⁾, the rest of the weight on the longest."""
    longest = len(reward) - t
    returns = [n_step_return(reward, discount, last, value, t, n + 1) for n in range(longest)]
    weights = [(1 - lambda_) * lambda_**n for n in range(longest - 1)] + [lambda_ ** (longest - 1)]
    return np.dot(weights, returns)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def advantages(reward, discount, last, value, lambda_, gamma=GAMMA):
    arrays = (jnp.asarray(x) for x in (reward, discount, last, value))
    return jax.jit(generalised_advantage_estimation)(*arrays, gamma, lambda_)


@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("stream", STREAMS)
def test_against_sums_written_out(stream, lambda_):
    reward, discount, last, valid, value = unroll(stream)
    A, targets = advantages(reward, discount, last, value, lambda_)
    for t in np.flatnonzero(valid):
        expected = lambda_return(reward, discount, last, value, t, lambda_)
        np.testing.assert_allclose(targets[t], expected, rtol=1e-10)
        np.testing.assert_allclose(A[t], expected - value[t], rtol=1e-10, atol=1e-12)


def test_by_hand():
    reward = np.array([[1.0, 2.0, 4.0]])
    value = np.array([[10.0, 20.0, 30.0, 40.0]])
    on, cut = np.zeros((1, 3), bool), np.array([[False, True, False]])
    ones, ended = np.ones((1, 3)), np.array([[1.0, 0.0, 1.0]])
    half = 0.5
    _, going = advantages(reward, ones, on, value, 1.0, half)
    np.testing.assert_allclose(going, [[1 + 1 + 1 + 5, 2 + 2 + 10, 4 + 20]])
    _, truncated = advantages(reward, ones, cut, value, 1.0, half)
    np.testing.assert_allclose(truncated, [[1 + 1 + 7.5, 2 + 15, 4 + 20]])
    _, terminated = advantages(reward, ended, cut, value, 1.0, half)
    np.testing.assert_allclose(terminated, [[1 + 1, 2, 4 + 20]])
    A, ahead = advantages(reward, ones, on, value, 0.0, half)
    np.testing.assert_allclose(ahead, [[1 + 10, 2 + 15, 4 + 20]])
    np.testing.assert_allclose(A, [[1, -3, -6]])


@pytest.mark.parametrize("stream", ["...T....", "...C...."])
def test_nothing_crosses_an_end(stream):
    reward, discount, last, _, value = unroll(stream)
    _, targets = advantages(reward, discount, last, value, 1.0)
    other_reward, other_value = reward.copy(), value.copy()
    other_reward[3:] += 100.0  # the reset, and the next episode
    other_value[4:] += 100.0
    _, others = advantages(other_reward, discount, last, other_value, 1.0)
    np.testing.assert_array_equal(targets[:3], others[:3])
    assert np.all(targets[3:] != others[3:])
    at_the_end = value.copy()
    at_the_end[3] += 100.0  # the value of the last step: counts where the episode was cut, else not
    _, others = advantages(reward, discount, last, at_the_end, 1.0)
    expected = 100 * GAMMA ** np.array([3, 2, 1]) if stream[3] == "C" else np.zeros(3)
    np.testing.assert_allclose(others[:3] - targets[:3], expected, atol=1e-9)


def test_streams_are_rows_and_two_rewards_are_a_vmap():
    reward, discount, last, _, value = (np.stack(part) for part in zip(*map(unroll, STREAMS), strict=True))
    A, _ = advantages(reward, discount, last, value, 0.95)
    for row in range(len(STREAMS)):
        alone, _ = advantages(reward[row], discount[row], last[row], value[row], 0.95)
        np.testing.assert_allclose(A[row], alone)
    both = jax.vmap(generalised_advantage_estimation, in_axes=(0, None, None, 0, 0, None))
    rewards, values = jnp.stack([reward, 2 * reward]), jnp.stack([value, -value])
    gammas = jnp.array([GAMMA, 0.5])
    stacked, _ = both(rewards, jnp.asarray(discount), jnp.asarray(last), values, gammas, 0.95)
    np.testing.assert_allclose(stacked[0], A)
    np.testing.assert_allclose(stacked[1], advantages(2 * reward, discount, last, -value, 0.95, 0.5)[0])


def test_values_must_reach_one_step_further():
    with pytest.raises(ValueError, match=r"value: expected 4 steps for 3 transitions .* got 3"):
        advantages(np.ones(3), np.ones(3), np.zeros(3, bool), np.ones(3), 1.0)
