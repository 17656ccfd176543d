"""Control tasks: cart-pole (Barto, Sutton and Anderson 1983), pendulum and point mass.

Constants of the first two are those of gym's CartPole-v1 and Pendulum-v1. The point mass is a double integrator.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int, PRNGKeyArray

from derex.envs.drawing import AGENT, FAINT, FLOOR, GOAL, INK, ORANGE, Picture, box, canvas, disc, stroke
from derex.envs.interface import BuiltinEnvironment, vector
from derex.types import Box, Discrete, EnvironmentSpec

CARTPOLE_GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 1.1  # cart and pole
HALF_LENGTH = 0.5
FORCE = 10.0
CARTPOLE_SECONDS = 0.02  # of a step
MAX_POSITION = 2.4
MAX_ANGLE = 0.20943951  # 12 degrees


class CartPoleState(NamedTuple):
    """Position and velocity of the cart, angle (0 is upright) and angular velocity of the pole."""

    x: Float32[Array, ""]
    v: Float32[Array, ""]
    angle: Float32[Array, ""]
    spin: Float32[Array, ""]


class CartPole(BuiltinEnvironment):
    """`cartpole`: push the cart left or right; reward 1 per step until the pole tilts by 12° or the cart is 2.4 away.

    Episodes start near upright and at rest, and are truncated after 500 steps. The observation is the state, unscaled.
    """

    spec = EnvironmentSpec("cartpole", vector(4), Discrete(2), horizon=500, success_return=475.0)

    def start(self, key: PRNGKeyArray) -> CartPoleState:
        """Each number of the state is uniform in [-0.05, 0.05]."""
        return CartPoleState(*jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05))

    def move(self, state: CartPoleState, action: Int[Array, ""]) -> tuple[CartPoleState, Array, Array]:
        """One Euler step of the published equations, positions first as in gym."""
        _, v, angle, spin = state
        force = jnp.where(action == 1, jnp.float32(FORCE), jnp.float32(-FORCE))
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        push = (force + POLE_MASS * HALF_LENGTH * spin**2 * sine) / TOTAL_MASS
        inertia = HALF_LENGTH * (4 / 3 - POLE_MASS * cosine**2 / TOTAL_MASS)
        swing = (CARTPOLE_GRAVITY * sine - cosine * push) / inertia
        acceleration = push - POLE_MASS * HALF_LENGTH * swing * cosine / TOTAL_MASS
        rates = zip(state, (v, acceleration, spin, swing), strict=True)
        state = CartPoleState(*(value + CARTPOLE_SECONDS * rate for value, rate in rates))
        fallen = (jnp.abs(state.x) > MAX_POSITION) | (jnp.abs(state.angle) > MAX_ANGLE)
        return state, jnp.float32(1), fallen

    def observe(self, state: CartPoleState, key: PRNGKeyArray) -> Float32[Array, "4"]:
        return jnp.stack(state)

    def render(self, state: CartPoleState) -> Picture:
        """Draws cart and pole from the side, with marks where the cart leaves the track."""
        picture, metre, ground = canvas(480, 240), 90.0, 190.0
        stroke(picture, (0, ground), (480, ground), 2, FAINT)
        for end in (240 - MAX_POSITION * metre, 240 + MAX_POSITION * metre):
            stroke(picture, (end, ground - 8), (end, ground + 8), 2, FAINT)
        x, angle = 240 + float(state.x) * metre, float(state.angle)
        hinge, length = (x, ground - 24), 2 * HALF_LENGTH * metre
        tip = hinge[0] + length * np.sin(angle), hinge[1] - length * np.cos(angle)
        box(picture, (x - 24, ground - 26), (x + 24, ground - 6), INK)
        stroke(picture, hinge, (float(tip[0]), float(tip[1])), 8, ORANGE)
        disc(picture, hinge, 4, FAINT)
        return picture


PENDULUM_GRAVITY, MASS, LENGTH = 10.0, 1.0, 1.0
PENDULUM_SECONDS = 0.05  # of a step
PENDULUM_MAX_SPEED = 8.0
MAX_TORQUE = 2.0


class PendulumState(NamedTuple):
    """Angle (0 is upright, not wrapped) and angular velocity."""

    angle: Float32[Array, ""]
    speed: Float32[Array, ""]


class Pendulum(BuiltinEnvironment):
    """`pendulum`: the action in [-1, 1] is the torque in units of 2; the reward is -(θ² + 0.1 θ̇² + 0.001 u²).

    Episodes start at any angle with θ̇ in [-1, 1] and are truncated after 200 steps. The observation is cos θ, sin θ
    and θ̇ / 8. Success is a return of at least -300: without torque it is about -1200.
    """

    spec = EnvironmentSpec("pendulum", vector(3), Box(1, -1.0, 1.0), horizon=200, success_return=-300.0)

    def start(self, key: PRNGKeyArray) -> PendulumState:
        angle, speed = jax.random.uniform(key, (2,), jnp.float32, -1.0, 1.0)
        return PendulumState(angle * jnp.pi, speed)

    def move(self, state: PendulumState, action: Float32[Array, "1"]) -> tuple[PendulumState, Array, Array]:
        """One Euler step, velocity first; the reward is that of the state before it."""
        torque = MAX_TORQUE * jnp.clip(action[0], -1.0, 1.0)
        wrapped = jnp.mod(state.angle + jnp.pi, 2 * jnp.pi) - jnp.pi
        cost = wrapped**2 + 0.1 * state.speed**2 + 0.001 * torque**2
        push = 1.5 * PENDULUM_GRAVITY / LENGTH * jnp.sin(state.angle) + 3.0 / (MASS * LENGTH**2) * torque
        speed = jnp.clip(state.speed + PENDULUM_SECONDS * push, -PENDULUM_MAX_SPEED, PENDULUM_MAX_SPEED)
        return PendulumState(state.angle + PENDULUM_SECONDS * speed, speed), -cost, jnp.zeros((), bool)

    def observe(self, state: PendulumState, key: PRNGKeyArray) -> Float32[Array, "3"]:
        return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.speed / PENDULUM_MAX_SPEED])

    def render(self, state: PendulumState) -> Picture:
        """Draws the pendulum, and a grey line where it should be."""
        picture, angle = canvas(240, 240), float(state.angle)
        stroke(picture, (120, 120), (120, 25), 3, FAINT)
        tip = 120 - 90 * float(np.sin(angle)), 120 - 90 * float(np.cos(angle))
        stroke(picture, (120, 120), tip, 14, AGENT)
        disc(picture, (120, 120), 5, INK)
        return picture


POINT_MASS_SECONDS = 0.1  # of a step
WALL = 2.0  # the mass stays in [-2, 2]²
DISTANCE_COST = 0.1
ACTION_COST = 0.01


class PointMassState(NamedTuple):
    """Position and velocity of the mass, and its target."""

    position: Float32[Array, "2"]
    velocity: Float32[Array, "2"]
    target: Float32[Array, "2"]


class PointMass(BuiltinEnvironment):
    """`point-mass`: the action is the acceleration, in [-1, 1]²; the reward is -(0.1 d + 0.01 |a|²).

    d is the distance to the target after the step. Episodes start at rest in the middle with a target uniform
    in [-1, 1]² and are truncated after 100 steps. The observation is position, velocity and target. Velocities are
    clipped at 1 along each axis, and walls at ±2 stop the mass. Success is a return of at least -2: the controller
    4 (target - x) - 3 v reaches the corners, the farthest targets, with -1.63; no action returns -10 d, -7.65 on
    average, and succeeds for the 3% of targets within 0.2.
    """

    spec = EnvironmentSpec("point-mass", vector(6), Box(2, -1.0, 1.0), horizon=100, success_return=-2.0)

    def start(self, key: PRNGKeyArray) -> PointMassState:
        target = jax.random.uniform(key, (2,), jnp.float32, -1.0, 1.0)
        return PointMassState(jnp.zeros(2, jnp.float32), jnp.zeros(2, jnp.float32), target)

    def move(self, state: PointMassState, action: Float32[Array, "2"]) -> tuple[PointMassState, Array, Array]:
        """One Euler step, velocity first."""
        action = jnp.clip(action, -1.0, 1.0)
        velocity = jnp.clip(state.velocity + POINT_MASS_SECONDS * action, -1.0, 1.0)
        free = state.position + POINT_MASS_SECONDS * velocity
        position = jnp.clip(free, -WALL, WALL)
        velocity = jnp.where(position == free, velocity, 0)
        distance = jnp.linalg.norm(position - state.target)
        reward = -DISTANCE_COST * distance - ACTION_COST * jnp.sum(action**2)
        return PointMassState(position, velocity, state.target), reward, jnp.zeros((), bool)

    def observe(self, state: PointMassState, key: PRNGKeyArray) -> Float32[Array, "6"]:
        return jnp.concatenate(state)

    def render(self, state: PointMassState) -> Picture:
        """Draws the mass with its velocity, the target as a ring, and the box of possible targets."""
        picture, unit = canvas(240, 240), 57.0

        def place(point: np.ndarray) -> tuple[float, float]:
            return 120 + unit * float(point[0]), 120 - unit * float(point[1])

        box(picture, (120 - unit, 120 - unit), (120 + unit, 120 + unit), FAINT)
        box(picture, (122 - unit, 122 - unit), (118 + unit, 118 + unit), FLOOR)
        position, velocity, target = (np.asarray(part) for part in state)
        disc(picture, place(target), 10, GOAL)
        disc(picture, place(target), 7, FLOOR)
        stroke(picture, place(position), place(position + velocity / 2), 2, INK)
        disc(picture, place(position), 6, AGENT)
        return picture
