"""Cart-pole, pendulum and point mass: their equations written out again, and what simple controllers reach."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.envs import make, make_streams
from derex.envs.control import CartPoleState, PendulumState, PointMassState


def floats(*numbers):
    return [jnp.float32(number) for number in numbers]


def cartpole_by_hand(state, force):
    """Equations (1) and (2) of Florian's "Correct equations for the dynamics of the cart-pole system", no friction.

    They are solved here as two linear equations in both accelerations, not by gym's substitution.
    """
    x, v, theta, omega = state
    cart, pole, l, g = 1.0, 0.1, 0.5, 9.8
    # (M + m) ẍ + m l θ̈ cos θ = F + m l θ̇² sin θ   and   4/3 l θ̈ + ẍ cos θ = g sin θ
    left = [[cart + pole, pole * l * math.cos(theta)], [math.cos(theta), 4 / 3 * l]]
    right = [force + pole * l * omega**2 * math.sin(theta), g * math.sin(theta)]
    acceleration, swing = np.linalg.solve(left, right)
    return [x + 0.02 * v, v + 0.02 * acceleration, theta + 0.02 * omega, omega + 0.02 * swing]


@pytest.mark.parametrize(
    "state", [(0.0, 0.0, 0.0, 0.0), (0.1, -0.5, 0.15, 1.2), (-2.0, 1.5, -0.2, -0.7), (1.0, 0.3, 0.05, -2.0)]
)
@pytest.mark.parametrize("action", [0, 1])
def test_cartpole_equations(walk, state, action):
    walked = walk(make("cartpole"), [action], start=CartPoleState(*floats(*state)))
    expected = cartpole_by_hand(state, 10.0 if action else -10.0)
    np.testing.assert_allclose(walked.observations[-1], expected, rtol=1e-5, atol=1e-6)
    assert walked.rewards.tolist() == [1.0]


def test_cartpole_from_rest_in_numbers(walk):
    """gym's first step from rest to the right: ẍ = 9.7561, θ̈ = -14.6341."""
    walked = walk(make("cartpole"), [1], start=CartPoleState(*floats(0, 0, 0, 0)))
    np.testing.assert_allclose(walked.observations[-1], [0, 0.19512195, 0, -0.29268293], rtol=1e-6)


@pytest.mark.parametrize(
    ("state", "falls"),
    [
        ((0.0, 0.0, 0.209, 0.0), False),
        ((0.0, 0.0, 0.21, 0.0), True),
        ((0.0, 0.0, -0.21, 0.0), True),
        ((0.0, 0.0, 0.2, 1.0), True),
        ((2.39, 0.0, 0.0, 0.0), False),
        ((2.39, 1.0, 0.0, 0.0), True),
        ((-2.39, -1.0, 0.0, 0.0), True),
    ],
)
def test_cartpole_falls_at_its_limits(walk, state, falls):
    walked = walk(make("cartpole"), [1], start=CartPoleState(*floats(*state)))
    assert bool(walked.terminated[-1]) == falls
    assert walked.rewards[-1] == 1.0


def whole_episodes(name, policy, n=200):
    """Episode sums of `n` streams, one whole episode each, under a policy of the observation."""
    streams = make_streams(make(name), n)

    def step(carry, key):
        state, seen = carry
        return streams.step(state, policy(seen.observation), key), None

    keys = jax.random.split(jax.random.key(1), streams.spec.horizon)
    carry = streams.reset(jax.random.key(0), stagger=False)
    (state, seen), _ = jax.lax.scan(step, carry, keys)
    return streams.summary(state), seen


def test_cartpole_can_be_balanced():
    """Pushing towards where the pole falls and turns holds it for all 500 steps, which are cut, not ended."""
    sums, seen = whole_episodes("cartpole", lambda o: (3 * o[:, 2] + o[:, 3] > 0).astype(jnp.int32))
    assert sums.episodes.tolist() == [1] * 200
    assert sums.returns.tolist() == [500.0] * 200
    assert sums.successes.tolist() == [1] * 200
    assert bool(seen.truncated.all())
    assert bool((seen.discount == 1).all())


def test_cartpole_starts_near_rest():
    _, observations = jax.vmap(make("cartpole").reset)(jax.random.split(jax.random.key(0), 2000))
    observations = np.asarray(observations)
    assert np.abs(observations).max() <= 0.05
    assert np.abs(observations).max(axis=0).min() > 0.049
    np.testing.assert_allclose(observations.mean(axis=0), 0, atol=0.003)


@pytest.mark.parametrize(
    ("angle", "speed", "action"), [(0.5, 1.0, 0.3), (3.5, -2.0, -1.0), (-7.0, 7.9, 1.0), (math.pi, 0.0, 0.0)]
)
def test_pendulum_equations(walk, angle, speed, action):
    walked = walk(
        make("pendulum"), [np.array([action], np.float32)], start=PendulumState(*floats(angle, speed))
    )
    wrapped = math.atan2(math.sin(angle), math.cos(angle))
    u = 2 * action
    reward = -(wrapped**2 + 0.1 * speed**2 + 0.001 * u**2)
    new_speed = min(max(speed + (15 * math.sin(angle) + 3 * u) * 0.05, -8), 8)
    new_angle = angle + new_speed * 0.05
    np.testing.assert_allclose(walked.rewards, [reward], rtol=1e-5)
    expected = [math.cos(new_angle), math.sin(new_angle), new_speed / 8]
    np.testing.assert_allclose(walked.observations[-1], expected, rtol=1e-4, atol=1e-5)
    assert not walked.terminated.any()


def test_pendulum_starts_anywhere():
    states, _ = jax.vmap(make("pendulum").reset)(jax.random.split(jax.random.key(0), 4000))
    angle, speed = np.asarray(states.angle), np.asarray(states.speed)
    assert 3.13 < angle.max() <= math.pi + 1e-6
    assert -math.pi - 1e-6 <= angle.min() < -3.13
    assert 0.99 < speed.max() <= 1
    assert np.mean(angle) == pytest.approx(0, abs=0.15)  # five standard errors
    assert abs(np.corrcoef(angle, speed)[0, 1]) < 0.08


def swing_up(observation):
    """Pump energy until it suffices to stand, then hold."""
    cosine, sine, speed = observation[:, 0], observation[:, 1], 8 * observation[:, 2]
    missing = 5 - (speed**2 / 6 + 5 * cosine)
    hold = (-10 * jnp.arctan2(sine, cosine) - 2 * speed) / 2
    return jnp.where(cosine > 0.8, hold, jnp.sign(speed) * jnp.sign(missing))[:, None]


def test_pendulum_success_is_a_swing_up():
    sums, seen = whole_episodes("pendulum", swing_up)
    assert float(sums.returns.mean()) == pytest.approx(-142, abs=25)
    assert float(sums.successes.mean()) > 0.9
    assert bool(seen.truncated.all())
    assert float((seen.observation[:, 0] > 0.99).mean()) > 0.95
    sums, _ = whole_episodes("pendulum", lambda o: jnp.zeros((len(o), 1)))
    assert float(sums.returns.mean()) == pytest.approx(-1200, abs=60)
    assert int(sums.successes.sum()) == 0


def test_point_mass_equations(walk):
    start = PointMassState(jnp.array([0.5, -0.2]), jnp.array([0.3, 0.95]), jnp.array([-1.0, 0.4]))
    walked = walk(make("point-mass"), [np.array([-0.5, 2.0], np.float32)], start=start)
    # velocity: 0.3 - 0.05 and 0.95 + 0.1, cut at 1; position: by a tenth of it
    np.testing.assert_allclose(walked.observations[-1], [0.525, -0.1, 0.25, 1.0, -1.0, 0.4], rtol=1e-6)
    distance = math.hypot(1.525, 0.5)
    np.testing.assert_allclose(walked.rewards, [-0.1 * distance - 0.01 * (0.25 + 1.0)], rtol=1e-6)
    assert not walked.terminated.any()


def test_point_mass_is_stopped_by_walls(walk):
    start = PointMassState(jnp.array([1.95, -1.95]), jnp.array([0.9, -0.9]), jnp.zeros(2, jnp.float32))
    walked = walk(
        make("point-mass"), [np.array([1.0, 0.0], np.float32), np.array([-1.0, 1.0], np.float32)], start=start
    )
    np.testing.assert_allclose(walked.observations[1][:4], [2, -2, 0, 0])
    np.testing.assert_allclose(walked.observations[2][:4], [1.99, -1.99, -0.1, 0.1], rtol=1e-5)


def test_point_mass_success_is_to_come_and_stay():
    def steer(observation):
        position, velocity, target = jnp.split(observation, 3, axis=1)
        return 4 * (target - position) - 3 * velocity

    sums, seen = whole_episodes("point-mass", steer)
    assert sums.successes.tolist() == [1] * 200
    assert float(sums.returns.min()) > -1.64
    assert float(sums.returns.mean()) == pytest.approx(-0.77, abs=0.06)
    position, velocity, target = np.split(np.asarray(seen.observation), 3, axis=1)
    np.testing.assert_allclose(position, target, atol=0.01)
    np.testing.assert_allclose(velocity, 0, atol=0.01)


def test_point_mass_to_do_nothing_costs_the_distance():
    sums, seen = whole_episodes("point-mass", lambda o: jnp.zeros((len(o), 2)), n=2000)
    target = np.asarray(seen.observation)[:, 4:]
    np.testing.assert_allclose(sums.returns, -10 * np.linalg.norm(target, axis=1), rtol=1e-4)
    assert float(sums.returns.mean()) == pytest.approx(-7.65, abs=0.3)
    assert float(sums.successes.mean()) == pytest.approx(math.pi * 0.04 / 4, abs=0.016)
    assert np.abs(target).max() <= 1
