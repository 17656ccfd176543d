"""Pendulum (gym's Pendulum-v1): swing up a pendulum with a motor too weak to lift it at once, and hold it there."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, PRNGKeyArray, UInt8

from derex.envs.drawing import AGENT, FAINT, INK, canvas, disc, stroke
from derex.types import Box, EnvironmentSpec

GRAVITY, MASS, LENGTH = 10.0, 1.0, 1.0
SECONDS = 0.05  # of a step
MAX_SPEED = 8.0
MAX_TORQUE = 2.0


class PendulumState(NamedTuple):
    """Angle (0 is upright, not wrapped) and angular speed."""

    angle: Float32[Array, ""]
    speed: Float32[Array, ""]


class Pendulum:
    """`pendulum`: the action in [-1, 1] is the torque in units of 2; each step costs θ² + 0.1 θ̇² + 0.001 u².

    Episodes start at any angle with a speed in [-1, 1] and are cut after 200 steps. The observation is cos θ, sin θ
    and θ̇ / 8. Success is a return of at least -300: without torque it is some -1200 on average.
    """

    spec = EnvironmentSpec(
        name="pendulum",
        observation=jax.ShapeDtypeStruct((3,), jnp.float32),
        action=Box(1, -1.0, 1.0),
        horizon=200,
        success_return=-300.0,
    )

    def reset(self, key: PRNGKeyArray) -> tuple[PendulumState, Float32[Array, "3"]]:
        """Any angle, a small speed."""
        angle, speed = jax.random.uniform(key, (2,), jnp.float32, -1.0, 1.0)
        state = PendulumState(angle * jnp.pi, speed)
        return state, _observe(state)

    def step(
        self, state: PendulumState, action: Float32[Array, "1"], key: PRNGKeyArray
    ) -> tuple[PendulumState, Float32[Array, "3"], Float32[Array, ""], Bool[Array, ""]]:
        """Euler's step, speed first; the cost is that of the state before it."""
        torque = MAX_TORQUE * jnp.clip(action[0], -1.0, 1.0)
        wrapped = jnp.mod(state.angle + jnp.pi, 2 * jnp.pi) - jnp.pi
        cost = wrapped**2 + 0.1 * state.speed**2 + 0.001 * torque**2
        push = 1.5 * GRAVITY / LENGTH * jnp.sin(state.angle) + 3.0 / (MASS * LENGTH**2) * torque
        speed = jnp.clip(state.speed + SECONDS * push, -MAX_SPEED, MAX_SPEED)
        state = PendulumState(state.angle + SECONDS * speed, speed)
        return state, _observe(state), -cost, jnp.zeros((), bool)

    def render(self, state: PendulumState) -> UInt8[np.ndarray, "H W 3"]:
        """The pendulum, on a grey line where it should be."""
        picture, angle = canvas(240, 240), float(state.angle)
        stroke(picture, (120, 120), (120, 25), 3, FAINT)
        tip = 120 - 90 * float(np.sin(angle)), 120 - 90 * float(np.cos(angle))
        stroke(picture, (120, 120), tip, 14, AGENT)
        disc(picture, (120, 120), 5, INK)
        return picture


def _observe(state: PendulumState) -> Float32[Array, "3"]:
    return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.speed / MAX_SPEED])
